"""Steps and times of real jobs of PaddlePaddle."""

from __future__ import annotations

import polars as pl
import pytest

import stepscope

TRAIN = """
import os, sys, time, paddle
model = paddle.nn.Linear(8, 8)
class Own(paddle.optimizer.Adam):              # of a library
    def step(self): super().step()
optimizer = Own(0.01, parameters=model.parameters())
def step(loss=1.0):
    with paddle.profiler.RecordEvent(f"mark {time.time_ns()}"):
        pass
    (model(paddle.ones([2, 8])).sum() * loss).backward()
    optimizer.step()
    optimizer.clear_grad()
"""


@pytest.fixture
def train(record, paddle_python, meta):
    """Records a job with some code after the definitions above: its issues, its process, its profiles."""

    def run(code: str, *words: str):
        done = record(*words, "--", paddle_python, "-W", "ignore", "-c", TRAIN + code + "\nprint('done')")
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
        found = meta(done.folder)
        codes = {issue["code"]: issue["example"] for issue in found["issues"]}
        return codes, found["processes"][0], [stepscope.load(file) for file in done.folder.glob("*.paddle_trace.pb.gz")]

    return run


def test_steps_are_found_and_the_wanted_ones_profiled(train):
    codes, process, (trace,) = train("for _ in range(12): step()", "--steps", "4:8")
    assert trace.steps["step"].to_list() == [4, 5, 6, 7]
    assert (process["steps"], process["step_source"]) == (12, "optimizer steps")
    assert trace.meta.framework == "PaddlePaddle"
    assert (trace.spans["name"].cast(pl.String) == "adam_ dygraph").sum() == 8  # two parameters
    assert not [code for code in codes if code.startswith("profile")]


def test_trace_and_counters_share_a_clock(train):
    _, _, (trace,) = train("for _ in range(40): step(); time.sleep(0.002)", "--steps", "4:38")
    marks = trace.spans.filter(pl.col("name").cast(pl.String).str.starts_with("mark "))
    told = marks["name"].cast(pl.String).str.slice(5).cast(pl.Int64) - trace.meta.origin_unix_ns
    assert -20_000 < (marks["ts_ns"] - told).median() < 100_000
    assert trace.counters.height > 0


def test_steps_through_a_scaler_are_steps(train):
    code = """
scaler = paddle.amp.GradScaler(init_loss_scaling=4.0)
optimizer = paddle.optimizer.SGD(0.01, parameters=model.parameters())
for i in range(8):
    scaler.scale(model(paddle.ones([2, 8])).sum() * (float("inf") if i in (3, 4) else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.clear_grad()
"""
    _, process, (trace,) = train(code, "--steps", "2:6")
    assert process["steps"] == 8
    assert trace.steps["step"].to_list() == [2, 3, 4, 5]


def test_the_jobs_own_profiler_comes_first(train):
    code = """
for _ in range(4): step()
profiler = paddle.profiler.Profiler(on_trace_ready=lambda _: None)
profiler.start()
for _ in range(4): step()
profiler.stop()
assert profiler.profiler_result is not None
"""
    codes, _, (trace,) = train(code, "--steps", "2:20")
    assert trace.steps["step"].to_list()[:2] == [2, 3]
    assert "uses paddle.profiler itself" in codes["profile_cut"]


def test_a_time_is_profiled(train):
    code = """
end = int(os.environ["STEPSCOPE_RECORD_WINDOW"].split(":")[1]) * 1e-9
w = paddle.ones([8, 8])
while time.monotonic() < end + 0.5:
    w = w @ w / 8
    time.sleep(0.005)
"""
    codes, process, (trace,) = train(code, "--window", "15s:15.5s")
    assert (trace.spans["name"].cast(pl.String) == "matmul dygraph").sum() > 3
    assert process["steps"] == 0
    assert "profile_missing" not in codes
