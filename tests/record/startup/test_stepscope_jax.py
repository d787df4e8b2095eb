"""Steps and times of real jobs of JAX."""

from __future__ import annotations

import polars as pl
import pytest

import stepscope

TRAIN = """
import os, sys, time, jax, jax.numpy as jnp
x = jnp.ones((64, 64))
f = jax.jit(lambda x: jnp.sin(x @ x).sum())
def step(i):
    with jax.profiler.StepTraceAnnotation("train", step_num=i):
        with jax.profiler.TraceAnnotation(f"mark {time.time_ns()}"):
            pass
        f(x).block_until_ready()
"""


@pytest.fixture
def train(record, jax_python, meta):
    """Records a job with some code after the definitions above: its issues, its process, its profiles."""

    def run(code: str, *words: str):
        done = record(*words, "--", jax_python, "-W", "ignore", "-c", TRAIN + code + "\nprint('done')")
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        found = meta(done.folder)
        codes = {issue["code"]: issue["example"] for issue in found["issues"]}
        assert not [path for path in done.folder.iterdir() if path.name.startswith(".")]
        return codes, found["processes"][0], [stepscope.load(file) for file in done.folder.glob("*.jax.trace.json.gz")]

    return run


def test_steps_that_the_job_marks_are_profiled(train):
    codes, process, (trace,) = train("for i in range(100, 112): step(i)", "--steps", "4:8")
    assert trace.steps["step"].to_list() == [4, 5, 6, 7]
    assert (process["steps"], process["step_source"]) == (8, "named ranges")
    assert (trace.meta.framework, trace.meta.framework_version) == ("JAX/XLA", process["jax"])
    names = trace.spans["name"].cast(pl.String)
    assert (names == "train").sum() == 4
    assert names.str.starts_with("PjitFunction").any()
    assert not [code for code in codes if code.startswith("profile")]


def test_trace_and_counters_share_a_clock(train):
    _, _, (trace,) = train("for i in range(40): step(i); time.sleep(0.002)", "--steps", "4:38")
    marks = trace.spans.filter(pl.col("name").cast(pl.String).str.starts_with("mark "))
    told = marks["name"].cast(pl.String).str.slice(5).cast(pl.Int64) - trace.meta.origin_unix_ns
    assert -20_000 < (marks["ts_ns"] - told).median() < 100_000
    assert trace.counters.height > 0


def test_without_marks_it_is_said_what_to_do(train):
    codes, _, traces = train("for i in range(30): f(x).block_until_ready()")
    assert traces == []
    assert "--window" in codes["profile_missing"]


def test_a_time_is_profiled_without_marks(train):
    code = """
end = int(os.environ["STEPSCOPE_RECORD_WINDOW"].split(":")[1]) * 1e-9
while time.monotonic() < end + 0.5:
    f(x).block_until_ready()
    time.sleep(0.005)
"""
    codes, _, (trace,) = train(code, "--window", "15s:15.5s")
    assert trace.spans["name"].cast(pl.String).str.starts_with("PjitFunction").sum() > 3
    assert "profile_missing" not in codes


def test_the_jobs_own_profile_comes_first(train, tmp_path):
    code = f"""
for i in range(4): step(i)
with jax.profiler.trace({str(tmp_path / "own")!r}):
    for i in range(4): step(i)
"""
    codes, _, (trace,) = train(code, "--steps", "2:20")
    assert trace.steps["step"].to_list()[:2] == [2, 3]
    assert "uses jax.profiler itself" in codes["profile_cut"]
    assert list((tmp_path / "own").rglob("*.trace.json.gz"))
