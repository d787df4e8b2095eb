from __future__ import annotations

from itertools import pairwise

import pytest

from stepscope.core.report import Finding


def marked(client, query, index=0):
    answer = client.get(f"/api/trace/{index}/marks?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_critical_path_is_a_chain_of_marks_on_its_spans(client):
    answer = marked(client, "table=critical-path&o.by=piece&o.within=recording")
    marks = answer["marks"]
    assert answer["count"] == len(marks) > 1
    assert all(a[3] + a[4] == b[3] for a, b in pairwise(marks))
    spans = {mark[0]: mark[1] for mark in marks if mark[0] is not None}
    assert spans
    for span, track in spans.items():
        assert client.get(f"/api/trace/0/span/{span}").json()["track"] == track
    assert {name for facts in answer["facts"].values() for name, _ in facts} >= {"kind", "on path"}
    assert not any("Object" in name for name in answer["names"])


def test_rows_are_filtered_and_ordered_by_time(client):
    every = marked(client, "table=spans")
    kernels = marked(client, "table=spans&where=category='kernel'")
    assert 0 < kernels["count"] < every["count"]
    assert [mark[3] for mark in every["marks"]] == sorted(mark[3] for mark in every["marks"])


def test_findings_are_where_their_tables_say_or_where_what_they_name_is_longest(client, session, monkeypatch):
    from stepscope.web.pages import overview

    findings = (Finding("Operator aten::mm", ("costs much",), 5e6, "per step", command="show operators"),
                Finding("Kernels", command="show spans --where \"category = 'kernel'\""),
                Finding("Everything is slow", command="show steps --limit x"))  # fmt: skip

    async def report_of(*_):
        return type("Report", (), {"findings": findings})

    monkeypatch.setattr(overview, "report_of", report_of)
    answer = marked(client, "findings=1")
    spans = session.trace(0).spans
    at = {answer["names"][mark[5]]: mark for mark in answer["marks"]}
    assert at["Operator aten::mm"][4] == spans.filter(name="aten::mm")["dur_ns"].max()
    assert spans["name"][at["Operator aten::mm"][0]] == "aten::mm"
    assert spans["category"][at["Kernels"][0]] == "kernel"
    assert ["costs", "5 ms per step"] in [fact for facts in answer["facts"].values() for fact in facts]
    assert set(answer["tables"]) == {finding.title for finding in findings}


def test_a_table_with_times_leads_to_its_marks(client):
    page = client.get("/tables/spans?where=category='kernel'&sort=-dur_ns&page=1").text
    assert "/timeline?marks=table%3Dspans%26where%3Dcategory%253D%2527kernel%2527" in page
    assert "/timeline?marks=" not in client.get("/tables/operators").text


@pytest.mark.parametrize(
    "query", ["", "table=nothing", "table=spans&where=;", "table=diff", "table=critical-path&o.by=x"]
)
def test_wrong_questions_say_what_is_wrong(client, query):
    answer = client.get(f"/api/trace/0/marks?{query}")
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]


def test_rows_without_a_place_in_time_are_no_marks(client):
    assert marked(client, "table=operators") == {"names": [], "marks": [], "facts": {}, "count": 0, "total": "0"}
