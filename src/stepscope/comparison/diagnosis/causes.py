"""Ranks the rules' suspects into causes, and lists what follows from a better cause under that one."""

from __future__ import annotations

import math
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
    threads,
    workload,
)
from stepscope.comparison.diagnosis.case import COLLECTIVES, Case, Judgement, Missing, Rule, Suspect, View, views
from stepscope.comparison.diagnosis.change import ABSENT
from stepscope.comparison.diagnosis.sampled import FUNCTIONS_SHOWN, functions_in, grown, whose
from stepscope.comparison.diagnosis.straggler import straggler
from stepscope.comparison.effects import effects
from stepscope.comparison.model import PYTHON, Cause, Evidence, RuledOut
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
    *memory.RULES,
    *over_time.RULES,
)

_HOST = ("host_overhead", "data_loading", "slow_operator", "disk_io", "memory_pressure")
_OVER_TIME = ("slow_tail", "growing_steps")
#: Causes that say when time is lost, and not by what.
_WHEN = ("periodic_work", *_OVER_TIME)
#: The consequences of each cause that may appear to be causes themselves.
FOLLOWS: dict[str, tuple[str, ...]] = {
    "thread_oversubscription": ("cpu_contention", "gil_contention", "slow_tail", *_HOST),
    "compilation": (
        "cpu_contention",
        "gil_contention",
        "workload_change",
        "slow_tail",
        "periodic_work",
        "memory_growth",
        "python_gc",
        *_HOST,
    ),
    "lock_contention": ("cpu_contention", "gil_contention", "slow_tail", "periodic_work", *_HOST),
    "layout_copies": ("workload_change", "memory_growth", "slow_operator", "host_overhead", "memory_pressure"),
    "cpu_contention": ("cpu_frequency", "gil_contention", *_HOST, *_OVER_TIME),
    "memory_bandwidth": ("cpu_contention", "cpu_frequency", "slow_operator", "host_overhead", "slow_tail"),
    "cpu_frequency": (*_HOST, *_OVER_TIME),
    "gil_contention": ("cpu_contention", *_HOST, "slow_tail"),
    "gpu_frequency": ("slow_kernel", "host_overhead", "slow_operator"),
    "gpu_contention": ("gpu_frequency", "slow_kernel", "slow_operator", "host_overhead", "cpu_contention", *_WHEN),
    "device_copies": ("host_overhead", "interconnect_pcie", "slow_operator"),
    "interconnect_pcie": ("slow_kernel", "straggler_rank", "network", "host_overhead", "data_loading"),
    "interconnect_nvlink": ("slow_kernel", "straggler_rank", "network", "host_overhead"),
    "network": ("straggler_rank", "slow_tail"),
    "disk_io": ("host_overhead", "gil_contention", *_WHEN),
    "data_loading": ("disk_io", "host_overhead", "slow_tail", "periodic_work"),
    "python_gc": ("host_overhead", "slow_tail", "periodic_work", "memory_pressure"),
    "periodic_work": ("slow_operator", "workload_change", "slow_tail", *_HOST),
    "growing_steps": ("slow_operator", "slow_tail", *_HOST),
    "slow_tail": ("host_overhead",),
    "slow_operator": ("slow_kernel", "host_overhead", "memory_growth", "memory_pressure"),
    "slow_kernel": ("host_overhead",),
    "memory_pressure": ("disk_io", "host_overhead", "slow_operator"),
    "memory_growth": (
        "workload_change",
        "slow_operator",
        "python_gc",
        "memory_pressure",
        "host_overhead",
        "growing_steps",
    ),
    "workload_change": (
        "slow_operator",
        "slow_kernel",
        "host_overhead",
        "data_loading",
        "python_gc",
        "memory_growth",
        "memory_pressure",
        "cpu_contention",
        "slow_tail",
        "periodic_work",
    ),
}
#: Two causes that together explain more than this much of the difference explain the same time twice.
_OVERLAP = 1.15
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
#: Confidence of a change of workload from which on all of the work is another, not only an addition.
_OTHER_WORK = 0.85
#: Share of the effect, at the far end of its interval, that a cause must explain to be called certain, or likely. A
#: cause that explains less than half of it leaves most of the effect to others.
_CERTAIN_SHARE, _LIKELY_SHARE = 0.5, 0.25
#: The highest confidence of what is called likely, and possible.
_LIKELY, _POSSIBLE = 0.89, 0.59
#: Slow steps, or steps that grow, are when time is lost at a place in the program if they account for so much of it.
#: What a step grows by is known as half of its rise, which is less where growth begins late.
_PLACE_OF = {"slow_tail": 0.75, "growing_steps": 0.5}
#: Memory that grows is why steps grow if it accounts for so much of that.
_SOME_OF = 0.25
#: Part of a change that slow steps account for if they are what is told of it.
_HALF = 0.5
#: A consequence that explains less than this share of the difference is never a cause of its own.
_LEAST_SCORE = 0.05
#: Causes that say what calls are for, so that all that these cost, as small calls or on cores, comes after them.
_BY_CALLS = ("compilation", "layout_copies", "device_copies")
#: Slow steps, whose time is no part of what samples of the main thread's stack say of the others.
_WHEN_SAMPLED = ("periodic_work", "slow_tail")
#: Causes that make the main thread spend time somewhere in Python.
_WHERE = (
    "host_overhead", "device_copies", "slow_operator", "data_loading", "gil_contention", "disk_io", *_WHEN_SAMPLED,
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
        own = next((view.delta_ns for view in judged.views if view.pair.label == cause.process), 0.0)
        share = cause.explained_ns / (own or step.delta)
        limit = 1.0 if share >= _CERTAIN_SHARE * far else _LIKELY if share >= _LIKELY_SHARE * far else _POSSIBLE
        rest = [each.explained_ns for each in judged.causes if each is not cause]
        matters = share >= _LEAST_SHARE or _is_rest(
            cause.explained_ns, rest, _to_explain(own or step.delta, case), step.base
        )
        (causes if matters else minor).append(_at_most(cause, limit))
    if not causes:
        causes = [each for each in minor if each.category in STATES and each.explained_ns * step.delta >= 0]
    return tuple(causes), _as_remarks([each for each in minor if each not in causes])


def _is_rest(ns: float, explained: Iterable[float], whole: float, base_ns: float) -> bool:
    """Whether a cause of so many ns is much of what larger ones leave of the whole difference, and has room there."""
    larger = sum(each for each in explained if each > ns)
    left = whole - larger
    is_open = larger > 0 and left >= _LEAST_SHARE * whole
    return is_open and ns >= max(_OF_CYCLE * base_ns, _OF_REST * left) and larger + ns <= _OVERLAP * whole


def _to_explain(ns: float, case: Case) -> float:
    """The difference of profiled cycles, or that of all steps of the run if that is less. Units: ns."""
    whole = case.step_time.delta if case.step_time is not None else 0.0
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
    chosen = _of_rank(suspects, late) if isinstance(late, Suspect) else _together(suspects, n)
    reference = _reference(all_views)
    chosen, minor = _material(
        chosen, reference, _to_explain(reference, case), max((view.base_ns for view in all_views), default=0.0)
    )
    causes = _folded(_reasons_first(sorted(chosen, key=lambda s: _score(s, reference), reverse=True)), reference)
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


def _of_rank(suspects: Sequence[Suspect], late: Suspect) -> list[Suspect]:
    """The straggler and the suspects that other ranks have too. A suspect on the straggler only is why it is late."""
    on_peers = [s for s in suspects if s.cause.process != late.cause.process]
    shared = {s.cause.category for s in on_peers}
    on_both = [s for s in suspects if s.cause.category in shared and s.cause.process == late.cause.process]
    return [late, *_together([*on_peers, *on_both], 1)] if shared else [late]


def _together(suspects: Sequence[Suspect], n_processes: int) -> list[Suspect]:
    """For each category the suspect that costs most; those of the other processes become its evidence."""
    groups: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        groups.setdefault(suspect.cause.category, []).append(suspect)
    chosen = []
    for mine in groups.values():
        best = max(mine, key=lambda s: (s.affected_ns * s.cause.confidence, s.cause.magnitude or 0.0))
        if n_processes > 1 and len(mine) > 1:
            same = [
                Evidence(f"{s.cause.process or 'another process'}: {s.cause.statement}", device=s.cause.device)
                for s in mine
                if s is not best
            ]
            everywhere = len(mine) == n_processes
            cause = replace(
                best.cause,
                evidence=(*best.cause.evidence, *same),
                rank=None if everywhere else best.cause.rank,
                process=None if everywhere else best.cause.process,
            )
            best = replace(best, cause=cause)
        chosen.append(best)
    return chosen


def _reference(all_views: Sequence[View]) -> float:
    """The difference to explain: how much longer a cycle takes, but at least `View.least_ns`. Units: ns."""
    return max((max(abs(view.delta_ns), view.least_ns) for view in all_views), default=0.0) or 1.0


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


def _score(suspect: Suspect, reference: float) -> tuple[float, float]:
    """Explained share times confidence, then how much the resource changed, up or down.

    Work of another kind or size comes before what may follow from it.
    """
    share = min(max(abs(suspect.cause.explained_ns), suspect.affected_ns, 0.0) / reference, 1.0)
    far = suspect.cause.magnitude or 1.0
    is_other_work = suspect.cause.category == "workload_change" and suspect.cause.confidence >= _OTHER_WORK
    return share * (1.0 if is_other_work else suspect.cause.confidence), max(far, 1 / far) if far > 0 else 1.0


def _is_where(suspect: Suspect) -> bool:
    """Whether a cause says only where in the program time is lost.

    That is all that the time between operators says, which a loop of Python spends, and all that samples of the main
    thread's stack say.
    """
    first = suspect.cause.evidence[0].name if suspect.cause.evidence else None
    return suspect.cause.category == "host_overhead" and (
        first == PYTHON or suspect.cause.resource == python.MAIN_THREAD
    )


def _reasons_first(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Causes that say only when or where time is lost after those that say by what, if one explains half of that time.

    A compiler's own threads keep cores and Python's lock busy, so what follows from it comes after it, too.

    Where slow steps, or steps that grow, lose what is lost somewhere in the program, that place is why.
    """

    def is_bare(suspect: Suspect) -> bool:
        return suspect.cause.category in _WHEN or _is_where(suspect)

    def is_of_memory(late: Suspect, each: Suspect) -> bool:
        return (late.cause.category, each.cause.category) == ("growing_steps", "memory_growth")

    def has_reason(late: Suspect) -> bool:
        return any(
            late.cause.category in FOLLOWS.get(each.cause.category, ())
            and each.affected_ns >= (_SOME_OF if is_of_memory(late, each) else 0.5) * late.affected_ns
            for each in suspects
            if (is_bare(late) and not is_bare(each)) or each.cause.category in _BY_CALLS or is_of_memory(late, each)
        )

    def is_of_slow_steps(where: Suspect) -> bool:
        return _is_where(where) and any(
            each.affected_ns >= _PLACE_OF.get(each.cause.category, math.inf) * where.affected_ns for each in suspects
        )

    return sorted(suspects, key=lambda suspect: (has_reason(suspect), is_of_slow_steps(suspect)))


def _folded(suspects: Sequence[Suspect], reference: float) -> list[Cause]:
    """Causes in order, each with the suspects that follow from it as its consequences.

    Where slow steps, or steps that grow, lose time is no consequence of them, but evidence.
    """
    chosen: list[Suspect] = []
    costs: dict[int, list[Evidence]] = {}
    places: dict[int, list[Evidence]] = {}
    for suspect in suspects:
        above = next((i for i, best in enumerate(chosen) if _follows(suspect, best, reference)), None)
        if above is None:
            chosen.append(suspect)
        elif chosen[above].cause.category in _PLACE_OF and suspect.cause.category == "host_overhead":
            places.setdefault(above, []).extend(replace(row, role="supporting") for row in suspect.cause.evidence)
        else:
            text = f"{suspect.cause.category}: {suspect.cause.statement}"
            costs.setdefault(above, []).append(Evidence(text, device=suspect.cause.device, role="consequence"))
    return [
        replace(
            s.cause,
            evidence=(*s.cause.evidence, *places.get(i, ())),
            consequences=(*s.cause.consequences, *costs.get(i, ())),
        )
        for i, s in enumerate(chosen)
    ]


def _follows(suspect: Suspect, best: Suspect, reference: float) -> bool:
    """Whether the better suspect causes this one, and both explain the same time."""
    if suspect.cause.category not in FOLLOWS.get(best.cause.category, ()):
        return False
    is_of_calls = suspect.cause.category == "host_overhead" and not _is_where(suspect)
    if is_of_calls and best.cause.category in _BY_CALLS and best.affected_ns >= 0.5 * suspect.affected_ns:
        return True
    if suspect.cause.resource == python.MAIN_THREAD and best.cause.category in _WHEN_SAMPLED:
        return suspect.affected_ns < _LEAST_SCORE * reference
    mine, theirs = (functions_in(each.cause.evidence) for each in (suspect, best))
    if _is_where(suspect) and best.cause.category in _PLACE_OF and mine and mine <= theirs:
        return True
    together = max(best.cause.explained_ns, best.affected_ns) + max(suspect.cause.explained_ns, suspect.affected_ns)
    return together > _OVERLAP * reference or suspect.affected_ns < _LEAST_SCORE * reference


def with_functions(causes: Iterable[Cause], views: Sequence[View]) -> tuple[Cause, ...]:
    """The causes; those on the host get the Python functions in which the main thread spends more time as evidence.

    The functions come from stack samples. They show where to look in the program and decide nothing.
    """
    return tuple(_with_functions(cause, views) if cause.category in _WHERE else cause for cause in causes)


def _with_functions(cause: Cause, views: Sequence[View]) -> Cause:
    view = next((view for view in views if view.pair.label == cause.process), views[0])
    shown = {row.name for row in cause.evidence}
    where = [
        Evidence(f"time of {whose(of_workers)} in {name}, per cycle", "host", name, None, "ns", base, other)
        for name, base, other, of_workers in grown(view)
        .head(FUNCTIONS_SHOWN)
        .select("function", "low", "high", "worker_ratio")
        .rows()
        if name not in shown
    ]
    return replace(cause, evidence=(*cause.evidence, *where))
