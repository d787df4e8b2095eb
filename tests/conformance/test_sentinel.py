"""Decode cycles that LatencyPrism published: of vLLM, as workloads not learned; of SGLang, after their healthy part."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepscope.watching.expected_time import Expectation, ExpectedTime, observe
from stepscope.watching.streams import Cycles, Stream, follow

CYCLES = Path(__file__).parents[3] / "shared" / "data" / "sentinel" / "normal_vllm.csv.gz"
pytestmark = pytest.mark.skipif(not CYCLES.exists(), reason="needs shared/data/sentinel")
LEAST, SLOW_CYCLES = 40, 20
#: Half of a slowdown of 10 %. It was chosen from the effect and not from the data.
WINDOW_LIMIT = np.log(1.1) / 2


@cache
def _decode_jobs() -> tuple[pl.DataFrame, ...]:
    """A table a job: cycles in which each request gets one token, not right after a request came or went."""
    frame = pl.read_csv(CYCLES).sort("job_name", "start_ts", maintain_order=True)
    size, output = pl.col("batch_size"), pl.col("avg_output_length")
    other = (size.diff() != 0) | ((output.diff() - 1).abs() > 0.02)
    frame = frame.with_columns(other=other.over("job_name").fill_null(value=True))
    decode = frame.filter(~pl.col("other") & ~pl.col("other").shift(1, fill_value=True))
    return tuple(job for job in decode.partition_by("job_name", maintain_order=True) if job.height >= LEAST)


def _workload(job: pl.DataFrame) -> str:
    return str(job["job_name"][0]).split("_conc")[0]


def _observe(
    model: ExpectedTime, job: pl.DataFrame, slower: np.ndarray | float = 1.0
) -> tuple[Expectation, ExpectedTime]:
    context = (job["avg_input_length"] + job["avg_output_length"]).to_numpy()
    duration = job["duration_us"].to_numpy() * 1e3 * slower
    return observe(model.new_stream(), duration, job["batch_size"].cast(pl.Float64).to_numpy(), context)


@cache
def _without(workload: str) -> ExpectedTime:
    model = ExpectedTime()
    for job in _decode_jobs():
        if _workload(job) != workload:
            _, model = _observe(model, job)
    return model


def test_expected_time_of_workloads_left_out() -> None:
    rows = [_observe(_without(_workload(job)), job)[0] for job in _decode_jobs()]
    error = np.concatenate([row.error for row in rows])
    known = ~np.isnan(error)
    duration = np.concatenate([job["duration_us"].to_numpy() * 1e3 for job in _decode_jobs()])
    low, high = (np.concatenate([getattr(row, end) for row in rows]) for end in ("low", "high"))
    inside = (duration >= low) & (duration <= high)
    assert known.sum() > 19_000
    assert np.median(np.abs(error[known])) < 0.006
    assert 0.98 <= inside[known].mean() <= 0.995


def test_ten_percent_slower_for_twenty_cycles() -> None:
    rng = np.random.default_rng(0)
    right = wrong = missed = 0
    for job in _decode_jobs():
        model = _without(_workload(job))
        error = _observe(model, job)[0].error
        error = error[~np.isnan(error)]
        windows = error[: len(error) // SLOW_CYCLES * SLOW_CYCLES].reshape(-1, SLOW_CYCLES)
        wrong += int((np.median(windows, axis=1) > WINDOW_LIMIT).sum())
        start = int(rng.integers(15, job.height - SLOW_CYCLES))
        slower = np.where((np.arange(job.height) - start) // SLOW_CYCLES == 0, 1.1, 1.0)
        level = np.median(_observe(model, job, slower)[0].error[start : start + SLOW_CYCLES])
        right, missed = right + int(level > WINDOW_LIMIT), missed + int(level <= WINDOW_LIMIT)
    assert 2 * right / (2 * right + wrong + missed) >= 0.98, (right, wrong, missed)


#: The false alarms that are chosen in a cycle, and the smallest slowdown that is worth an alarm.
RATE, LEAST_SLOWDOWN = 1e-4, 0.05


def _follow(stream: Stream, job: pl.DataFrame, epoch: int, slower: np.ndarray | float = 1.0) -> tuple[Stream, list]:
    """The stream and its alarms after a job's cycles, 32 at a time as they would come in a second."""
    times = np.round(job["duration_us"].to_numpy() * 1e3 * slower).astype(int).tolist()
    work = job.select(
        pl.col("batch_size").cast(float), context=pl.col("avg_input_length") + pl.col("avg_output_length")
    )
    rows, alarms = [(*row, 0.0) for row in work.iter_rows()], []
    for start in range(0, len(times), 32):
        part = slice(start, start + 32)
        n = len(times[part])
        new = Cycles("engine", epoch, start + n, tuple(times[part]), (1,) * n, tuple(rows[part]), 1.0)
        stream, more, _ = follow(stream, new, RATE, LEAST_SLOWDOWN)
        alarms += [(alarm.kind, start + alarm.cycle) for alarm in more]
    return stream, alarms


@cache
def _watched_without(workload: str) -> Stream:
    stream = Stream()
    for epoch, job in enumerate(_decode_jobs(), 1):
        if _workload(job) != workload:
            stream, _ = _follow(stream, job, epoch)
    return stream


@pytest.mark.parametrize("passes", [0, 1, 5])
def test_abnormal_cycles_of_sglang_are_told_after_their_own_healthy_part(passes: int) -> None:
    """135 cycles of about 151 ms, then ten of 400 to 669 ms with a batch that is one smaller."""
    rows = pl.read_csv(CYCLES.with_name("abnormal_sglang.csv"), null_values="N/A").sort("job_name", "start_ts")
    decode = rows.filter(
        pl.col("job_name") == pl.lit("in256_out256_conc16"), pl.col("compute_forward_mode") == 2
    ).rename({f"compute_{name}": name for name in ("batch_size", "avg_input_length", "avg_output_length")})
    healthy, stream = decode.head(135), Stream()
    for epoch in range(passes):
        stream, alarms = _follow(stream, healthy, epoch)
        assert alarms == []
    stream, alarms = _follow(stream, decode, passes)
    first = decode["duration_us"].to_numpy()[135:] > 400_000
    assert alarms == [("stall", 135 + int(np.argmax(first)))]


def _f1(right: int, wrong: int, missed: int) -> float:
    return 2 * right / (2 * right + wrong + missed)


@pytest.mark.slow
def test_the_watch_itself_tells_slow_windows_and_single_stalls_of_workloads_left_out() -> None:
    """The two alarms on 20,859 normal cycles are single ones that take 60 and 62 % longer than those around them."""
    rng = np.random.default_rng(0)
    told, wrong = Counter[str](), Counter[str]()
    jobs = _decode_jobs()
    for i, job in enumerate(jobs):
        stream, at = _watched_without(_workload(job)), np.arange(job.height)
        wrong.update(kind for kind, _ in _follow(stream, job, 1000 + i)[1])
        start = int(rng.integers(15, job.height - SLOW_CYCLES))
        is_slow = (at >= start) & (at < start + SLOW_CYCLES)
        alarms = _follow(stream, job, 1000 + i, np.where(is_slow, 1.1, 1.0))[1]
        told["slow"] += any(kind == "slow" and is_slow[cycle] for kind, cycle in alarms)
        stall = int(rng.integers(15, job.height))
        alarms = _follow(stream, job, 1000 + i, np.where(at == stall, 1.5, 1.0))[1]
        told["stall"] += ("stall", stall) in alarms
    assert wrong.total() <= 2, wrong
    assert wrong.total() <= 1e-4 * sum(job.height for job in jobs)
    assert _f1(told["slow"], wrong["slow"], len(jobs) - told["slow"]) >= 0.98
    assert _f1(told["stall"], wrong["stall"], len(jobs) - told["stall"]) >= 0.95
