from __future__ import annotations

import json

import pytest
from job_simulator import Layout, Plan, simulate
from make_ranks import write

from stepscope import exports
from stepscope.api import verbs
from stepscope.core.errors import StepscopeError
from stepscope.core.trace import Run
from stepscope.exports.chrome import EXPORT


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    job = simulate(Plan(Layout(tp=2, dp=2), steps=2, offset_sd_ns=1e6))
    path = tmp_path_factory.mktemp("job")
    write(job, path)
    return path


def merged(source, **options) -> tuple[list[dict], list[str]]:
    told: list[str] = []
    run = source if isinstance(source, Run) else verbs.load_run(source)
    content = EXPORT(run, exports.Context(verbs.load_run, told.append), **options)
    return json.loads("".join(content.pieces))["traceEvents"], told


def ends_before_it_began(events: list[dict]) -> int:
    """Exchanges that end on one rank before they begin on another."""
    calls: dict[tuple, list[tuple[float, float]]] = {}
    for event in events:
        args = event["args"] if event["ph"] == "X" and event["cat"] == "kernel" else {}
        if "Seq" in args:
            key = args["Process Group Name"], args["Seq"]
            calls.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    assert all(len(own) == 2 for own in calls.values())
    return sum(min(end for _, end in own) < max(start for start, _ in own) for own in calls.values())


def test_all_ranks_are_on_one_timeline_in_true_time(folder):
    events, told = merged(folder)
    assert told == []
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert [sum(name.startswith(f"rank {r} ") for name in names) for r in range(4)] == [2, 2, 2, 2]
    assert "rank 3 · cuda:0 SIMULATED GPU" in names
    assert min(e["ts"] for e in events) >= 0
    assert ends_before_it_began(events) == 0


def test_as_recorded_clocks_stay_off(folder):
    assert ends_before_it_began(merged(folder, as_recorded=True)[0]) > 0


def test_one_trace_begins_at_zero(folder):
    events, _ = merged(folder / "rank2.pt.trace.json.gz")
    assert min(e["ts"] for e in events if e["ph"] == "X") == 0
    assert len({e["pid"] for e in events}) == 2


def test_files_that_cannot_be_read_or_compared_are_told(folder, tmp_path, examples):
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [broken')
    lone = examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz"
    paths = [str(p) for p in (*sorted(folder.iterdir()), broken, lone)]
    events, told = merged(Run(tuple(paths), verbs.load))
    assert [note.split(": ")[0].split("/")[-1] for note in told] == [
        "broken.json is left out", "rank0.pt.trace.json.gz keeps its own clock",
    ]  # fmt: skip
    assert len({e["pid"] // 1000 for e in events}) == 5


def test_nothing_that_can_be_read_is_refused(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.json").write_text('{"traceEvents": [broken')
    with pytest.raises(StepscopeError, match="none of the traces"):
        merged(Run((str(tmp_path / "a.json"), str(tmp_path / "b.json")), verbs.load))


def test_traces_without_exchanges_keep_their_clocks(examples):
    lone = str(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")
    events, told = merged(Run((lone, lone), verbs.load))
    assert len(told) == 2
    assert {e["pid"] // 1000 for e in events} == {0, 1}


def test_from_python_it_is_text(folder):
    text = verbs.export(folder / "rank0.pt.trace.json.gz", "chrome")
    assert isinstance(text, str)
    assert json.loads(text)["traceEvents"]
