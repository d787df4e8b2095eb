"""Small files of LatencyPrism: rows by the few columns that a test is about."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = (
    "cycle", "pid", "hostname", "beta_pct", "function_name", "metric_name", "device", "func_type", "mu_pct",
    "sigma_pct", "duration", "interpolation_status", "anchor_name", "anchor_dur_us", "cycle_start_ts",
    "instances_count", "simple_name",
)  # fmt: skip
START_US = 1_762_935_807_026_558
GEMM = "void gemm<float, 2>(float*)"


def perf_row(cycle: int, **values: Any) -> dict[str, Any]:
    """A row of perf_data.csv: by default a kernel that takes 10 % of a cycle of 1 ms."""
    usual = {
        "cycle": cycle, "pid": 7, "beta_pct": "10.0000", "function_name": GEMM, "metric_name": "gpu_usage",
        "device": "GPU 3", "func_type": "gpu_compute", "mu_pct": "6.0000", "sigma_pct": "0.0000",
        "duration": "100.0000", "interpolation_status": "**", "anchor_name": "Scheduler.run_batch",
        "anchor_dur_us": "1000.2500", "cycle_start_ts": f"{START_US + 1000 * cycle}.7500", "instances_count": 4,
        "simple_name": "gemm",
    }  # fmt: skip
    return usual | values


def perf_text(rows: list[dict[str, Any]], columns: tuple[str, ...] = COLUMNS) -> str:
    """The rows as the content of a perf_data.csv."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def counters_text(samples: list[tuple[str, str, object]]) -> str:
    """Samples (name, µs of Unix time, value) as the content of a counters_data.csv."""
    lines = [f"{name},{time},{value}," for name, time, value in samples]
    return "\r\n".join(["counter_name,timestamp,value,hostname", *lines]) + "\r\n"


def write_case(folder: Path, normal: list[dict[str, Any]], abnormal: list[dict[str, Any]]) -> Path:
    """A case folder with the files of two runs."""
    for side, rows in (("normal", normal), ("abnormal", abnormal)):
        (folder / f"{side}_perf_data").mkdir(parents=True)
        (folder / f"{side}_perf_data" / "result_perf_data.csv").write_text(perf_text(rows), newline="")
    return folder
