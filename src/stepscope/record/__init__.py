"""Recording: a job is run, or joined while it runs, and what the machine did meanwhile is written beside its profile.

Nothing here imports polars or numpy: the sampler is a small process that must cost the job nothing.
"""

from __future__ import annotations

from stepscope.record._channel import request as dump
from stepscope.record._recording import Recorded, attach, run
from stepscope.record._ring import Ring

__all__ = ["Recorded", "Ring", "attach", "dump", "run"]
