"""The report of a recording without a profile: counters, scheduling and Python stacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.resources.counters import CORE, COUNTER_SUMMARY, FEW_CORES, counters
from stepscope.core.remedies import Recording, remedy
from stepscope.core.report import Block
from stepscope.core.units import duration, percent
from stepscope.reports._quality import lacks_of_issues
from stepscope.reports._requests import cache_costs, facts_of_requests, request_blocks
from stepscope.reports._summary import Cost, Lack, Summary, of_whole_run
from stepscope.reports._threads import python_block, scheduling_blocks

if TYPE_CHECKING:
    from stepscope.core.trace import Trace


_NOTHING = Lack("no_spans", "The trace holds no spans with times: there is nothing to report.")
_ONLY = Lack("only_counters", "Only counters were recorded: what ran, and when, is unknown.")
_SCHEDULED = Lack("only_counters", "Counters and scheduling were recorded: when threads ran, not what they did.")
_NO_PROFILE = Lack(
    "no_profile", "Counters and Python stacks were recorded, no profile: steps and operators are unknown."
)
_ONLY_STEPS = Lack("no_profile", "No profile was recorded: how long steps took is known, not what ran in them.")
_PER_SECOND = 1_000_000_000
_STARVED = 0.1  # of the time, from which on waiting for a core is worth a finding
_RUNNING = "process_oncpu_time"
#: Counters of time in which a process could not run although it was ready: what that is, and the topic of the remedy.
_STARVING = {
    "process_runq_time": ("The CPU is starved: threads are ready to run and wait for a core", "starved"),
    "cgroup_cpu_throttled_time": ("The CPU is starved: the container's quota stops its threads", "throttled"),
}
_RESOURCE_COLUMNS = ("device", "metric", "unit", "mean", "p95", "max")


def summary_of_counters(trace: Trace) -> Summary:
    """Mean and peak of each resource that was used at all; without counters, a summary that says so."""
    waits = scheduling_blocks(trace)
    if trace.counters.is_empty():
        lack = _SCHEDULED if waits else _NOTHING
        return Summary(trace.meta, recorded_ns=0, tables=tuple(waits), quality=(lack,), issues=trace.issues)
    frame = _busiest_core(counters(trace.counters).filter(pl.col("max") != 0).select(_RESOURCE_COLUMNS))
    frame = frame.sort(_order(pl.col("device").cast(pl.String)), maintain_order=True)
    first, last = trace.counters.select(low=pl.col("ts_ns").min(), high=pl.col("ts_ns").max()).row(0)
    block = Block("Resources that were used", COUNTER_SUMMARY, frame, "show counters")
    python = python_block(trace)
    steps = of_whole_run(trace)
    lack = _ONLY_STEPS if steps else _NO_PROFILE if python else _SCHEDULED if waits else _ONLY
    tables = (*request_blocks(trace), *python, *waits, block)
    costs = (*_starved(trace, last - first), *cache_costs(trace))
    return Summary(
        trace.meta,
        recorded_ns=last - first,
        windows_ns=(last - first,) if costs else (),
        costs=costs,
        tables=tables,
        quality=(lack, *lacks_of_issues(trace.issues)),
        issues=trace.issues,
        facts=(*facts_of_requests(trace), *filter(None, [steps])),
    )


def _busiest_core(frame: pl.DataFrame) -> pl.DataFrame:
    """The rows without those of cores, except the busiest one if there are many of them, which then says so."""
    device = pl.col("device").cast(pl.String)
    is_core = device.str.contains(CORE)
    used = frame.filter(is_core & (pl.col("metric").cast(pl.String) == "host_cpu_usage")).sort("mean")
    if used.height <= FEW_CORES:
        return frame
    busiest = str(used["device"][-1])
    name = pl.when(is_core).then(pl.lit(f"{busiest}, the busiest of {used.height}")).otherwise(device)
    return frame.filter(~is_core | (device == busiest)).with_columns(device=name.cast(frame.schema["device"]))


def _order(device: pl.Expr) -> pl.Expr:
    """Accelerators first, then the whole host, its processes, disks and networks, and single cores last."""
    kinds = (r"^cpu\d+", 4), (r"^host$", 1), (r"^(?:pid:|process)", 2), (r"^(?:[gntx]pu|mlu|gcd)\d+$", 0)
    order: pl.Expr = pl.lit(3)
    for pattern, place in kinds:
        order = pl.when(device.str.contains(pattern)).then(pl.lit(place)).otherwise(order)
    return order


def _starved(trace: Trace, recorded_ns: int) -> tuple[Cost, ...]:
    """A cost for each reason for which a process did not get the cores that it was ready to use."""
    known = trace.counters.with_columns(pl.col("metric").cast(pl.String))
    used = counters(known.filter(pl.col("metric").is_in([*_STARVING, _RUNNING])).filter(pl.col("ts_ns").is_not_null()))
    running = dict(used.filter(pl.col("metric").cast(pl.String) == _RUNNING).select("device", "mean").iter_rows())
    host = counters(known.filter((pl.col("metric") == "host_cpu_usage") & (pl.col("device").cast(pl.String) == "host")))
    costs = []
    for metric, (title, topic) in _STARVING.items():
        mine = used.filter(pl.col("metric").cast(pl.String) == metric).sort("mean", descending=True)
        if mine.is_empty() or mine["mean"][0] < _STARVED * _PER_SECOND:
            continue
        device, mean, most = mine.select("device", "mean", "p95").row(0)
        facts = [f"{device}: {duration(mean)} of each second (95th percentile {duration(most)})"]
        if device in running:
            facts.append(f"it runs for {duration(running[device])} of each")
        if host.height:
            facts.append(f"the host's cores are busy {percent(host['mean'][0] / 100)} of the time")
        details = ("; ".join(facts), f"→ {remedy(topic, Recording())}")
        # Several threads can wait at a time.
        cost_ns = min(mean / _PER_SECOND, 1.0) * recorded_ns
        costs.append(Cost(f"starved {metric}", title, cost_ns, details, "show counters"))
    return tuple(costs)
