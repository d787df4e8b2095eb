"""The report of one file: whole, shut to the outside, and free of what a trace would smuggle in."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib

import polars as pl
import pytest
from page_elements import Elements
from web_traces import HOSTILE, training, two_ranks, written
from windows_of import unpacked

from stepscope import analyses, load_run
from stepscope.api import verbs
from stepscope.renderers import figures
from stepscope.web.pages import single_file
from stepscope.web.pages.sections import PAGES
from stepscope.web.pages.single_file import bundle, comparison_page, report_page
from stepscope.web.pages.site import static_path
from stepscope.web.timeline import drawing


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The file of `folder`'s traces."""
    return report_page(load_run(two_ranks(tmp_path_factory.mktemp("page") / "run")))


def embedded(text):
    tag = next(a for tag, a in Elements(text).elements if a.get("id") == "embedded")
    body = re.search(r'id="embedded"[^>]*>([^<]*)</script>', text).group(1)
    return json.loads(tag["data-layouts"]), [unpacked(zlib.decompress(base64.b64decode(part))) for part in body.split()]


@pytest.mark.slow
def test_it_holds_the_overview_the_pages_and_the_charts(page):
    for words in ("What costs most", "Slowest step", "Operators", "Kernels", "Memory", "Who holds it at the peak"):
        assert words in page
    figures = [a for _, a in Elements(page).elements if "data-figure" in a]
    assert len(figures) >= 4


@pytest.mark.slow
def test_nothing_is_loaded_and_every_script_and_style_is_allowed_by_its_hash(page):
    elements = Elements(page).elements
    assert not [a for _, a in elements if "src" in a or a.get("rel") == "stylesheet"]
    policy = next(a["content"] for tag, a in elements if tag == "meta" and "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    scripts = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page.partition("</head>")[0].partition("<script>")[0], re.DOTALL)
    assert len(scripts) == 2
    (packed,) = re.findall(r'id="plotly">([^<]*)</script>', page)
    plotly = zlib.decompress(base64.b64decode(packed)).decode()
    assert plotly == figures.plotly_path().read_text("utf-8")
    for text in (*scripts, plotly, *styles):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_the_timeline_is_that_of_the_slowest_step(page, folder):
    layouts, parts = embedded(page)
    assert len(layouts) == len(parts) == 2
    trace = load_run(folder / "rank0.json").open_trace(str(folder / "rank0.json"))
    header, arrays = parts[0]
    slow = trace.steps.sort("dur_ns").row(-1, named=True)
    assert header["low"] < slow["ts_ns"] < slow["ts_ns"] + slow["dur_ns"] < header["high"]
    inside = trace.spans.filter(
        (pl.col("ts_ns") < header["high"]) & (pl.col("ts_ns") + pl.col("dur_ns") > header["low"])
    )
    assert sorted(arrays["id"]) == inside["span_id"].to_list()
    assert "the slowest step, 2" in page


@pytest.mark.slow
def test_of_too_many_spans_the_short_ones_are_bars_and_that_is_said(folder, monkeypatch):
    monkeypatch.setattr(single_file, "_MOST_SPANS", 6)
    monkeypatch.setattr(drawing, "_FINEST", 8)
    text = report_page(load_run(folder))
    _, parts = embedded(text)
    assert all(arrays["bar_id"] for _, arrays in parts)
    assert "shorter spans are drawn as bars" in text


@pytest.mark.slow
def test_tracks_have_the_lanes_that_are_used_in_the_step(page):
    layouts, parts = embedded(page)
    for kept, (header, arrays) in zip(layouts, parts, strict=True):
        lanes = {track["id"]: track["lanes"] for group in kept["groups"] for track in group["tracks"]}
        assert all(group["tracks"] for group in kept["groups"])
        for track, n in lanes.items():
            assert [depth for of, depth in header["lanes"] if of == track] == list(range(n))
        assert {of for of, _ in header["lanes"]} == set(lanes)
        assert sorted(set(arrays["lane"])) == list(range(len(header["lanes"])))


def test_sampled_lines_are_in_the_timeline(page):
    layouts, parts = embedded(page)
    for kept, (header, arrays) in zip(layouts, parts, strict=True):
        assert [line["label"] for line in kept["lines"]] == ["memory allocated, cuda:0", "memory reserved, cuda:0"]
        assert len(header["before"]) == 2
        assert set(arrays["line"]) == {0, 1}
        assert max(arrays["line_max"]) == kept["lines"][1]["max"]


@pytest.mark.slow
def test_a_comparison_is_a_page_with_its_figure(folder, tmp_path):
    written(tmp_path / "slow.json", training(HOSTILE[:4], steps=6))
    base, other = load_run(folder / "rank1.json"), load_run(tmp_path / "slow.json")
    text = comparison_page(verbs.compare_report(base, other), [*base.paths, *other.paths])
    elements = Elements(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)).elements
    (figure,) = [json.loads(a["data-figure"]) for _, a in elements if "data-figure" in a]
    assert figure["layout"]["xaxis"]["ticktext"][0] == "base"
    assert "stepscope comparison</title>" in text
    assert not [tag for tag, a in elements if tag in ("img", "iframe") or "onerror" in a or "onload" in a]


@pytest.mark.slow
def test_hostile_names_stay_text(tmp_path):
    text = report_page(load_run(written(tmp_path / "t.json", training(HOSTILE))))
    elements = Elements(re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)).elements
    assert not [tag for tag, a in elements if tag in ("img", "iframe") or "onerror" in a or "onload" in a]
    assert "{{7*7}}" in text


def test_our_modules_share_no_names():
    modules = single_file._modules(True, True)
    text = bundle([name for name in modules if "export " in (static_path() / name).read_text("utf-8")])
    assert "import " not in re.sub(r"//.*", "", text).replace("import(", "")
    assert not re.search(r"^export ", text, re.MULTILINE)
    names = re.findall(r"^(?:async )?(?:function|const|let|class)\s+(\w+)", text, re.MULTILINE)
    assert sorted(names) == sorted(set(names))


def test_no_script_can_end_its_element():
    assert "</script" not in single_file._script("a = '</script>'; // <!-- x")


def test_a_recording_without_steps_is_shown_whole(tmp_path):
    from web_traces import document, event

    text = report_page(
        load_run(written(tmp_path / "t.json", document([event("aten::mm", 0, 5), event("aten::mm", 9, 5)])))
    )
    assert "the whole recording" in text


@pytest.mark.slow
def test_a_file_that_cannot_be_read_does_not_keep_the_others_out(folder):
    (folder / "rank1.json").write_text('{"traceEvents": 7}')
    text = report_page(load_run(folder))
    layouts, _ = embedded(text)
    assert len(layouts) == 1
    assert "1 file left out" in text


def test_every_table_with_a_figure_is_on_a_page():
    assert {section.table for page in PAGES.values() for section in page.sections} >= set(figures.names()) & set(
        analyses.names("trace")
    )
