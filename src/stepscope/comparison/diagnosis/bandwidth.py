"""The cause between the cores and the memory: other processes take its bandwidth, or the caches that cores share."""

from __future__ import annotations

import polars as pl

from stepscope.comparison.diagnosis.case import Judgement, Missing, Rule, View, not_slower, typical_slowdown
from stepscope.comparison.diagnosis.change import evidence, fold
from stepscope.comparison.diagnosis.cpu import HALF_CORE, STRETCHED, core_clock, outside_cores, waited
from stepscope.comparison.model import MATRIX_PRODUCTS, RuledOut
from stepscope.core import units

#: Operators that compute much with each byte. Most others do one operation for each number that they read and write.
_COMPUTES = rf"{MATRIX_PRODUCTS}|conv|attention|lstm|gru|linalg"
#: Calls that take less of their own are spent on calling, not on memory.
_MOVES_NS = 20_000.0
#: How much more the work that memory binds must be slowed than products: the clock, or a neighbour on the same core,
#: slows products as much or more.
_APART = 1.1
#: Share of the operators' time that each of the two kinds of work must have.
_LEAST = 0.05


def memory_bandwidth(view: View) -> Judgement:
    """Other processes use the memory's bandwidth, or the caches that cores share.

    Necessary: they use half a core more; operators that move memory (20 µs a call and more) take 15 % longer at equal
    clock and sizes, and a tenth more than products of matrices and convolutions were slowed; cycles take longer.
    """
    name = "memory_bandwidth"
    outside = outside_cores(view)
    work = view.host_work().filter((pl.col("category") == "operator") & ~pl.col("calls_real"))
    own = pl.col("own_ns_base")
    computes = work.filter(pl.col("name").str.contains(_COMPUTES))
    moves = work.filter(~pl.col("name").str.contains(_COMPUTES) & (own >= _MOVES_NS * pl.col("calls_base")))
    whole = float(work["own_ns_base"].sum())
    is_known = all(float(kind["own_ns_base"].sum()) >= _LEAST * whole > 0 for kind in (computes, moves))
    if outside is None or not is_known:
        return Missing(name, "host_cpu_usage, and operators that move memory and that compute")
    if outside < HALF_CORE:
        return RuledOut(name, "other processes use the cores as before")
    if not view.is_slower:
        return not_slower(name, view)
    clock = min(core_clock(view).ratio or 1.0, 1.0)
    moving, computing = ((typical_slowdown(kind) or 1.0) * clock for kind in (moves, computes))
    texts = f"operators that move memory take {fold(moving)} as long, products of matrices {fold(computing)}"
    if moving < STRETCHED or moving < _APART * max(computing, 1.0):
        return RuledOut(name, texts)
    # What a core is waited for stretches operators too, but is no matter of memory.
    cost = float(work["delta_ns"].sum()) - max(waited(view).delta, 0.0)
    load = view.resource("host", "host_cpu_usage")
    return view.suspect(
        name,
        f"Other processes use the memory's bandwidth: {texts}, {units.duration(cost)} more per cycle in all.",
        cost,
        0.75,
        [
            evidence(texts, role="necessary"),
            evidence("use of all processors", load, role="necessary", device="host", metric="host_cpu_usage"),
        ],
        resource="memory bandwidth",
        device="host",
        magnitude=moving,
        advice="see what else moves memory there (perf stat -e cache-misses, pcm-memory); run it elsewhere, or on"
        " another socket: numactl --cpunodebind --membind",
    )


RULES = (Rule("memory_bandwidth", memory_bandwidth),)
