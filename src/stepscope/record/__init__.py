"""Recording: a job is run, or joined while it runs, and what the machine did meanwhile is written beside its profile.

Nothing here imports polars or numpy: the sampler is a small process that must cost the job nothing.
"""

from __future__ import annotations

from stepscope.record.counters.dumps import Ring
from stepscope.record.counters.dumps import request as dump
from stepscope.record.recording import Recorded, attach, run

__all__ = ["Recorded", "Ring", "attach", "dump", "run"]
