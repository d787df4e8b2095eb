"""How right `stepscope predict` is: against simulated programs, and against recordings of known effect.

python predictions.py oracle [--programs 200] [--first N] [--without all | none | FIELD,…] [--worst 20] [--keep DIR]

`oracle` asks ten questions about each random program; the truth is the program changed and simulated again. It
prints errors with all fields recorded and with each one left out, errors by kind of program, and the worst answers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from step_programs import random_case
from step_recordings import FIELDS, write
from step_simulator import simulate

import stepscope
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from step_programs import Case

#: Differences of the true step below this do not count as an order.
TIE = 0.003


@dataclass(frozen=True, slots=True)
class Answer:
    """One question about one program. Times in ns; the true ones are means of many steps."""

    seed: int
    kinds: frozenset[str]
    texts: tuple[str, ...]
    true_step_ns: float
    truth_ns: float
    step_ns: float = float("nan")
    predicted_ns: float = float("nan")
    low_ns: float = float("nan")
    high_ns: float = float("nan")
    basis: str = ""
    failure: str = ""

    @property
    def truth(self) -> float:
        """The changed step as a share of the step."""
        return self.truth_ns / self.true_step_ns

    @property
    def predicted(self) -> float:
        """The same, as predicted."""
        return self.predicted_ns / self.step_ns

    @property
    def error(self) -> float:
        """Of the predicted step, relative to the true one; infinite without an answer."""
        return float("inf") if self.failure else self.predicted / self.truth - 1

    @property
    def covered(self) -> bool:
        """Whether the truth lies between the bounds, give or take 0.5 %."""
        low, high = self.low_ns / self.step_ns, self.high_ns / self.step_ns
        return low * 0.995 <= self.truth <= high * 1.005


def ask(case: Case, folder: Path, without: str | None) -> list[Answer]:
    """Record the case, ask all its questions."""
    paths = []
    for rank in case.run.ranks:
        paths.append(folder / f"seed{case.seed}-rank{rank.rank}{'-' + without if without else ''}.json")
        write(rank, case.program.first_step, paths[-1], without)
    source = stepscope.load(str(paths[0])) if len(paths) == 1 else [str(path) for path in paths]
    answers = []
    for change in case.changes:
        truth = simulate(change.apply(case.program)).step_ns
        what = (case.seed, case.kinds, change.texts, case.run.step_ns, truth)
        try:
            row = stepscope.predict(source, list(change.texts)).row(0, named=True)
            numbers = [float(row[name]) for name in ("step_ns", "predicted_ns", "low_ns", "high_ns")]
            answers.append(Answer(*what, *numbers, row["basis"]))
        except (StepscopeError, TypeError) as error:
            answers.append(Answer(*what, failure=str(error)))
    return answers


def kendall(answers: Sequence[Answer]) -> float | None:
    """Agreement of the order of changes; pairs whose truths are about the same do not count."""
    score = pairs = 0
    for a, b in combinations(answers, 2):
        if abs(a.truth - b.truth) > TIE:
            pairs += 1
            agree = (a.truth - b.truth) * (a.predicted - b.predicted)
            score += (agree > 0) - (agree < 0)
    return score / pairs if pairs else None


def first_right(answers: Sequence[Answer]) -> bool | None:
    """Whether the change that is predicted to gain most does, or about as much; None if none gains anything."""
    best = min(a.truth for a in answers)
    if best > 1 - TIE:
        return None
    return min(answers, key=lambda a: a.predicted).truth <= best + TIE


def quantiles(answers: Iterable[Answer]) -> str:
    """Count, median, 95th percentile and largest error, and how many intervals hold the truth."""
    rows = list(answers)
    errors = np.abs([a.error for a in rows])
    median, high = np.quantile(errors, (0.5, 0.95), method="inverted_cdf")
    covered = np.mean([a.covered for a in rows])
    return f"{len(rows):>6} | {median:8.2%} | {high:8.2%} | {np.mean(errors <= 0.01):7.1%} | {covered:7.1%}"


def oracle(args: argparse.Namespace) -> None:
    """Grade, and print."""
    fields = (
        [None, *FIELDS] if args.without == "all" else [f or None for f in args.without.replace("none", "").split(",")]
    )
    seeds = range(args.first, args.first + args.programs)
    answers: dict[str | None, list[Answer]] = {field: [] for field in fields}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.keep or temporary)
        for seed in seeds:
            case = random_case(seed)
            for field in fields:
                answers[field] += ask(case, folder, field)
    print("| left out |      n |   median |     95 % | ≤ 1 % | interval holds |\n|---|---|---|---|---|---|")
    for field, rows in answers.items():
        print(f"| {field or 'nothing':20} | {quantiles(rows)} |")
    rows = answers[fields[0]]
    print("\n| kind of program |      n |   median |     95 % | ≤ 1 % | interval holds |\n|---|---|---|---|---|---|")
    for kind in sorted({kind for a in rows for kind in a.kinds}):
        print(f"| {kind:20} | {quantiles(a for a in rows if kind in a.kinds)} |")
    print("\n| question |      n |   median |     95 % | ≤ 1 % | interval holds |\n|---|---|---|---|---|---|")
    for kind in sorted({_question(a) for a in rows}):
        print(f"| {kind:20} | {quantiles(a for a in rows if _question(a) == kind)} |")
    programs = [[a for a in rows if a.seed == seed and not a.failure] for seed in seeds]
    taus = [tau for group in programs if group and (tau := kendall(group)) is not None]
    firsts = [right for group in programs if group and (right := first_right(group)) is not None]
    bound = [a for a in rows if {"queue full", "loader-bound"} & a.kinds and not a.failure]
    taken = sum(a.predicted < a.truth - 0.02 for a in bound)
    print(f"\nKendall τ: mean {np.mean(taus):.3f}; first right: {np.mean(firsts):.1%} of {len(firsts)} programs")
    print(f"gains that queue or loader takes back: {taken} of {len(bound)}")
    print(f"no answer: {sum(bool(a.failure) for a in rows)}", {a.failure for a in rows if a.failure})
    for a in sorted(rows, key=lambda a: -abs(a.error))[: args.worst]:
        print(f"{a.seed:4} {a.error:+8.1%} truth {1 - a.truth:6.1%} said {1 - a.predicted:6.1%} {a.basis} "
              f"{' + '.join(a.texts)[:70]:70} {', '.join(sorted(a.kinds))} {a.failure}")  # fmt: skip


def _question(answer: Answer) -> str:
    return "two changes" if len(answer.texts) > 1 else answer.texts[0].split("~", 1)[0].split(" /", 1)[0][:24]


def main() -> None:
    """Read the command line and grade."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("oracle")
    one.add_argument("--programs", type=int, default=200)
    one.add_argument("--first", type=int, default=0)
    one.add_argument("--without", default="none")
    one.add_argument("--worst", type=int, default=20)
    one.add_argument("--keep")
    one.set_defaults(run=oracle)
    args = parser.parse_args()
    os.environ["STEPSCOPE_CACHE"] = "0"
    args.run(args)


if __name__ == "__main__":
    main()
