"""The cause in single operators: one became slower, or was replaced by another."""

from __future__ import annotations

import msgspec
import polars as pl

from stepscope.comparison.diagnosis.case import (
    Clue,
    Judgement,
    Missing,
    Rule,
    Suspect,
    View,
    not_slower,
    typical_slowdown,
    weigh,
)
from stepscope.comparison.diagnosis.change import Change, evidence, fold, moved, span
from stepscope.comparison.diagnosis.compiled import added, compiling, outside_of_operators, slower
from stepscope.comparison.diagnosis.cores import HALF_CORE, outside_cores, ran_in_all
from stepscope.comparison.diagnosis.python import accounted, graphs_differ, small_calls
from stepscope.comparison.diagnosis.sampled import (
    grown,
    in_functions,
    is_sampled,
    or_by_samples,
    seems_tail,
    time_in,
    unexplained,
    waiting,
)
from stepscope.comparison.diagnosis.sizes import plain
from stepscope.comparison.diagnosis.workload import does_more, is_other, newcomer, other_work
from stepscope.comparison.model import LAYOUT_CALLS, LAYOUT_COPIES, PROCESS, RuledOut
from stepscope.comparison.stack_functions import COMPILES
from stepscope.core import units
from stepscope.core.names import is_launch_call, map_names, shorten
from stepscope.core.table import filtered

_SLOWER = 1.1
#: How much slower than the rest some operators must be if all are slower.
_APART = 1.2
#: Share of a cycle that slower operators must cost if no reason is visible. How the system backs new memory changes
#: single operators by 5 to 8 % of a cycle from run to run.
_UNEXPLAINED = 0.1
#: A page fault takes up to 4 µs, in a virtual machine.
_FAULT_NS = 4000.0
#: An operator that others replace took at least this share of their time.
_REPLACED = 0.05
#: The part of the work of which functions are nearly all.
_MOST = 0.8
#: So many samples of Python's lock leave little doubt of what a function does.
_MANY_ASKED = 20.0
#: Slowdown below which a typical operator counts as unchanged.
_UNCHANGED = 1.05


#: Ranges in which PyTorch or JAX compiles.
_COMPILES = r"dynamo_timed|backend_compile|XlaCompile|^xla::.*Compile"
#: What comes with such a copy: another view of the tensor, and memory for its copy.
_AROUND_COPIES = ("aten::transpose", "aten::permute", "aten::as_strided", "aten::empty_like", "aten::empty_strided",
                  "aten::empty")  # fmt: skip


class _Grown(msgspec.Struct, frozen=True):
    """Operators whose own time grew, largest first, and possible reasons.

    `types` are those of them with new element types, `gone` the operators that are called less often now. `usual` is
    how many times longer a call of the remaining operators takes, `lost_ns` the cost per cycle beyond that slowdown.
    """

    slow: pl.DataFrame
    gone: pl.DataFrame
    types: tuple[str, ...]
    usual: float
    lost_ns: float

    @property
    def other_way(self) -> bool:
        """Whether the work is done differently: with other types, or by other operators."""
        return bool(self.types) or self.gone.height > 0 or self.is_new

    @property
    def is_new(self) -> bool:
        """Whether operators that the base never calls have half of the added time."""
        added = self.slow["delta_ns"]
        return float(added.filter(self.slow["calls_base"] == 0).sum()) >= 0.5 * float(added.sum())

    @property
    def names(self) -> list[str]:
        """Names of the operators."""
        return self.slow["name"].to_list()


def slow_operator(view: View) -> Judgement:
    """One operator, or few, became slower or were replaced, while the rest is unchanged.

    Necessary: operators whose own time grew by 1 % of a cycle each and by 3 % together, more than the host's work did
    in general; and a reason: other element types at equal sizes, calls that replace an operator called less often now,
    or an operator that the base never calls and that is most of what was added. Without such a reason their calls must
    take 10 % longer at equal sizes, while those of a typical other operator do not, and cost 10 % of a cycle. Types and
    numbers of calls do not scatter: if they are the reason, the cycle need not be significantly slower.

    What has no operators is judged by samples: functions of the base that take longer in compiled code while the rest
    hardly does, if samples say more than the profile, and functions in compiled code that the base hardly has.
    """
    known = or_by_samples(view, _in_operators(view), _in_functions)
    new = None if isinstance(known, Suspect) else _in_new_functions(view)
    return new or known


def _in_operators(view: View) -> Judgement:
    """The judgement by the operators of a profile."""
    name = "slow_operator"
    if view.operators().is_empty():
        return Missing(name, "operators of the framework")
    if graphs_differ(view):
        return RuledOut(name, "one of the runs launches captured graphs, which hide operators", is_judged=False)
    if not view.same_cycles or view.delta_ns <= 0:
        return not_slower(name, view)
    if is_other(other_work(view)) or does_more(view):
        return RuledOut(name, "the work is another, so times of calls do not compare", is_judged=False)
    types, on_device = view.retyped, view.part("computation")
    if types and on_device.rose(by=view.least_ns) and on_device.delta >= 0.5 * view.delta_ns:
        return _on_device(view, types, on_device)
    grown = _grown(view, types)
    return _against(view, grown) or _suspect(view, grown)


def _in_functions(view: View) -> Judgement:
    """The judgement without a profile: by functions in which the main thread works, or what works for it."""
    name = "slow_operator"
    if not is_sampled(view):
        return Missing(name, "operators of the framework, or Python stacks: stepscope record --stacks")
    rows, own = slower(view), ran_in_all(view)
    times = unexplained(view, rows, accounted(view)) if rows.height else None
    if times is None:
        return RuledOut(name, "no function in compiled code works longer while the others do not")
    change, lost = times
    if (outside_cores(view) or 0.0) >= HALF_CORE:
        return RuledOut(name, "other processes use the cores too, which slows some functions more than others", False)
    # Where nearly all of the work is in them, there is little to compare them with: they may as well have more to do.
    is_most = change.base >= _MOST * float(in_functions(view).filter(~waiting())["low"].sum()) if change.base else False
    and_more, verb = (" and others", "take") if rows.height > 1 else ("", "takes")
    return view.suspect(
        name,
        f"{rows['function'][0]}{and_more} {verb} longer, {span(change.base, change.other, 'ns')} per cycle in compiled"
        " code, while other functions hardly do: other element types, another order in memory, or more to compute.",
        lost,
        0.55 if is_most else 0.75,
        [*time_in(rows), evidence("processor time per cycle, workers included", own, device=PROCESS, unit="ns")],
        resource=str(rows["function"][0]),
        device="host",
        magnitude=change.ratio,
        advice="look at the arrays that it is given: their types, strides and sizes (stepscope show python-stacks)",
    )


def _in_new_functions(view: View) -> Suspect | None:
    """The suspect if functions compute in compiled code that the base hardly has; None if there are none.

    A profile names operators. What it has no operators for is time between them.
    """
    rows, own = added(view), ran_in_all(view)
    times = unexplained(view, rows, accounted(view)) if rows.height else None
    if times is None:
        return None
    change, lost = times
    lost = min(lost, outside_of_operators(view, rows) * view.stretch)
    if lost < view.least_ns:
        return None
    and_more, verb = (" and others", "take") if rows.height > 1 else ("", "takes")
    return view.suspect(
        "slow_operator",
        f"{rows['function'][0]}{and_more} {verb} {span(change.base, change.other, 'ns')} per cycle, nearly all of it in"
        " compiled code: the job computes what it did not, or in another way.",
        lost,
        0.85 if float(rows["n_expected"].sum()) >= _MANY_ASKED else 0.75,
        [*time_in(rows), evidence("processor time per cycle, workers included", own, device=PROCESS, unit="ns")],
        resource=str(rows["function"][0]),
        device="host",
        magnitude=change.ratio,
        advice="see what it computes (stepscope show python-stacks): do it less often, on fewer elements, or by a"
        " faster function",
    )


def _grown(view: View, types: tuple[str, ...]) -> _Grown:
    work = view.operators()
    more = pl.col("calls_other") - pl.col("calls_base")
    gone = work.filter((more < 0) & pl.col("calls_real") & (pl.col("own_ns_base") > 0.005 * view.base_ns))
    added = work.filter((more > 0) & pl.col("calls_real"))["delta_ns"].sum()
    if -float(gone["delta_ns"].sum()) < _REPLACED * float(added):
        gone = gone.clear()  # what was added is much more than a replacement
    per_call = pl.col("ns_per_call_other") / pl.col("ns_per_call_base")
    # Other types are a reason by themselves: if steps are proven to take longer, the operator's few calls need not be.
    is_sure = pl.col("is_real") | (pl.lit(view.is_slower) & pl.col("name").is_in(types))
    grew = is_sure & (pl.col("delta_ns") > 0.01 * view.base_ns)
    is_added = pl.col("calls_real") & (more > 0)
    is_longer = (more.abs() < 0.02 * pl.col("calls_base")) & pl.col("ns_per_call_real") & (per_call >= _SLOWER)
    has_reason = pl.col("name").is_in([*types, newcomer(view) or ""]) | is_longer
    has_reason |= pl.lit(bool(types) or gone.height > 0) & is_added
    slow = work.filter((grew & has_reason) | (pl.lit(small_calls(view).replaces) & is_added))
    slow = slow.sort("delta_ns", descending=True)
    whole = float(slow["delta_ns"].sum())
    costly = set(slow.filter(grew | (pl.col("delta_ns") >= 0.2 * whole))["name"])
    rest = work.filter(~pl.col("is_resized")).join(slow.select("name"), on="name", how="anti")
    usual = typical_slowdown(rest) or 1.0
    saved = float(gone.join(slow.select("name"), on="name", how="anti")["delta_ns"].sum())
    longer = max(usual, 1.0)
    excess = float(slow["own_ns_other"].sum()) - float(slow["own_ns_base"].sum()) * longer
    return _Grown(slow, gone, tuple(n for n in types if n in costly), usual, (excess + min(saved, 0.0)) / longer)


def _is_apart(grown: _Grown) -> bool:
    """Whether the operators became slower than the remaining ones did, or cannot be compared with the base."""
    return (typical_slowdown(grown.slow) or 2 * grown.usual) >= _APART * grown.usual


def _against(view: View, grown: _Grown) -> RuledOut | None:
    """Why no operator is the cause; None if some may be."""
    name = "slow_operator"
    if grown.slow.is_empty():
        return RuledOut(name, "no operator takes more time of its own")
    stand_out = grown.other_way and (grown.is_new or _is_apart(grown))
    if grown.usual >= _SLOWER and not stand_out:
        return RuledOut(name, f"all operators are slower alike ({fold(grown.usual)})")
    if grown.lost_ns < (view.least_ns if grown.other_way else _UNEXPLAINED * view.base_ns):
        return RuledOut(name, f"operators that grew cost {units.duration(max(grown.lost_ns, 0.0))} per cycle")
    if not view.is_slower and (not grown.other_way or view.delta_ns < 0.5 * grown.lost_ns):
        return not_slower(name, view)
    touched = max(view.per_cycle(PROCESS, "process_minor_faults").delta, 0.0) * _FAULT_NS
    if not grown.other_way and touched >= 0.5 * grown.lost_ns:
        return RuledOut(name, "operators that grew touch new memory, which the system backs with small pages")
    return None


def _suspect(view: View, grown: _Grown) -> Suspect:
    first = grown.types[0] if grown.types else grown.names[0]
    row = grown.slow.row(grown.names.index(first), named=True)
    change = Change(row["own_ns_base"] or None, row["own_ns_other"], is_real=True, unit="ns")
    why, reason = _why(view, grown, first)
    confidence, shown = weigh(
        0.65,
        [
            *(_own_time(each, first) for each in grown.slow.head(5).iter_rows(named=True)),
            reason,
            (0.07, evidence(f"a typical other operator takes {fold(grown.usual)} as long as before"))
            if grown.usual < _UNCHANGED
            else None,
        ],
    )
    more = [shorten(n) for n in grown.names if n != first]
    listed = ", ".join(more[:3]) + (f" and {units.counted(len(more) - 3, 'other')}" if len(more) > 3 else "")
    together = f"; with {listed} it costs {units.duration(grown.lost_ns)} more per cycle" if more else ""
    grew = moved(change) if change.base else f"is {units.duration(change.other)}"
    return view.suspect(
        "slow_operator",
        f"{shorten(first)} {why}: its own time {grew} per cycle{together}.",
        grown.lost_ns,
        confidence,
        shown,
        resource=first,
        device="host",
        magnitude=change.ratio,
        advice="look at its inputs: show operators --by shape; types, strides, and which implementation was chosen",
    )


def _own_time(row: dict[str, object], first: str) -> Clue:
    name = str(row["name"])
    change = Change(_number(row["own_ns_base"]), _number(row["own_ns_other"]), is_real=True, unit="ns")
    role = "necessary" if name == first else "supporting"
    return 0.0, evidence(f"{shorten(name)}: own time per cycle", change, role=role, device="host", name=name)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _why(view: View, grown: _Grown, first: str) -> tuple[str, Clue]:
    """What happened to the operator, as text, and its evidence."""
    if grown.types:
        before, after = types_of(view, first)
        listed = ", ".join(shorten(n) for n in grown.types[:3])
        return f"now works on {after} instead of {before}", (
            0.25,
            evidence(f"element types of {listed}: {before} → {after}", device="host", name=first),
        )
    if not grown.gone.height:
        is_new = grown.slow.row(grown.names.index(first), named=True)["calls_base"] == 0
        return "is new, the base never calls it" if is_new else "takes longer per call at equal sizes", None
    old = grown.gone.sort("delta_ns").row(0, named=True)
    calls = f"{units.number(old['calls_base'])} → {units.number(old['calls_other'])} calls"
    change = Change(old["calls_base"], old["calls_other"], is_real=True)
    text = f"calls of {shorten(old['name'])} per cycle"
    return f"runs where {shorten(old['name'])} did ({calls})", (
        0.15,
        evidence(text, change, device="host", name=old["name"]),
    )


def _on_device(view: View, types: tuple[str, ...], on_device: Change) -> Suspect:
    before, after = types_of(view, types[0])
    listed = ", ".join(shorten(n) for n in types[:3])
    verb = "work" if len(types) > 1 else "works"
    text = "time in which the device computes, per cycle"
    return view.suspect(
        "slow_operator",
        f"{listed} now {verb} on {after} instead of {before}; the device computes"
        f" {span(on_device.base, on_device.other, 'ns')} per cycle.",
        on_device.delta,
        0.85,
        (
            evidence(f"element types of {listed}: {before} → {after}", role="necessary", device="host", name=types[0]),
            evidence(text, on_device, role="necessary"),
        ),
        resource=types[0],
        device="host",
        magnitude=on_device.ratio,
        advice="check autocast and the model's element types",
    )


def types_of(view: View, name: str) -> tuple[str, str]:
    """The element types that an operator had in the base, and new ones that it has in the other run."""
    types = []
    for runs in (view.pair.base, view.pair.other):
        rows = pl.concat([run.workload for run in runs]).filter(pl.col("name") == name)
        rows = rows.sort("total_ns_per_cycle", descending=True)
        types.append([plain(text) for text in rows["types"].drop_nulls().unique(maintain_order=True)])
    new = [text for text in types[1] if text not in types[0]]
    return types[0][0], new[0]


def compilation(view: View) -> Judgement:
    """The job compiles while it runs: functions are traced and compiled again, as for new shapes or failed guards.

    Necessary: ranges in which PyTorch or JAX compiles take 3 % of a cycle more, of which the longest has the others in
    it; or samples of the main thread's stack show it in a compiler for so much longer, also outside of the profile.
    """
    name = "compilation"
    work = view.work.filter((pl.col("device") == "host") & pl.col("name").cast(pl.String).str.contains(_COMPILES))
    ends = [pl.col(f"total_ns_{side}").fill_null(0.0) for side in ("base", "other")]
    ranges = work.select("name", low=ends[0], high=ends[1])
    calls = grown(view).filter(compiling()).rename({"function": "name"})
    # Ranges are in one another, and samples are of one function at a time.
    calls = calls.select(pl.col("name").first(), pl.col("low", "high").sum() * view.stretch).drop_nulls()
    times = pl.concat([ranges.with_columns(pl.col("name").cast(pl.String)), calls])
    times = times.sort(pl.col("high") - pl.col("low"), descending=True)
    if times.is_empty() or times["high"][0] - times["low"][0] < view.least_ns:
        return RuledOut(name, "nothing is compiled, or as much as in the base")
    if not (view.is_slower or seems_tail(view)):
        return not_slower(name, view)
    where, low, high = times.row(0)
    change, function = Change(low, high, is_real=True, unit="ns"), where.removeprefix(COMPILES)
    place = function if where in calls["name"] else shorten(where)
    return view.suspect(
        name,
        f"The job compiles while it runs: {span(change.base, change.other, 'ns')} per cycle, first of all in {place}.",
        change.delta,
        0.9,
        [evidence(f"{place}: time per cycle", change, role="necessary", name=where)],
        resource="compiler",
        device="host",
        advice="see why it compiles again: TORCH_LOGS=recompiles, or jax_log_compiles; keep shapes, types and flags"
        " equal from step to step, pad them, or mark them dynamic",
    )


#: Time of more copies that counts, in times of what changes must have to count.
_LEAST_COPIES = 2 / 3


def layout_copies(view: View) -> Judgement:
    """Tensors are copied into another order in memory, because something makes them non-contiguous.

    Necessary: more calls of `contiguous` or `clone`, no other element types, and copies whose own time grew, with what
    comes with them, by 2 % of a cycle: as numbers of calls do not scatter, less than the usual 3 % suffices. The calls
    that make a copy's memory and its view, and its launch, come with it.
    """
    name = "layout_copies"
    copies = view.operators().filter(pl.col("name").is_in(LAYOUT_COPIES))
    added = pl.col("calls_other") - pl.col("calls_base")
    more = copies.filter(pl.col("name").is_in(LAYOUT_CALLS) & pl.col("calls_real") & (added > 0))
    grown = float(copies["delta_ns"].sum())
    more = more.with_columns(added=added).sort("added", descending=True)
    around = 0.0 if more.is_empty() else _around_copies(view, float(more["added"][0]))
    if more.is_empty() or grown <= 0 or grown + around < _LEAST_COPIES * view.least_ns:
        return RuledOut(name, "tensors are brought into another order as often as before, or in no time that matters")
    if view.retyped:
        return RuledOut(name, "element types differ, so copies convert them")
    # Numbers of calls do not scatter, so the cycle need not be proven to be longer.
    if not view.is_slower and view.delta_ns < 0.5 * (grown + around):
        return not_slower(name, view)
    row = more.row(0, named=True)
    calls = Change(row["calls_base"], row["calls_other"], is_real=True)
    own = [float(copies[f"own_ns_{side}"].sum()) for side in ("base", "other")]
    change = Change(own[0], own[1], is_real=True, unit="ns")
    also = f", and what comes with them {units.duration(around)} more" if around >= grown else ""
    return view.suspect(
        name,
        f"Tensors are copied into another order in memory: copies take {span(own[0], own[1], 'ns')} per cycle{also}.",
        grown + around,
        0.85,
        [
            evidence(f"calls of {shorten(row['name'])} per cycle", calls, role="necessary", name=row["name"]),
            evidence("own time of copies, per cycle", change, role="necessary", name="aten::copy_"),
        ],
        resource="memory layout",
        device="host",
        magnitude=change.ratio,
        advice="find the transpose or permute before the copy (show operators --by shape, record --stacks); keep one "
        "memory format, such as channels_last, through the model",
    )


def _around_copies(view: View, n_copies: float) -> float:
    """The added time per cycle of views, memory and launches that come with so many more copies. Units: ns."""
    added = pl.col("calls_other") - pl.col("calls_base")
    calls = view.work.filter(
        (pl.col("device") == "host") & pl.col("calls_real") & (added > 0) & (pl.col("delta_ns") > 0)
    )
    share = pl.min_horizontal(pl.lit(1.0), 2 * n_copies / added)
    views = calls.filter(pl.col("name").is_in(_AROUND_COPIES))
    launches = filtered(calls, map_names(calls["name"], is_launch_call, pl.Boolean()))
    launched = pl.min_horizontal(pl.lit(1.0), n_copies / added)
    return float(views.select((pl.col("delta_ns") * share).sum()).item()) + float(
        launches.select((pl.col("delta_ns") * launched).sum()).item()
    )


RULES = (Rule("slow_operator", slow_operator), Rule("compilation", compilation), Rule("layout_copies", layout_copies))
