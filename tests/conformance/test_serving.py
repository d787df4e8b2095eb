"""Decode and prefill of vLLM that LatencyPrism published, read as batches: what the law of durations knows."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stepscope.analyses.steps.batches import expected_ns, law_of

SENTINEL = Path(__file__).parents[3] / "shared" / "data" / "sentinel"
CYCLES = SENTINEL / "normal_vllm.csv.gz"
pytestmark = pytest.mark.skipif(not CYCLES.exists(), reason="needs shared/data/sentinel")
TERMS = {
    "decode": ("n_requests", "kv_tokens"),
    "mixed": ("n_requests", "n_tokens", "kv_tokens"),
    "prefill": ("n_requests", "n_tokens"),
    "empty": (),
}


def _stated(field: str) -> pl.Expr:
    """A number that the name of a workload states, as in in128_out512_conc4."""
    return pl.col("job_name").str.extract(rf"{field}(\d+)").cast(pl.Int64)


def _nothing_is_left(size: str, output: str) -> pl.Expr:
    """Whether no model can run: as many requests as the workload has at once have all of their tokens."""
    return (pl.col(output) >= _stated("out")) & (pl.col(size) >= _stated("conc"))


def _batches() -> pl.DataFrame:
    """A row per batch. Which requests came and went follows from the number of requests and the mean of tokens."""
    size, output = pl.col("batch_size"), pl.col("avg_output_length")
    total = size * output
    before = {name: one.shift().over("job_name") for name, one in (("size", size), ("total", total))}
    left = (before["total"] + size - total) / pl.col("max_output_length").shift().over("job_name")
    came = (size - before["size"] + left.round().clip(0)).clip(0)
    steady = (size == before["size"]) & ((total - before["total"] - size).abs() < 0.02 * size)
    rows = pl.read_csv(CYCLES).sort("job_name", "start_ts", maintain_order=True)
    rows = rows.with_columns(came=pl.when(steady).then(0.0).otherwise(came).fill_null(0.0))
    is_prefill = pl.col("came") >= size
    kind = pl.when(pl.col("came") == 0).then(pl.lit("decode")).when(is_prefill).then(pl.lit("prefill"))
    return rows.select(
        workload=pl.col("job_name").str.split("_conc").list.first(),
        kind=pl.when(_nothing_is_left("batch_size", "avg_output_length")).then(pl.lit("empty"))
        .otherwise(kind.otherwise(pl.lit("mixed"))),
        dur_ns=pl.col("duration_us") * 1e3,
        n_requests=size,
        n_tokens=pl.col("came") * pl.col("avg_input_length"),
        kv_tokens=size * (pl.col("avg_input_length") + output),
    )  # fmt: skip


def test_the_law_of_durations_holds_for_workloads_that_it_was_not_fitted_to() -> None:
    batches, errors = _batches(), []
    for (workload, kind), part in batches.partition_by("workload", "kind", as_dict=True).items():
        others = batches.filter((pl.col("workload") != workload) & (pl.col("kind") == kind))
        terms = TERMS[str(kind)]
        expected = expected_ns(part, terms, law_of(others, terms))
        errors.append(part.select("kind", "dur_ns", error=(pl.Series(expected) / pl.col("dur_ns") - 1).abs()))
    found = pl.concat(errors)
    assert found.height == 24_546  # every batch counts
    assert found["error"].mean() < 0.07
    assert found["error"].median() < 0.035
    of_kind = dict(found.group_by("kind").agg(pl.col("error").mean()).iter_rows())
    assert of_kind["decode"] < 0.05
    assert of_kind["empty"] < 0.5
    # What the file does not say: in which batch a prompt was read. Some mixed batches took 370 ms, others 45 ms.
    assert 0.25 < of_kind["mixed"] < 0.4


def test_what_a_workload_states_tells_the_batches_that_ran_no_model() -> None:
    """No duration is used. Without the rule, a law that expects 31 ms of ten batches of 0.2 to 1 ms is off by 4 %."""
    batches = _batches()
    empty = batches.filter(pl.col("kind") == "empty")
    assert (empty.height, empty["dur_ns"].max() < 1e6) == (10, True)
    assert batches.filter(pl.col("kind") != "empty")["dur_ns"].min() > 29e6
    other = pl.read_csv(SENTINEL / "abnormal_sglang.csv", null_values="N/A")
    assert other.filter(_nothing_is_left("post_batch_size", "post_avg_output_length")).is_empty()
