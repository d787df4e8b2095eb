from __future__ import annotations

import json
import os

import polars as pl
import pytest

import stepscope

TRAIN = """
import os, sys, time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
first, second = (torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters()))
def step():
    mark = time.time_ns()
    with torch.profiler.record_function(f"mark {mark}"):
        pass
    model(torch.ones(8, 64)).sum().backward()
    first.step()
    second.step()
"""


@pytest.fixture
def train(record, torch_python):
    """Records a job of torch with some code after the definitions above."""

    def run(code: str, *words: str, **environment: str):
        env = {**os.environ, **environment}
        return record(*words, "--", torch_python, "-c", TRAIN + code, env=env)

    return run


def codes(meta) -> dict[str, str]:
    return {issue["code"]: issue["example"] for issue in meta["issues"]}


def test_steps_are_found_and_the_wanted_ones_profiled(train, meta):
    done = train("for _ in range(12): step()\nprint('done')", "--steps", "3:7", RANK="2")
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
    assert {path.name for path in done.folder.iterdir()} == {
        "meta.json", "counters.csv.gz", "rank2.pt.trace.json.gz",
    }  # fmt: skip
    trace = stepscope.load(done.folder / "rank2.pt.trace.json.gz")
    assert trace.steps["step"].to_list() == [3, 4, 5, 6]
    names = trace.spans["name"].cast(pl.String)
    assert names.str.starts_with("Optimizer.step#SGD").sum() == 4
    assert trace.ops["input_shapes"].drop_nulls().len() > 0
    (process,) = meta(done.folder)["processes"]
    assert process["steps"] == 12
    assert process["torch"].startswith("2.")
    assert process["pid"] in trace.counters["pid"].to_list()
    assert not [code for code in codes(meta(done.folder)) if code.startswith("profile")]


def test_trace_and_counters_share_a_clock_to_100_us(train):
    done = train("for _ in range(60): step(); time.sleep(0.002)", "--steps", "5:55")
    trace = stepscope.load(next(done.folder.glob("*.pt.trace.json.gz")))
    marks = trace.spans.filter(pl.col("name").cast(pl.String).str.starts_with("mark "))
    told = marks["name"].cast(pl.String).str.slice(5).cast(pl.Int64) - trace.meta.origin_unix_ns
    # The mark is taken just before the range begins: what is between them is the job's own time.
    late = (marks["ts_ns"] - told).sort()
    assert -20_000 < late.median() < 100_000
    assert trace.counters.height > 0


def test_a_job_that_ends_early_leaves_what_it_had(train, meta):
    done = train("for _ in range(5): step()", "--steps", "2:50")
    trace = stepscope.load(next(done.folder.glob("pid*.pt.trace.json.gz")))
    assert trace.steps["step"].to_list()[:3] == [2, 3, 4]
    assert "before step 50" in codes(meta(done.folder))["profile_short"]


def test_a_job_of_too_few_steps_says_so(train, meta):
    done = train("step()", "--steps", "2:50")
    assert not list(done.folder.glob("*.pt.trace.json.gz"))
    assert "after 1 (optimizer steps)" in codes(meta(done.folder))["profile_missing"]


def test_a_job_that_profiles_itself_is_left_alone(train, meta, tmp_path):
    own = tmp_path / "own.json"
    code = f"""
with torch.profiler.profile() as profiler:
    for _ in range(6): step()
profiler.export_chrome_trace({str(own)!r})
"""
    done = train(code, "--steps", "2:4")
    assert done.returncode == 0
    assert "mark" in own.read_text()
    assert not list(done.folder.glob("*.pt.trace.json.gz"))
    assert "itself" in codes(meta(done.folder))["profile_left_out"]


def test_a_job_that_begins_to_profile_itself_gets_its_profiler(train, meta, tmp_path):
    own = tmp_path / "own.json"
    code = f"""
for _ in range(5): step()
with torch.profiler.profile() as profiler:
    step()
profiler.export_chrome_trace({str(own)!r})
"""
    done = train(code, "--steps", "2:50")
    assert (done.returncode, json.loads(own.read_text())["traceEvents"] != []) == (0, True)
    trace = stepscope.load(next(done.folder.glob("pid*.pt.trace.json.gz")))
    assert trace.steps["step"].to_list()[:3] == [2, 3, 4]
    assert "ended at step 5" in codes(meta(done.folder))["profile_cut"]


def test_forked_children_train_and_profile_for_themselves(train):
    code = """
pid = os.fork()
for _ in range(6): step()
if pid:
    os.waitpid(pid, 0)
"""
    done = train(code, "--steps", "2:4")
    assert done.returncode == 0
    assert len(list(done.folder.glob("pid*.pt.trace.json.gz"))) == 2


def test_without_the_profiler_there_is_none(train):
    done = train("for _ in range(4): step()", "--no-profiler")
    assert not list(done.folder.glob("*.pt.trace.json.gz"))


def test_ranks_of_torchrun_are_profiled_each(record, torch_python, tmp_path):
    script = tmp_path / "ddp.py"
    script.write_text("""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
""")
    launch = [torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = record("--steps", "2:4", "--", *launch)
    assert done.returncode == 0
    run = stepscope.load_run(done.folder)
    assert [(trace.rank, trace.steps["step"].to_list()) for trace in run] == [(0, [2, 3]), (1, [2, 3])]
