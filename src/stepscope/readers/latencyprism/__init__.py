"""LatencyPrism's perf_data.csv and counters_data.csv."""

from __future__ import annotations

from stepscope.readers.formats import Format, Sign

#: Columns that LatencyPrism's tables must have, perf_data.csv and counters_data.csv.
LATENCYPRISM_COLUMNS = (
    "cycle", "pid", "beta_pct", "function_name", "metric_name", "device", "mu_pct", "anchor_dur_us",
)  # fmt: skip
LATENCYPRISM_COUNTERS = ("counter_name", "timestamp", "value")

FORMATS = (
    Format(
        name="latencyprism",
        doc="LatencyPrism's perf_data.csv, also packed: results; read with the counters_data.csv next to it",
        module="latencyprism.reader",
        signs=(Sign(1.0, columns=LATENCYPRISM_COLUMNS),),
        provides=("cycles", "attribution", "counters", "issues"),
        endings=(".csv",),
    ),
    Format(
        name="latencyprism-counters",
        doc="LatencyPrism's counters_data.csv, also packed: samples of resources; read with perf_data.csv next to it",
        module="latencyprism.reader",
        function="read_counters_data",
        signs=(Sign(0.3, columns=LATENCYPRISM_COUNTERS),),
        provides=("counters", "issues"),
        cacheable=True,
    ),
)  # fmt: skip
