"""Ranks the rules' suspects into causes, and lists what follows from a better cause under that one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from stepscope.comparison.diagnosis import (
    cpu,
    gpu,
    io,
    links,
    memory,
    operators,
    over_time,
    python,
    queueing,
    threads,
    workload,
)
from stepscope.comparison.diagnosis.case import COLLECTIVES, Case, Judgement, Missing, Rule, Suspect, View, views
from stepscope.comparison.diagnosis.change import ABSENT
from stepscope.comparison.diagnosis.compiled import compiling
from stepscope.comparison.diagnosis.ordering import BY_CALLS, OVERLAP, folded, in_order, of_rank, one_per_category
from stepscope.comparison.diagnosis.sampled import FUNCTIONS_SHOWN, grown, grown_or_spread, places_of_slow_steps, whose
from stepscope.comparison.diagnosis.straggler import straggler
from stepscope.comparison.effects import effects
from stepscope.comparison.model import Cause, Evidence, RuledOut
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


#: Every rule that judges one pair of processes.
RULES: tuple[Rule, ...] = (
    *cpu.RULES,
    *threads.RULES,
    *gpu.RULES,
    *links.RULES,
    *io.RULES,
    *python.RULES,
    *operators.RULES,
    *workload.RULES,
    *queueing.RULES,
    *memory.RULES,
    *over_time.RULES,
)

#: Causes that consist of time only. They are ruled out if they explain less than this share of the difference.
_OF_TIME = ("host_overhead", "slow_operator", "slow_kernel", "data_loading", "disk_io", "python_gc")
_LEAST_SHARE = 0.1
#: Beside larger causes one counts from this share of what they leave, if that is this part of a cycle of the base.
_OF_REST, _OF_CYCLE = 0.25, 0.02
#: Causes that are inferred from how long calls take, which says nothing about a fault if the machines differ.
_OF_ONE_MACHINE = (
    "gpu_frequency", "cpu_frequency", "slow_kernel", "slow_operator", "host_overhead", "cpu_contention",
    "device_copies",
    "memory_bandwidth", "thread_oversubscription", "layout_copies",
)  # fmt: skip
#: Causes that are recognised by calls that grew, like the cycles.
_OF_CALLS = ("slow_kernel", "slow_operator", "host_overhead")
#: Causes that are a measured state of a resource: they are what differs, even if other work hides their cost.
STATES = (
    "gpu_frequency", "gpu_contention", "cpu_frequency", "interconnect_nvlink", "interconnect_pcie", "network",
    "memory_growth",
    "memory_pressure", "straggler_rank", "queueing",
)  # fmt: skip
#: Causes that consist of the program's own times. They prove no difference that the step time does not.
OF_TIMES = ("workload_change", "slow_operator", "slow_kernel", "host_overhead", "data_loading")
#: Share of the effect, at the far end of its interval, that a cause must explain to be called certain, or likely. A
#: cause that explains less than half of it leaves most of the effect to others.
_CERTAIN_SHARE, _LIKELY_SHARE = 0.5, 0.25
#: The highest confidence of what is called likely, and possible.
_LIKELY, _POSSIBLE = 0.89, 0.59
#: Part of a change that slow steps account for if they are what is told of it.
_HALF = 0.5
#: Causes that say which steps are slow.
_OF_SLOW_STEPS = ("periodic_work", "slow_tail")
#: Causes that make the main thread spend time somewhere in Python.
_WHERE = (
    "host_overhead", "device_copies", "slow_operator", "data_loading", "gil_contention", "disk_io", *_OF_SLOW_STEPS,
)  # fmt: skip


class Diagnosis(msgspec.Struct, frozen=True):
    """Causes, the best first, the causes that were ruled out or could not be judged, and remarks."""

    causes: tuple[Cause, ...]
    ruled_out: tuple[RuledOut, ...]
    remarks: tuple[str, ...]


def diagnose(case: Case, all_views: Sequence[View] | None = None) -> Diagnosis:
    """What made the other run differ from the base. `all_views` are the case's `views`, if they are known already.

    Causes are ranked by the share of the difference that each explains times its confidence, then by how much the
    resource itself changed. A cause whose time a better one accounts for is listed under that one as its consequence.
    If no cause has its necessary evidence, there are none. If the change of the step time is proven, a cause must have
    its sign and a tenth of its size, or it is a remark.
    """
    judged = _judged(case, views(case) if all_views is None else tuple(all_views))
    causes, minor = _weighed(judged, case)
    named = {cause.category for cause in causes}
    ruled_out: dict[str, RuledOut] = {}
    unknown = [RuledOut(row.category, f"needs {row.needs}", is_judged=False) for row in judged.missing]
    for row in (*sorted(judged.ruled_out, key=lambda row: row.is_judged), *unknown):
        if row.category not in named:
            ruled_out.setdefault(row.category, row)
    remarks = [*_unexplained(judged, causes, case.machines), *_few_slow_steps(judged, causes), *minor]
    if not causes and any(view.is_faster for view in judged.views):
        remarks += _reversed(case)
    return Diagnosis(with_functions(causes, judged.views), tuple(ruled_out.values()), tuple(remarks))


def _weighed(judged: _Judged, case: Case) -> tuple[tuple[Cause, ...], list[str]]:
    """The causes with the confidence that their contribution allows, and remarks on those that contribute too little.

    A state of a resource stays a cause if nothing else is one: it is what differs, though its cost was not measured.
    """
    step = case.step_time
    is_comparable = all(view.same_cycles for view in judged.views)
    if case.step_verdict != "different" or step is None or not is_comparable:
        limit = _POSSIBLE if step is not None and step.low is None else _LIKELY
        causes = [each if each.category in STATES else _at_most(each, limit) for each in judged.causes]
        # Longer times in a run that looks shorter as a whole are no cause of anything.
        minor = [c for c in causes if c.category in OF_TIMES and not c.explained_ns and step and step.delta < 0]
        return tuple(each for each in causes if each not in minor), _as_remarks(minor)
    far = max(((step.high if step.delta > 0 else step.low) or step.delta) / step.delta, 1.0)
    causes, minor = [], []
    for cause in judged.causes:
        view = next((view for view in judged.views if view.pair.label == cause.process), judged.views[0])
        own = view.delta_ns if view.pair.label == cause.process else 0.0
        share = cause.explained_ns / (own or step.delta * view.stretch)
        limit = 1.0 if share >= _CERTAIN_SHARE * far else _LIKELY if share >= _LIKELY_SHARE * far else _POSSIBLE
        is_counted = cause.category in BY_CALLS
        # What is lost around the work is known less well than what counted calls cost.
        rest = [
            each.explained_ns
            for each in judged.causes
            if each is not cause and not (is_counted and each.category == "host_overhead")
        ]
        whole = _to_explain(own or step.delta * view.stretch, case, view)
        is_rest = _is_rest(cause.explained_ns, rest, whole, step.base * view.stretch, is_counted=is_counted)
        matters = share >= _LEAST_SHARE or is_rest
        (causes if matters else minor).append(_at_most(cause, limit))
    if not causes:
        causes = [each for each in minor if each.category in STATES and each.explained_ns * step.delta >= 0]
    return tuple(causes), _as_remarks([each for each in minor if each not in causes])


def _is_rest(ns: float, explained: Iterable[float], whole: float, base_ns: float, *, is_counted: bool = False) -> bool:
    """Whether a cause of so many ns is much of what larger ones leave of the whole difference, and has room there.

    Numbers of calls do not scatter, so a cause that they show may be less of it.
    """
    larger = sum(each for each in explained if each > ns)
    left = whole - larger
    is_much = left >= _LEAST_SHARE * whole and ns >= _OF_REST * left
    return larger > 0 and (is_much or is_counted) and ns >= _OF_CYCLE * base_ns and larger + ns <= OVERLAP * whole


def _to_explain(ns: float, case: Case, view: View | None = None) -> float:
    """The difference of profiled cycles, or that of all steps of the run if that is less. Units: ns."""
    stretch = 1.0 if view is None else view.stretch
    whole = case.step_time.delta * stretch if case.step_time is not None else 0.0
    return min(ns, whole) if whole > 0 else ns


def _as_remarks(minor: Sequence[Cause]) -> list[str]:
    return [f"Different, but no cause of the change: {each.category}: {each.statement}" for each in minor]


def _at_most(cause: Cause, confidence: float) -> Cause:
    return replace(cause, confidence=min(cause.confidence, confidence))


def _unexplained(judged: _Judged, causes: Sequence[Cause], machines: str) -> list[str]:
    """Which part of the cycle grew most if cycles take longer without a cause, and that other hardware may be why."""
    slower = [view for view in judged.views if view.is_slower]
    if causes or not slower:
        return []
    view = max(slower, key=lambda view: view.delta_ns)
    name, part = max(view.parts.items(), key=lambda item: item[1].delta, default=("", ABSENT))
    where = ""
    if part.delta > 0:
        where = f" (by {units.duration(view.delta_ns)}; {name} by {units.duration(part.delta)})"
    why = f". The hardware is another ({machines}), which may be the reason" if machines else ""
    return [f"Cycles take longer{where}, but no cause has its necessary evidence{why}"]


def _few_slow_steps(judged: _Judged, causes: Sequence[Cause]) -> list[str]:
    """What slow steps add if that is half of what steps take longer, but they are too few to be told from chance."""
    for view in judged.views if not causes else ():
        tails, added = view.tails, view.run_step.delta
        if tails is not None and not view.has_tail and tails.other.n_slow and tails.added_ns >= _HALF * added > 0:
            n, steps = tails.other.n_slow, units.number(tails.other.n_steps)
            takes = f"step of {steps} takes" if n == 1 else f"steps of {steps} take"
            each, share = units.duration(tails.other.each_ns), units.percent(min(tails.added_ns / added, 1.0))
            what = f"{n} {takes} {each} longer than the others, which is {share} of the change"
            return [f"{what}: too few to tell a fault from chance"]
    return []


class _Judged(msgspec.Struct, frozen=True):
    """What all rules say about a case."""

    views: tuple[View, ...]
    causes: tuple[Cause, ...]
    ruled_out: tuple[RuledOut, ...]
    missing: tuple[Missing, ...]


def _judged(case: Case, all_views: tuple[View, ...]) -> _Judged:
    judgements = [
        (view, _of_cycles(_on_machines(rule.judge(view), case.machines), view)) for view in all_views for rule in RULES
    ]
    suspects = [judgement for _, judgement in judgements if isinstance(judgement, Suspect)]
    n = len(all_views)
    late = straggler(all_views, suspects) if n > 1 else _of_one_process(all_views)
    chosen = of_rank(suspects, late, all_views) if isinstance(late, Suspect) else one_per_category(suspects, n)
    reference = _reference(all_views)
    chosen, minor = _material(
        chosen,
        reference,
        _to_explain(reference, case, *all_views[:1]),
        max((view.base_ns for view in all_views), default=0.0),
    )
    causes = folded(in_order(chosen, reference), reference)
    ruled_out = [judgement for _, judgement in judgements if isinstance(judgement, RuledOut)]
    ruled_out += [*([late] if isinstance(late, RuledOut) else []), *minor]
    missing = tuple(judgement for _, judgement in judgements if isinstance(judgement, Missing))
    return _Judged(all_views, tuple(causes), tuple(ruled_out), missing)


def _of_cycles(judgement: Judgement, view: View) -> Judgement:
    """The judgement; if cycles seem longer without proof, calls that grew would not be recognised either."""
    is_open = view.same_cycles and view.delta_ns > view.least_ns and not view.is_slower
    if not is_open or not isinstance(judgement, RuledOut) or judgement.category not in _OF_CALLS:
        return judgement
    return replace(judgement, reason="it is not proven that cycles take longer", is_judged=False)


def _of_one_process(all_views: tuple[View, ...]) -> RuledOut:
    talks = any(view.part(*COLLECTIVES).other for view in all_views)
    return RuledOut("straggler_rank", "only one process was recorded", is_judged=not talks)


def _on_machines(judgement: Judgement, machines: str) -> Judgement:
    """The judgement; on different machines, times per call cannot tell whether a cause applies."""
    if not machines or not isinstance(judgement, Suspect) or judgement.cause.category not in _OF_ONE_MACHINE:
        return judgement
    return RuledOut(
        judgement.cause.category, f"other hardware ({machines}): {judgement.cause.statement}", is_judged=False
    )


def _reversed(case: Case) -> list[str]:
    """The cause that made the base slower than the other run, if there is one."""
    pairs = tuple(replace(pair, base=pair.other, other=pair.base) for pair in case.pairs)
    back = Case(pairs, effects(pairs), machines=case.machines)
    mine = views(back)
    causes = _judged(back, mine).causes
    return [
        f"The base is the slower run; compared with the other it has {cause.category}: {cause.statement}"
        for cause in causes[:1]
        if cause.explained_ns >= _LEAST_SHARE * _reference(mine)
    ]


def _reference(all_views: Sequence[View]) -> float:
    """The difference to explain: how much longer a cycle takes, but at least `View.least_ns`. Units: ns.

    A server's cycles are a part of what it does, so there it is no less than what its threads do longer.
    """
    each = (max(abs(view.delta_ns), view.least_ns, _longer_in_threads(view)) for view in all_views)
    return max(each, default=0.0) or 1.0


def _longer_in_threads(view: View) -> float:
    """How much longer the threads of a server are in functions, by samples, for each request; 0 if it is none (ns)."""
    return float(grown_or_spread(view)["delta"].sum()) if view.pair.answers_requests else 0.0


def _material(
    suspects: Sequence[Suspect], reference: float, whole: float, base_ns: float
) -> tuple[list[Suspect], list[RuledOut]]:
    """The suspects that matter, and the causes of time only that explain too little of the difference."""
    material, minor = [], []
    for suspect in suspects:
        share = max(abs(suspect.cause.explained_ns), suspect.affected_ns) / reference
        rest = [each.cause.explained_ns for each in suspects if each is not suspect]
        is_rest = _is_rest(suspect.cause.explained_ns, rest, whole, base_ns)
        if suspect.cause.category in _OF_TIME and share < _LEAST_SHARE and not is_rest:
            text = f"explains {units.percent(share)} of the difference: {suspect.cause.statement}"
            minor.append(RuledOut(suspect.cause.category, text))
        else:
            material.append(suspect)
    return material, minor


def with_functions(causes: Iterable[Cause], views: Sequence[View]) -> tuple[Cause, ...]:
    """The causes; those on the host get the Python functions in which the main thread spends more time as evidence.

    The functions come from stack samples. They show where to look in the program and decide nothing. Of slow steps they
    are the new ones that are in these alone.
    """
    return tuple(_with_functions(cause, views) if cause.category in _WHERE else cause for cause in causes)


def _with_functions(cause: Cause, views: Sequence[View]) -> Cause:
    view = next((view for view in views if view.pair.label == cause.process), views[0])
    shown = {row.name for row in cause.evidence}
    longer = places_of_slow_steps(view) if cause.category in _OF_SLOW_STEPS else grown(view).filter(~compiling())
    where = [
        Evidence(f"time of {whose(of_workers)} in {name}, per cycle", "host", name, None, "ns", base, other)
        for name, base, other, of_workers in longer.head(FUNCTIONS_SHOWN)
        .select("function", "low", "high", "worker_ratio")
        .rows()
        if name not in shown
    ]
    return replace(cause, evidence=(*cause.evidence, *where))
