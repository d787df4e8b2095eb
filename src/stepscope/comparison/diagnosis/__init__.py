"""From how two runs differ to why: causes with their evidence, ranked, and what was ruled out.

Each rule judges one hypothesis about a resource from the tables of a comparison: necessary evidence, supporting
evidence, and evidence against it. Thresholds are those of statistics (more than noise and drift) and physics (stated
with their reasons beside them), and no rule knows of any file.
"""

from __future__ import annotations

from stepscope.comparison.diagnosis.case import Case
from stepscope.comparison.diagnosis.causes import Diagnosis, diagnose

__all__ = ["Case", "Diagnosis", "diagnose"]
