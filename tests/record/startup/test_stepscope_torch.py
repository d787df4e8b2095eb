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
    assert trace.allocations.is_empty()
    (process,) = meta(done.folder)["processes"]
    assert process["steps"] == 12
    assert process["torch"].startswith("2.")
    assert process["pid"] in trace.counters["pid"].to_list()
    assert not [code for code in codes(meta(done.folder)) if code.startswith("profile")]


def test_what_tensors_hold_is_told_if_that_is_wanted(train):
    code = "held = []\nfor _ in range(8):\n    step()\n    held.append(torch.ones(1 << 18))"
    told = train(code, "--steps", "2:7", "--memory", RANK="0").folder / "rank0.pt.trace.json.gz"
    (growth,) = stepscope.show(told, "memory")["growth_bytes_per_step"].to_list()
    assert growth == pytest.approx(1 << 20, rel=0.01)


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


def test_a_slow_step_is_dumped_with_a_profile_of_the_next_ones(train, meta):
    code = """
for i in range(120):
    time.sleep(0.3 if i == 60 else 0.02)
    step()
time.sleep(1.5)
"""
    done = train(code, "--steps", "2:5", "--trigger", "3x", "--keep", "30s")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    dumps = sorted(path.name for path in done.folder.glob("dump-*"))
    # On a busy machine others may be as slow.
    found = next(each for each in meta(done.folder)["dumps"] if each["step"] == 60)
    assert found["folder"] in dumps
    assert found["step_ns"] > 3 * found["median_ns"] > 0
    folder = done.folder / found["folder"]
    [trace] = stepscope.load_run(folder)
    assert trace.meta.format == "kineto"
    first = trace.steps["step"][0]
    assert trace.steps["step"].to_list() == [first, first + 1, first + 2]
    assert 60 < first < 110
    assert "step 60 of process" in codes(meta(folder))["slow_step"]
    # Its counters reach back to the slow step, which ended before the profile begins.
    unix_ns = trace.counters["ts_ns"] + trace.meta.origin_unix_ns
    assert unix_ns.min() < found["unix_ns"] - found["step_ns"]
    assert unix_ns.max() > found["unix_ns"]
    [whole] = stepscope.load_run(done.folder)
    assert whole.steps["step"].to_list() == [2, 3, 4]
    assert not list(done.folder.rglob(".*"))


def test_without_a_profiler_slow_steps_are_dumped_all_the_same(train, meta):
    done = train("for i in range(40): time.sleep(0.5 if i == 30 else 0.01); step()", "--no-profiler", "--trigger", "5x")
    steps = [dump["step"] for dump in meta(done.folder)["dumps"]]
    assert 30 in steps
    [trace] = stepscope.load_run(done.folder / meta(done.folder)["dumps"][steps.index(30)]["folder"])
    assert trace.meta.format == "counters"
    assert not list(done.folder.rglob("*.pt.trace.json.gz"))


def test_a_slow_step_of_one_rank_has_all_ranks_profiled(record, torch_python, tmp_path, meta):
    script = tmp_path / "ddp.py"
    script.write_text("""
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for i in range(80):
    time.sleep(0.02)
    if i == 40 and os.environ["RANK"] == "1": time.sleep(1)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
""")
    launch = [torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = record("--steps", "2:4", "--trigger", "8x", "--", *launch)
    assert done.returncode == 0
    found = next(dump for dump in meta(done.folder)["dumps"] if dump["step"] == 40)
    run = stepscope.load_run(done.folder / found["folder"])
    assert [(trace.rank, trace.steps.height) for trace in run] == [(0, 2), (1, 2)]
    assert len({tuple(trace.steps["step"]) for trace in run}) == 1


def test_a_job_that_profiles_itself_is_left_alone_by_dumps_too(train, meta, tmp_path):
    own = tmp_path / "own.json"
    code = f"""
for _ in range(30): time.sleep(0.01); step()
with torch.profiler.profile() as profiler:
    time.sleep(0.5); step()
    for _ in range(12): time.sleep(0.01); step()
profiler.export_chrome_trace({str(own)!r})
"""
    done = train(code, "--steps", "2:4", "--trigger", "5x")
    assert (done.returncode, "mark" in own.read_text()) == (0, True)
    assert "itself" in codes(meta(done.folder))["profile_left_out"]
    assert not list(done.folder.glob("dump-*/*.pt.trace.json.gz"))
