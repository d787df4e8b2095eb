"""The sentences of the published report: data, so that a new report can be laid beside an old one."""

from __future__ import annotations

SUMMARY = "## 1. High-Level Performance Summary"
DURATIONS = "## 2. Cycle Duration Distribution Comparison"
CORE = "## 3. In-depth Core Metric Comparison"
OVERVIEW = "### Overview"
FINDINGS = "### Key Findings:"
DETAILS = "### Detailed comparison table"

DRIVEN_BY = (
    "The primary performance difference between `{}` and `{}` appears to be driven by changes in **`{}`**. The "
    "analysis indicates a notable {} in its contribution to total cycle time."
)
NO_DIFFERENCE = "No significant performance difference between `{}` and `{}` (Suspicion Score > {})."
FINDING = "- **`{}` on device `{}`:**"
CONTRIBUTION = "  - Its contribution to total cycle time (β) **{}** from **{:.2f}%** to **{:.2f}%** ({:+.2f} ppt), {}."
SIGNIFICANT = "which is statistically significant (p-value: {:.3f})"
NOT_SIGNIFICANT = "though this change may not be statistically significant (p-value: {:.3f})"
CORRELATES = "  - This change in cycle time contribution correlates with changes in the following resource metrics (μ):"
METRIC = "    - **`{}`**: {} from {:,.2f} to {:,.2f}."
OVER_ALL = (
    "*Note: A β value greater than 100% suggests that the function was called multiple times within a single analysis "
    "cycle, and the value represents the sum of its time contributions.*"
)
RECOMMENDATION = (
    "**Recommendation:** Focus investigation on the functions listed above, starting with the one with the highest "
    "**Suspicion Score**. Examine the interplay between its relative execution time (β) and the associated resource "
    "usage (μ) changes to understand the root cause."
)
TABLE_IS = (
    "This table aggregates the performance of each (function, metric, device) triplet across both runs, sorted by "
    "**Suspicion Score** in descending order."
)
LEGEND = """\
## 5. Legend
- **β (Beta)**: The percentage of total cycle time consumed by this function.
- **μ (Mu)**: The average utilization or counter value of an associated resource during the function's execution.
- **Device**: The device associated with the metric (e.g., GPU ID, CPU core).
- **Z-Score(β/log_μ)**: A measure of the statistical significance of a change. A higher absolute value indicates a \
more unusual change.
- **p-value/U-test p**: The p-value from a statistical test. Lower values (e.g., < 0.05) suggest the difference is \
statistically significant.
- **Suspicion Score**: A composite score `|Δβ| * (|Z-Score(β)| + |Z-Score(log_μ)|)` to rank potential issues. **Focus \
on items with the highest score first.**
"""
