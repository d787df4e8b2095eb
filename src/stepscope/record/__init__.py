"""Recording: runs a job, or joins one that runs, and records its profile and what the machine did.

Nothing here imports polars or numpy: the sampler must be a small process that costs the job nothing.
"""

from __future__ import annotations

from stepscope.record.counters.dumps import Ring
from stepscope.record.counters.dumps import request as dump
from stepscope.record.recording import Recorded, attach, run

__all__ = ["Recorded", "Ring", "attach", "dump", "run"]
