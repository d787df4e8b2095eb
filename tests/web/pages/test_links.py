from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from stepscope.web.pages.links import Links

ONE = Links("/root", (0,), 1)


def query(address):
    return {k: v[0] for k, v in parse_qs(urlsplit(address).query).items()}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show operators", "operators"),
        ("show transfers --by memory", "transfers by memory"),
        ("show idle --by gap --where \"cause = 'python'\" --sort -dur_ns", "idle by gap, cause = 'python'"),
    ],
)
def test_evidence_is_named_in_words(command, words):
    assert ONE.evidence(command) == words


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("show idle", "/root/tables/idle"),
        ("show operators --by shape", "/root/tables/operators?o.by=shape"),
        ("show kernels --linked-only --sort total", "/root/tables/kernels?o.linked_only=true&sort=total"),
        ("show kernels --by=op --limit 5", "/root/tables/kernels?o.by=op"),
        ("export x", None),
        ("show", None),
        ("show 'broken", None),
        ("", None),
    ],
)
def test_commands_of_the_report_lead_to_tables(command, expected):
    assert ONE.command(command) == expected


def test_names_of_tables_cannot_leave_their_place():
    assert ONE.table("../../etc") == "/root/tables/..%2F..%2Fetc"


def test_the_choice_of_inputs_is_kept_where_it_is_one():
    assert Links("", (0, 1), 2).to("/kernels") == "/kernels"
    assert Links("", (1,), 2).to("/kernels") == "/kernels?t=1"


def test_a_row_leads_to_its_span_its_time_its_peak_or_its_name():
    assert query(ONE.events({"span_id": 7}, ["span_id"])) == {"t": "0", "span": "7"}
    stretch = query(ONE.events({"ts_ns": 1000, "dur_ns": 200}, []))
    assert stretch["range"] == "1000-1200"
    assert int(stretch["from"]) < 1000
    assert int(stretch["to"]) > 1200
    assert query(ONE.events({"peak_ts_ns": 10_000_000}, []))["from"] == "9500000"
    assert query(ONE.events({"ts_ns": 10_000_000}, []))["to"] == "10500000"
    assert query(ONE.events({"name": "a<b>&c"}, ["name"])) == {"t": "0", "q": "a<b>&c", "exact": "1"}
    assert ONE.events({"cause": "x"}, ["cause"]) is None


def test_of_very_long_names_the_beginning_is_sought():
    parameters = query(ONE.events({"name": "x" * 5000}, ["name"]))
    assert parameters == {"t": "0", "q": "x" * 1000}


def test_rows_of_several_traces_lead_to_the_one_they_come_from():
    links = Links("", (0, 1), 3, of_rank={4: 0, 5: 1})
    assert query(links.events({"rank": 5, "span_id": 1}, []))["t"] == "1"
    assert links.events({"span_id": 1}, []) is None
    assert query(links.events({"name": "n"}, ["name"]))["t"] == "0,1"
    labels = Links("", (0, 1), 2, of_label={"a": 0, "b": 1})
    assert query(labels.events({"trace": "b", "ts_ns": 5, "dur_ns": 1}, []))["t"] == "1"
