"""Decode and prefill of vLLM that LatencyPrism published, read as batches: what the law of durations knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from stepscope.analyses.steps.batches import expected_ns, is_empty, law_of

CYCLES = Path(__file__).parents[3] / "shared" / "data" / "sentinel" / "normal_vllm.csv.gz"
pytestmark = pytest.mark.skipif(not CYCLES.exists(), reason="needs shared/data/sentinel")
TERMS = {
    "decode": ("n_requests", "kv_tokens"),
    "mixed": ("n_requests", "n_tokens", "kv_tokens"),
    "prefill": ("n_requests", "n_tokens"),
}


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
    return rows.select(
        workload=pl.col("job_name").str.split("_conc").list.first(),
        kind=pl.when(pl.col("came") == 0).then(pl.lit("decode")).when(is_prefill).then(pl.lit("prefill"))
        .otherwise(pl.lit("mixed")),
        dur_ns=pl.col("duration_us") * 1e3,
        n_requests=size,
        n_tokens=pl.col("came") * pl.col("avg_input_length"),
        kv_tokens=size * (pl.col("avg_input_length") + output),
    )  # fmt: skip


def test_the_law_of_durations_holds_for_workloads_that_it_was_not_fitted_to() -> None:
    batches, ratios, durations, kinds = _batches(), [], [], []
    for (workload, kind), part in batches.partition_by("workload", "kind", as_dict=True).items():
        terms = TERMS[str(kind)]
        law = law_of(batches.filter((pl.col("workload") != workload) & (pl.col("kind") == kind)), terms)
        ratios.append(expected_ns(part, terms, law) / part["dur_ns"].to_numpy())
        durations.append(part["dur_ns"].to_numpy())
        kinds += [kind] * part.height
    ratio, took, kind_of = np.concatenate(ratios), np.concatenate(durations), np.array(kinds)
    empty = is_empty(took, ratio * took)
    error = np.abs(ratio - 1)
    assert (ratio.size, int(empty.sum())) == (24_546, 10)  # those took 0.2 to 1 ms, after the last token of a request
    assert took[empty].max() < 1e6
    assert error[~empty].mean() < 0.07
    assert np.median(error) < 0.035
    assert error[~empty & (kind_of == "decode")].mean() < 0.05
    # What the file does not say: in which batch a prompt was read. Some mixed batches took 370 ms, others 45 ms.
    assert 0.25 < error[kind_of == "mixed"].mean() < 0.4
