"""Which process of the one run is compared with which of the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Pair:
    """A process of each run, by their ids. A comparison is called strict if they are the same, else cross."""

    first: int
    second: int

    @property
    def is_strict(self) -> bool:
        """Whether both runs have the process under the same id."""
        return self.first == self.second

    @property
    def labels(self) -> tuple[str, str]:
        """What the two groups of cycles are called."""
        return ("normal", "abnormal") if self.is_strict else (f"normal_pid_{self.first}", f"abnormal_pid_{self.second}")

    def title(self, case: str) -> str:
        """Heading of the report on a case."""
        if self.is_strict:
            return f"# Strict Performance Comparison: {case} (PID: {self.first})"
        return f"# Cross Performance Comparison: {case} (Normal PID:{self.first} vs Abnormal PID:{self.second})"


def pairs_of(first: Sequence[int], second: Sequence[int]) -> list[Pair]:
    """All pairs that the published tool reports on: ids in both runs, then each of one run's own with the other's."""
    both = sorted(set(first) & set(second))
    alone = sorted(set(first) - set(second))
    others = sorted(set(second) - set(first))
    return [*(Pair(pid, pid) for pid in both), *(Pair(a, b) for a in alone for b in others)]


def chosen_pair(first: Sequence[int], second: Sequence[int], pid: int | None, other_pid: int | None) -> Pair:
    """The first of those pairs, or the one that is asked for. Raises StepscopeError if there is none such."""
    for runs, asked, flag in ((first, pid, "--pid"), (second, other_pid, "--other-pid")):
        if asked is not None and asked not in runs:
            known = ", ".join(map(str, sorted(runs)))
            raise StepscopeError(f"no process {asked}, as {flag} asks for, in that run", f"it has {known}")
    if pid is not None and other_pid is not None:
        return Pair(pid, other_pid)
    for pair in pairs_of(first, second):
        if pid in (None, pair.first) and other_pid in (None, pair.second):
            return pair
    hint = "name both with --pid and --other-pid"
    raise StepscopeError("the processes of the two runs leave no pair with the one asked for", hint)
