"""From suspects to causes: the best first, what follows from a better one listed under it, the rest ruled out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stepscope.comparison.diagnosis import cpu, gpu, io, links, memory, operators, python, workload
from stepscope.comparison.diagnosis.case import Case, View, views
from stepscope.comparison.diagnosis.observed import with_functions
from stepscope.comparison.diagnosis.ranks import rank_of, straggler
from stepscope.comparison.diagnosis.rule import Missing, Rule, Suspect
from stepscope.comparison.effects import effects
from stepscope.comparison.model import Cause, Evidence, RuledOut
from stepscope.core import units

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["FOLLOWS", "RULES", "Diagnosis", "diagnose"]

#: Every rule that looks at one pair of processes.
RULES: tuple[Rule, ...] = (
    *cpu.RULES,
    *gpu.RULES,
    *links.RULES,
    *io.RULES,
    *python.RULES,
    *operators.RULES,
    *workload.RULES,
    *memory.RULES,
)

_HOST = ("host_overhead", "data_loading", "slow_operator", "disk_io", "memory_pressure")
#: What a cause brings about, so that it may look like a cause by itself.
FOLLOWS: dict[str, tuple[str, ...]] = {
    "cpu_contention": ("cpu_frequency", "gil_contention", *_HOST),
    "cpu_frequency": _HOST,
    "gil_contention": ("cpu_contention", *_HOST),
    "gpu_frequency": ("slow_kernel", "host_overhead", "slow_operator"),
    "interconnect_pcie": ("slow_kernel", "straggler_rank", "network", "host_overhead", "data_loading"),
    "interconnect_nvlink": ("slow_kernel", "straggler_rank", "network", "host_overhead"),
    "network": ("straggler_rank",),
    "disk_io": ("host_overhead",),
    "data_loading": ("disk_io", "host_overhead"),
    "python_gc": ("host_overhead",),
    "slow_operator": ("slow_kernel", "host_overhead", "memory_growth"),
    "slow_kernel": ("host_overhead",),
    "memory_pressure": ("disk_io", "host_overhead"),
    "memory_growth": ("workload_change", "slow_operator", "python_gc", "memory_pressure", "host_overhead"),
    "workload_change": (
        "slow_operator",
        "slow_kernel",
        "host_overhead",
        "data_loading",
        "python_gc",
        "memory_growth",
        "cpu_contention",
    ),
}
#: Two causes that explain more than this of the difference together tell of the same time.
_OVERLAP = 1.15
#: Causes that are nothing but time spent: with less than this share of the difference they are no answer to it.
_OF_TIME = ("host_overhead", "slow_operator", "slow_kernel", "data_loading", "disk_io", "python_gc")
_LEAST_SHARE = 0.1
#: A certain cause that explains so much of the difference leaves no need for others.
_ENOUGH = 0.8
#: A suspect with less than this share of what the best explains is not worth a line of its own.
_LEAST_SCORE = 0.05


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Causes, the best first; what was ruled out and why; what could not be judged, in words for the reader."""

    causes: tuple[Cause, ...]
    ruled_out: tuple[RuledOut, ...]
    notes: tuple[str, ...]


def diagnose(case: Case) -> Diagnosis:
    """What made the other run differ from the base.

    Causes are ranked by the share of the difference that each explains, times its confidence, then by how far the
    resource itself moved. A cause whose time a better one accounts for is listed under that one as its consequence.
    No cause is invented: where nothing has its necessary evidence the result is empty.
    """
    found = _found(case)
    named = {cause.category for cause in found.causes}
    ruled_out = tuple(_first_of_each(row for row in found.ruled_out if row.category not in named))
    notes = _notes(found, named)
    if not found.causes and any(view.is_faster for view in found.views):
        notes += _backwards(case)
    return Diagnosis(with_functions(found.causes, found.views), ruled_out, tuple(notes))


@dataclass(frozen=True, slots=True)
class _Found:
    """All that the rules say of a case."""

    views: tuple[View, ...]
    causes: tuple[Cause, ...]
    ruled_out: tuple[RuledOut, ...]
    missing: tuple[Missing, ...]


def _found(case: Case) -> _Found:
    seen = views(case)
    judged = [(view, rule.judge(view)) for view in seen for rule in RULES]
    suspects = [_with_rank(found, view) for view, found in judged if isinstance(found, Suspect)]
    late = straggler(seen, suspects) if len(seen) > 1 else RuledOut("straggler_rank", "there is only one process")
    chosen = _of_rank(suspects, late) if isinstance(late, Suspect) else _together(suspects, len(seen))
    reference = _reference(seen)
    chosen, trifles = _weighed(chosen, reference)
    causes = _folded(sorted(chosen, key=lambda s: _score(s, reference), reverse=True), reference)
    ruled_out = [found for _, found in judged if isinstance(found, RuledOut)]
    ruled_out += [*([late] if isinstance(late, RuledOut) else []), *trifles]
    missing = tuple(found for _, found in judged if isinstance(found, Missing))
    return _Found(seen, tuple(causes), tuple(ruled_out), missing)


def _backwards(case: Case) -> list[str]:
    """What slowed the base, where the other run is the faster one: a fault that is gone."""
    pairs = tuple(replace(pair, base=pair.other, other=pair.base) for pair in case.pairs)
    causes = _found(Case(pairs, effects(pairs))).causes
    return [
        f"the base is the slower run; compared with the other it has {causes[0].category}: {causes[0].statement}"
        for _ in causes[:1]
    ]


def _with_rank(suspect: Suspect, view: View) -> Suspect:
    return replace(suspect, cause=replace(suspect.cause, rank=rank_of(view)))


def _of_rank(suspects: Sequence[Suspect], late: Suspect) -> list[Suspect]:
    """The straggler, and what is wrong on all ranks: what is wrong on it alone is why it is late."""
    others = [s for s in suspects if s.cause.process != late.cause.process]
    shared = {s.cause.category for s in others}
    kept = [s for s in suspects if s.cause.category in shared and s.cause.process == late.cause.process]
    return [late, *_together([*others, *kept], 1)] if shared else [late]


def _together(suspects: Sequence[Suspect], n_processes: int) -> list[Suspect]:
    """One suspect for each category and device of the machine, the one that costs most; the others are evidence."""
    groups: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        groups.setdefault(suspect.cause.category, []).append(suspect)
    found = []
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
        found.append(best)
    return found


def _reference(seen: Sequence[View]) -> float:
    """The difference to explain: by how much a cycle takes longer, but no less than what is worth a word."""
    return max((max(abs(view.delta_ns), view.least_ns) for view in seen), default=0.0) or 1.0


def _weighed(suspects: Sequence[Suspect], reference: float) -> tuple[list[Suspect], list[RuledOut]]:
    """Those that matter, and those whose only mark is time and which explain next to nothing of the difference."""
    kept, left = [], []
    for suspect in suspects:
        share = max(abs(suspect.cause.explained_ns), suspect.affected_ns) / reference
        if suspect.cause.category in _OF_TIME and share < _LEAST_SHARE:
            text = f"explains {units.percent(share)} of the difference: {suspect.cause.statement}"
            left.append(RuledOut(suspect.cause.category, text))
        else:
            kept.append(suspect)
    return kept, left


def _score(suspect: Suspect, reference: float) -> tuple[float, float]:
    """Explained share times confidence; then how far the resource moved, up or down."""
    share = min(max(abs(suspect.cause.explained_ns), suspect.affected_ns, 0.0) / reference, 1.0)
    far = suspect.cause.magnitude or 1.0
    return share * suspect.cause.confidence, max(far, 1 / far) if far > 0 else 1.0


def _folded(suspects: Sequence[Suspect], reference: float) -> list[Cause]:
    """Causes in order, each with those under it that follow from it."""
    kept: list[Suspect] = []
    costs: dict[int, list[Evidence]] = {}
    for suspect in suspects:
        above = next((i for i, best in enumerate(kept) if _follows(suspect, best, reference)), None)
        if above is None:
            kept.append(suspect)
        else:
            text = f"{suspect.cause.category}: {suspect.cause.statement}"
            costs.setdefault(above, []).append(Evidence(text, device=suspect.cause.device, role="consequence"))
    return [replace(s.cause, consequences=(*s.cause.consequences, *costs.get(i, ()))) for i, s in enumerate(kept)]


def _follows(suspect: Suspect, best: Suspect, reference: float) -> bool:
    """Whether the better one brings this about and leaves it no time of its own."""
    if suspect.cause.category not in FOLLOWS.get(best.cause.category, ()):
        return False
    together = max(best.cause.explained_ns, best.affected_ns) + max(suspect.cause.explained_ns, suspect.affected_ns)
    return together > _OVERLAP * reference or suspect.affected_ns < _LEAST_SCORE * reference


def _first_of_each(found: Iterable[RuledOut]) -> list[RuledOut]:
    first: dict[str, RuledOut] = {}
    for row in found:
        first.setdefault(row.category, row)
    return list(first.values())


def _notes(found: _Found, named: set[str]) -> list[str]:
    """What the data at hand cannot show, and what would; nothing of it if a cause accounts for the difference."""
    best = found.causes[0] if found.causes else None
    if best and best.certainty == "certain" and best.explained_ns >= _ENOUGH * _reference(found.views):
        return []
    needs: dict[str, str] = {}
    for row in found.missing:
        needs.setdefault(row.category, row.needs)
    unknown = [
        f"{category} cannot be judged: record {what}" for category, what in needs.items() if category not in named
    ]
    notes = ["; ".join(unknown)] if unknown else []
    if not found.causes and any(view.is_slower for view in found.views):
        notes.insert(0, "cycles take longer, but nothing that was recorded accounts for it")
    return notes
