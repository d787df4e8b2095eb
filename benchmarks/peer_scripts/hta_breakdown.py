"""HolisticTraceAnalysis on one trace: where the device's time went. Runs in that package's own environment."""

from __future__ import annotations

import sys

from hta.trace_analysis import TraceAnalysis

print(TraceAnalysis(trace_files={0: sys.argv[1]}).get_temporal_breakdown(visualize=False).to_string())
