"""Puts suspects in order, and lists what follows from a better one as its consequence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepscope.comparison.diagnosis import python
from stepscope.comparison.diagnosis.case import Suspect
from stepscope.comparison.diagnosis.sampled import functions_in, functions_shown
from stepscope.comparison.diagnosis.straggler import straggler
from stepscope.comparison.function_lines import HARDLY_THERE
from stepscope.comparison.model import PYTHON, Cause, Evidence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.comparison.diagnosis.case import View

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
        "layout_copies",
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
OVERLAP = 1.15
#: Confidence of a change of workload from which on all of the work is another, not only an addition.
_OTHER_WORK = 0.85
#: Slow steps, or steps that grow, are when time is lost at a place in the program if they account for so much of it.
#: What a step grows by is known as half of its rise, which is less where growth begins late.
_PLACE_OF = {"slow_tail": 0.75, "growing_steps": 0.5}
#: Memory that grows is why steps grow if it accounts for so much of that.
_SOME_OF = 0.25
#: Causes that stretch all that is there, and those that do not follow from them in functions that the base hardly has.
_STRETCHES = ("cpu_contention", "memory_bandwidth", "cpu_frequency", "gil_contention")
_IN_NEW_FUNCTIONS = ("growing_steps", "slow_operator")
#: A consequence that explains less than this share of the difference is never a cause of its own.
_LEAST_SCORE = 0.05
#: Part of a straggler's lag from which on something on that rank is a reason for it.
_PART_OF_LAG = 0.15
#: Causes that say what calls are for, so that all that these cost, as small calls or on cores, comes after them.
BY_CALLS = ("compilation", "layout_copies", "device_copies")
#: What calls cost follows from a cause that says what they are for, and slow steps from compilation, if that explains
#: so much of it.
_HALF = 0.5
#: Slow steps, whose time is no part of what samples of the main thread's stack say of the others.
_WHEN_SAMPLED = ("periodic_work", "slow_tail")


def of_rank(suspects: Sequence[Suspect], late: Suspect, all_views: Sequence[View]) -> list[Suspect]:
    """The straggler and the suspects that other ranks have too. A suspect on the straggler only is why it is late.

    One such reason is part of the straggler's statement. If there are several, each is a cause of its own. The other
    ranks have slow steps because they wait for it, so these are left out.
    """
    mine = [s for s in suspects if s.cause.process == late.cause.process]
    on_peers = [s for s in suspects if s.cause.process != late.cause.process]
    lag_ns = late.affected_ns
    reasons: list[Suspect] = []
    for suspect in in_order(mine, lag_ns):
        is_part = suspect.affected_ns >= _PART_OF_LAG * lag_ns
        if is_part and not any(_follows(suspect, best, lag_ns) for best in reasons):
            reasons.append(suspect)
    if len(reasons) > 1:
        without_reasons = straggler(all_views, ())
        late = without_reasons if isinstance(without_reasons, Suspect) else late
        reasons = [_on_rank(suspect) for suspect in reasons]
    else:
        reasons = []
    named = {s.cause.category for s in reasons}
    shared = {s.cause.category for s in on_peers} - named - {*_WHEN}
    on_all = [s for s in (*on_peers, *mine) if s.cause.category in shared]
    return [late, *reasons, *one_per_category(on_all, 1)]


def _on_rank(suspect: Suspect) -> Suspect:
    """The suspect with a statement that says on which rank it is."""
    cause = suspect.cause
    return replace(suspect, cause=replace(cause, statement=f"On {cause.process}: {cause.statement}"))


def one_per_category(suspects: Sequence[Suspect], n_processes: int) -> list[Suspect]:
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


def in_order(suspects: Sequence[Suspect], reference: float) -> list[Suspect]:
    """The suspects, the best first, by how much of the reference difference (ns) they explain."""
    return _reasons_first(sorted(suspects, key=lambda s: _score(s, reference), reverse=True))


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


def _stay_alive(copies: Suspect, growth: Suspect) -> bool:
    """Whether copies are made to be kept: the new memory that they fill costs at least as much as they do."""
    is_pair = (copies.cause.category, growth.cause.category) == ("layout_copies", "memory_growth")
    return is_pair and growth.affected_ns >= copies.affected_ns


def _keeps_memory(growth: Suspect, best: Suspect) -> bool:
    """Whether a job that compiles keeps memory besides: new memory costs half of what compiling does, or more."""
    is_pair = (best.cause.category, growth.cause.category) == ("compilation", "memory_growth")
    return is_pair and growth.affected_ns >= _HALF * best.affected_ns


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
            and not _stay_alive(each, late)
            for each in suspects
            if (is_bare(late) and not is_bare(each)) or each.cause.category in BY_CALLS or is_of_memory(late, each)
        )

    def is_of_slow_steps(where: Suspect) -> bool:
        return _is_where(where) and any(
            each.affected_ns >= _PLACE_OF.get(each.cause.category, math.inf) * where.affected_ns for each in suspects
        )

    return sorted(suspects, key=lambda suspect: (has_reason(suspect), is_of_slow_steps(suspect)))


def folded(suspects: Sequence[Suspect], reference: float) -> list[Cause]:
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


def _are_elsewhere(suspect: Suspect, best: Suspect, reference: float) -> bool:
    """Whether samples show time in other functions than the better cause: that of slow or growing steps, or computing.

    What stretches all that is there has no functions. Then they are new, for a part of the difference that matters.
    """
    rows = [row for row in suspect.cause.evidence if functions_shown([row])]
    if suspect.cause.category in _IN_NEW_FUNCTIONS and best.cause.category in _STRETCHES:
        new = (row for row in rows if (row.other or 0.0) >= HARDLY_THERE * (row.base or 0.0))
        return any((row.other or 0.0) - (row.base or 0.0) >= _LEAST_SCORE * reference for row in new)
    theirs = functions_shown(best.cause.evidence)
    return suspect.cause.category in _WHEN and bool(rows) and bool(theirs) and not theirs & functions_shown(rows)


def _follows(suspect: Suspect, best: Suspect, reference: float) -> bool:
    """Whether the better suspect causes this one, and both explain the same time."""
    if suspect.cause.category not in FOLLOWS.get(best.cause.category, ()) or _are_elsewhere(suspect, best, reference):
        return False
    is_of_calls = suspect.cause.category == "host_overhead" and not _is_where(suspect)
    is_of_calls &= best.cause.category in BY_CALLS
    is_compiled = (best.cause.category, suspect.cause.category) == ("compilation", "slow_tail")
    is_most = best.affected_ns >= _HALF * suspect.affected_ns
    if _keeps_memory(suspect, best):
        return False
    if _stay_alive(suspect, best) or ((is_of_calls or is_compiled) and is_most):
        return True
    if suspect.cause.resource == python.MAIN_THREAD and best.cause.category in _WHEN_SAMPLED:
        return suspect.affected_ns < _LEAST_SCORE * reference
    mine, theirs = (functions_in(each.cause.evidence) for each in (suspect, best))
    if _is_where(suspect) and best.cause.category in _PLACE_OF and mine and mine <= theirs:
        return True
    together = max(best.cause.explained_ns, best.affected_ns) + max(suspect.cause.explained_ns, suspect.affected_ns)
    return together > OVERLAP * reference or suspect.affected_ns < _LEAST_SCORE * reference
