"""Explains how two runs differ: causes with their evidence, ranked, and the causes that were ruled out.

Each rule judges one cause by the tables of a comparison: necessary evidence, supporting evidence, and evidence against
it. Its thresholds come from statistics (more than noise and drift) or from physics, with the reason in a comment.
"""

from __future__ import annotations

from stepscope.comparison.diagnosis.case import Case, views
from stepscope.comparison.diagnosis.causes import OF_TIMES, Diagnosis, diagnose

__all__ = ["OF_TIMES", "Case", "Diagnosis", "diagnose", "views"]
