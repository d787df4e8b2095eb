"""Literal files as Nsight Compute prints them."""

from __future__ import annotations

COLUMNS = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC",
)  # fmt: skip
METRIC = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
RULE = ("Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup")
CHOSEN = "Command line profiler metrics"
DURATION = "gpu__time_duration.sum"
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


def quoted(*fields: str) -> str:
    return ",".join(f'"{field}"' for field in fields) + "\n"


LONG = quoted(*COLUMNS, *METRIC)
DETAILS = quoted(*COLUMNS, *METRIC, *RULE)


def launch(
    number: int, name: str = "gemm(float *, int)", *, pid: int = 7, stream: int = 7, grid: int = 64
) -> tuple[str, ...]:
    """The first eleven fields of a row."""
    where = (str(stream), "(128, 1, 1)", f"({grid}, 2, 1)", "0", "8.0")
    return (str(number), str(pid), "python", "127.0.0.1", name, "1", *where)


def row(number: int, metric: str, unit: str, value: str, *, section: str = CHOSEN, **of_launch) -> str:
    return quoted(*launch(number, **of_launch), section, metric, unit, value)


def rows(number: int, duration: str = "1,000", dram: str = "12.50", tensor: str = "40.25", **of_launch) -> str:
    """One launch with the usual metrics."""
    values = ((DRAM, "%", dram), (DURATION, "ns", duration), (TENSOR, "%", tensor))
    return "".join(row(number, *value, **of_launch) for value in values)
