from __future__ import annotations

import sys

import make_ranks
import pytest
from job_simulator import Fault, Layout, Plan, simulate, tables

from stepscope import load_run, show
from stepscope.analyses.ranks.calls import rank_calls


@pytest.mark.slow
def test_the_files_say_what_the_tables_say(tmp_path):
    late = Fault("late", rank=5, amount_ns=1e6)
    job = simulate(Plan(Layout(tp=2, dp=4), steps=8, offset_sd_ns=1e6, faults=(late,)))
    make_ranks.write(job, tmp_path)
    read = sorted((rank_calls(trace) for trace in load_run(tmp_path)), key=lambda p: p.rank)
    for part, expected in zip(read, tables(job), strict=True):
        for column in ("kind", "seq", "step", "in_bytes"):
            assert part.calls[column].cast(str).to_list() == expected.calls[column].cast(str).to_list()
        apart = (part.calls["end_ns"] - part.calls["start_ns"]) - (
            expected.calls["end_ns"] - expected.calls["start_ns"]
        )
        assert apart.abs().max() <= 2
        assert {c.members for c in part.comms} == {c.members for c in expected.comms}
    found = show(tmp_path, "stragglers")
    assert found["rank"].to_list() == [5]
    assert found["lateness_ns"][0] == pytest.approx(job.injected_ns[5], rel=0.1)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("option", "cause"),
    [(("--compute", "5:1000"), "compute"), (("--data", "5:9000"), "data loading"), (("--clock", "5:0.2"), "clock"),
     (("--late", "5:1000"), "host"), (("--link", "5:1.0"), "network")],
)  # fmt: skip
def test_the_command_writes_jobs_with_faults(tmp_path, monkeypatch, option, cause):
    words = ["make_ranks.py", str(tmp_path), "--tp", "4", "--dp", "4", "--steps", "8", *option]
    monkeypatch.setattr(sys, "argv", words)
    make_ranks.main()
    assert show(tmp_path, "stragglers").select("rank", "cause").rows() == [(5, cause)]


def test_only_some_ranks_and_larger_files(tmp_path, monkeypatch):
    words = [
        "make_ranks.py",
        str(tmp_path),
        "--tp",
        "4",
        "--dp",
        "4",
        "--steps",
        "2",
        "--ranks",
        "3-4",
        "--filler",
        "50",
    ]
    monkeypatch.setattr(sys, "argv", words)
    make_ranks.main()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank3.pt.trace.json.gz", "rank4.pt.trace.json.gz"]
    traces = list(load_run(tmp_path))
    assert all(t.spans.height > 50 * 20 for t in traces)
