"""A time window of real jobs of PyTorch: loops with and without steps, threads, several processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.record.startup import _stepscope_frameworks

#: Each function is a job of its own, in a forked child that tells its number as RANK.
JOBS = """
import os, sys, threading, time, torch
torch.set_num_threads(1)
x = torch.ones(8, 16)
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
start, end = (int(ns) * 1e-9 for ns in os.environ["STEPSCOPE_RECORD_WINDOW"].split(":"))
assert time.monotonic() < start - 1, "too slow a machine"

def until(moment):
    while time.monotonic() < moment:
        yield
        time.sleep(0.002)

def training():
    for _ in until(end + 1):
        model(x).sum().backward()
        optimizer.step()

def raw():
    w = torch.ones(16, 16, requires_grad=True)
    for _ in until(end + 1):
        (x @ w).sum().backward()

def serve(moment):
    def loop():
        with torch.inference_mode():
            for _ in until(moment):
                model(x)
    thread = threading.Thread(target=loop)
    thread.start()
    thread.join()
    assert threading.active_count() == 1

def threads(): serve(end + 1)
def thread_ends(): serve(start + 0.3)

def thread_waits():
    def loop():
        for _ in until(start + 0.3):
            model(x)
        threading.Event().wait()
    threading.Thread(target=loop, daemon=True).start()
    time.sleep(end + 0.5 - time.monotonic())

def ends():
    for _ in until(start + 0.3):
        model(x)

def idle():
    for _ in until(end + 1):
        pass

def own():
    for _ in until(start + 0.3):
        model(x)
    with torch.profiler.profile() as profiler:
        model(x)
    assert any(event.key == "aten::addmm" for event in profiler.key_averages())

children = {}
for number, job in enumerate((training, raw, threads, thread_ends, thread_waits, ends, idle, own)):
    pid = os.fork()
    if not pid:
        os.environ["RANK"] = str(number)
        job()
        sys.exit()
    children[job.__name__] = pid
for name, pid in children.items():
    assert os.waitpid(pid, 0)[1] == 0, name
print(time.time() - (time.monotonic() - start))
print(*(f"{name}={pid}" for name, pid in children.items()))
"""


@pytest.fixture(scope="module")
def window(torch_python) -> tuple[float, float]:
    """A time after the start, in s, at which torch will have been imported, however busy the machine is."""
    began = time.monotonic()
    subprocess.run([torch_python, "-c", "import torch, torch._dynamo"], check=True)
    start = round(2 + 2 * (time.monotonic() - began), 1)
    return start, start + 0.6


@pytest.fixture(scope="module")
def recorded(window, torch_python, tmp_path_factory):
    """All jobs above in one recording: for each its profile or None, and its issues; and meta.json."""
    folder = tmp_path_factory.mktemp("window") / "run"
    command = [sys.executable, "-m", "stepscope", "record", "-o", str(folder), "--window", "{}s:{}s".format(*window)]
    environment = {"PYTHONPATH": str(Path(__file__).parents[3] / "src"), "PATH": "/usr/bin:/bin"}
    command += ["--", torch_python, "-c", JOBS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    # Of a profile on a thread other than the main one torch itself says something.
    said = ("ERROR: External init callback must run in same thread", "Leaked callback handle", "no active profiling")
    assert [line for line in done.stderr.splitlines() if not any(words in line for words in said)] == []
    meta = json.loads((folder / "meta.json").read_text())
    jobs = {}
    began, *words = done.stdout.split()
    meta["window_began"] = float(began)
    for number, word in enumerate(words):
        name, pid = word.split("=")
        file = folder / f"rank{number}.pt.trace.json.gz"
        trace = stepscope.load(file) if file.exists() else None
        jobs[name] = trace, {each["code"]: each["example"] for each in meta["issues"] if each.get("pid") == int(pid)}
    return jobs, meta


def names(trace) -> pl.Series:
    return trace.spans["name"].cast(pl.String)


def times(recorded, job: str, name: str) -> tuple[float, float]:
    """When operators of a name began first and last, in s after the window's begin."""
    jobs, meta = recorded
    trace, _ = jobs[job]
    spans = trace.spans.filter(names(trace) == name)
    start = trace.meta.origin_unix_ns - int(meta["window_began"] * 1e9)
    return (spans["ts_ns"].min() + start) * 1e-9, (spans["ts_ns"].max() + start) * 1e-9


@pytest.mark.parametrize(
    ("job", "name"), [("training", "aten::addmm"), ("raw", "aten::mm"), ("threads", "aten::addmm")]
)
def test_the_time_that_was_asked_for_is_profiled(recorded, job, name):
    first, last = times(recorded, job, name)
    assert 0 <= first < 0.5 < last < 1.5
    assert recorded[0][job][1] == {}


def test_training_is_profiled_in_whole_steps(recorded):
    trace, _ = recorded[0]["training"]
    assert trace.steps.height > 10
    assert trace.steps["step"].diff().drop_nulls().unique().to_list() == [1]
    found = trace.spans.filter(names(trace) == "aten::addmm")["step"].drop_nulls().value_counts()["count"]
    assert found.unique().to_list() == [1]


def test_a_thread_that_ends_in_the_window_is_told(recorded):
    trace, issues = recorded[0]["thread_ends"]
    assert (names(trace) == "aten::addmm").sum() > 3
    assert "the thread that was profiled ended" in issues["profile_short"]


def test_a_thread_that_is_not_heard_of_again_is_told(recorded):
    trace, issues = recorded[0]["thread_waits"]
    assert trace is None
    assert "reached no point" in issues["profile_failed"]


def test_a_job_that_ends_in_the_window_leaves_what_it_had(recorded):
    trace, issues = recorded[0]["ends"]
    assert (names(trace) == "aten::addmm").sum() > 3
    assert "before the window did" in issues["profile_short"]


def test_a_process_that_does_nothing_leaves_no_profile(recorded):
    assert recorded[0]["idle"] == (None, {})


def test_a_job_that_uses_the_profiler_in_the_window_gets_it(recorded):
    trace, issues = recorded[0]["own"]
    assert trace is not None
    assert "ours ended" in issues["profile_cut"]


def test_what_was_asked_for_is_in_meta_json(recorded, window):
    _, meta = recorded
    assert (meta["profiled_window_s"], meta["profiled_steps"]) == (pytest.approx(list(window), abs=1e-9), None)


RANKS = """
import os, sys, time, torch
import torch.distributed as dist
dist.init_process_group("gloo")
from torch.distributed.optim import ZeroRedundancyOptimizer
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 16))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
end = int(os.environ["STEPSCOPE_RECORD_WINDOW"].split(":")[1]) * 1e-9
goes_on = torch.ones(1)
while goes_on:
    model(torch.ones(8, 16)).sum().backward()
    optimizer.step()
    time.sleep(0.01)
    goes_on[0] = time.monotonic() < end + 1
    dist.broadcast(goes_on, 0)
dist.destroy_process_group()
"""


def test_ranks_are_profiled_and_their_launcher_is_not(record, torch_python, tmp_path, meta, window):
    script = tmp_path / "job.py"
    script.write_text(RANKS)
    launch = [torch_python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = record("--window", f"{3 * window[0]}s:{3 * window[0] + 1}s", "--", *launch)
    assert done.returncode == 0
    run = stepscope.load_run(done.folder)
    assert [trace.rank for trace in run] == [0, 1]
    assert all(trace.steps.height > 3 for trace in run)
    # The optimizer that each rank has for its part of the parameters steps inside of the one for all.
    assert all(
        process["step_source"] == "optimizer steps" for process in meta(done.folder)["processes"] if "rank" in process
    )


CHILDREN = """
import os, time, torch
import torch.multiprocessing as mp
class Data(torch.utils.data.Dataset):
    def __init__(self): self.model = torch.nn.Linear(16, 16)
    def __len__(self): return 64
    def __getitem__(self, i): return self.model(torch.ones(16)).detach()
def train(rank):
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    os.environ["RANK"] = str(rank)
    loader = torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1)
    for batch in loader:
        model(batch).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    children = [mp.get_context(how).Process(target=train, args=(i,)) for i, how in enumerate(("fork", "spawn"))]
    for child in children: child.start()
    for child in children: child.join()
    assert [child.exitcode for child in children] == [0, 0]
"""


def test_children_of_multiprocessing_are_profiled_and_those_that_load_data_are_not(
    record, torch_python, tmp_path, meta
):
    script = tmp_path / "job.py"
    script.write_text(CHILDREN)
    # They end before step 100: what there is is written as multiprocessing ends them.
    done = record("--steps", "2:100", "--", torch_python, str(script))
    assert (done.returncode, done.stderr) == (0, "")
    run = stepscope.load_run(done.folder)
    assert [(trace.rank, trace.steps["step"].to_list()[:5]) for trace in run] == [
        (0, [2, 3, 4, 5, 6]),
        (1, [2, 3, 4, 5, 6]),
    ]
    codes = [issue["code"] for issue in meta(done.folder)["issues"] if issue["code"].startswith("profile")]
    assert codes == ["profile_short", "profile_short"]


class FakeProfile:
    """Waits until it has been asked some times."""

    def __init__(self, n: int) -> None:
        self.left = n
        self.is_timed = True

    def waits(self) -> bool:
        return self.left > 0

    def ask(self) -> None:
        self.left -= 1
        self.is_timed = self.left > 0


def test_the_main_thread_asks_between_two_instructions():
    profile = FakeProfile(3)
    _stepscope_frameworks._run_clock(profile, 0, _stepscope_frameworks._on_main_thread(profile))
    while profile.is_timed:
        pass


def test_inside_of_an_import_it_is_not_asked():
    profile = FakeProfile(1)
    ask = _stepscope_frameworks._on_main_thread(profile)

    def __torch_dispatch__() -> None:  # noqa: N807  as torch calls it
        ask()
        for _ in range(1000):
            pass

    __torch_dispatch__()
    assert profile.is_timed
    ask()
    for _ in range(1000):
        pass
    assert not profile.is_timed
