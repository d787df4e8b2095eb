"""What rules read and return: a `View` of each pair of processes in numbers, and a judgement of one cause on it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.comparison.diagnosis.by_cycle import RunByCycle, of_amount, of_resource, unit_of
from stepscope.comparison.diagnosis.change import ABSENT, SURE, Change, changed
from stepscope.comparison.diagnosis.sizes import retyped, share_of_same_work, sizes, sizes_of_calls
from stepscope.comparison.model import COMMUNICATION, OTHER, PYTHON, WINDOWS, Cause, Evidence, RuledOut
from stepscope.comparison.whole_run import elapsed_step_ns, tails_of
from stepscope.core.collectives import talks_to_ranks
from stepscope.core.table import filtered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from stepscope.comparison.model import Effect, Pair, Verdict
    from stepscope.comparison.whole_run import Tails

    Floats = NDArray[np.float64]


#: Share of a cycle that a cause must explain: healthy runs on one machine differ by 1 to 3 % of their step time.
MATERIAL = 0.03
#: Parts of a cycle: time in which nothing that was recorded ran, and time in collectives.
GAPS = (PYTHON, OTHER)
COLLECTIVES = (COMMUNICATION, "communication")
#: Elements per call vary by less than this from batch to batch if the sizes stay the same.
_SAME_SIZE = 0.05
#: Significance of more slow steps, if they come at a regular distance, or take three times as long as others.
_REGULAR, _IF_FAR = 0.01, 0.02
_WORK = ["device", "name"]
_MEASURES = ("calls", "total_ns", "self_ns", "ns_per_call")
#: Own time per cycle and time per call of a function that a run does not have.
_NEVER_RAN = (np.zeros(1), np.empty(0))
#: How much some evidence raises the confidence, and the evidence; None if there is none.
Clue = tuple[float, Evidence] | None


class Case(msgspec.Struct, frozen=True):
    """What a diagnosis starts from: the pairs of processes, their EFFECTS, and the change of the step time.

    `step_verdict` says whether that change is proven. `machines` names both runs' hardware if it differs. `whole` is
    the change over the whole run, if its steps were timed.
    """

    pairs: tuple[Pair, ...]
    effects: pl.DataFrame
    step_time: Effect | None = None
    step_verdict: Verdict = "inconclusive"
    machines: str = ""
    whole: Effect | None = None


class View(msgspec.Struct, frozen=True, eq=False, weakref=True, dict=True):
    """One pair of processes in numbers. Times are ns per cycle; what counters and samples say is per step of the run.

    `resources` are means over cycles by device and metric. `amounts` are rates multiplied by the cycle's duration. If
    the runs have different kinds of cycle (`same_cycles` is false), only times per call and resources are comparable.
    `peers` are the other processes of the job. `tails` are the slow steps of the whole run, if it was timed. `run_step`
    is the step that `amounts` are of: that of the whole run, which no profiler made longer, or else `step`. `is_sure`
    is false if typical steps are proven to be longer, and their mean is not: the machine may have been slower.

    `work` has one row per function: device, name, category, is_collective, is_resized (its calls have other sizes),
    `<measure>_base` and `<measure>_other` of calls, total_ns, self_ns and ns_per_call, `<measure>_real` (that measure
    really changed), `own_ns_*` (own time where known, else total), delta_ns (of own_ns) and is_real (own time really
    changed).
    """

    pair: Pair
    step: Change
    parts: Mapping[str, Change]
    resources: Mapping[tuple[str, str], Change]
    amounts: Mapping[tuple[str, str], Change]
    work: pl.DataFrame
    same_cycles: bool = True
    peers: tuple[Pair, ...] = ()
    tails: Tails | None = None
    run_step: Change = ABSENT
    is_sure: bool = True

    @cached_property
    def sizes(self) -> pl.DataFrame:
        """How much work each operator gets in both runs: see `sizes`."""
        return sizes(self.pair)

    @cached_property
    def retyped(self) -> tuple[str, ...]:
        """Operators with new element types, longest first: see `retyped`."""
        return retyped(self.pair)

    @cached_property
    def share_of_same_work(self) -> float | None:
        """Share of the base's time in operators that do the same work in both runs: see `share_of_same_work`."""
        return share_of_same_work(self.pair)

    @property
    def rank(self) -> int | None:
        """Rank of the process in its job."""
        return next((run.rank for run in (*self.pair.other, *self.pair.base) if run.rank is not None), None)

    @property
    def stretch(self) -> float:
        """How many times longer a profiled cycle of the base takes than a step of the whole run, because of profiling.

        Times of the whole run count that much more where profiled cycles are what is explained. 1 for a server, whose
        cycles are only a part of its time.
        """
        cycle, step = self.step.base, self.run_step.base
        is_known = self.same_cycles and cycle and step and not self.pair.answers_requests
        return cycle / step if is_known and cycle and step else 1.0

    @property
    def delta_ns(self) -> float:
        """How much longer a cycle takes in the other run; 0 if unknown."""
        return self.step.delta if self.same_cycles else 0.0

    @property
    def run_delta_ns(self) -> float:
        """How much longer a step of the whole run takes, which samples and counters are of."""
        return self.delta_ns / self.stretch

    @property
    def run_least_ns(self) -> float:
        """Time per step of the whole run below which a change does not matter."""
        return self.least_ns / self.stretch

    @property
    def base_ns(self) -> float:
        """Duration of a cycle in the base."""
        return self.step.base or 0.0

    @property
    def least_ns(self) -> float:
        """Time per cycle below which a change does not matter."""
        return MATERIAL * self.base_ns

    @property
    def is_slower(self) -> bool:
        """Whether cycles really take longer."""
        return self.same_cycles and self.step.rose(by=self.least_ns)

    @property
    def is_of_time(self) -> bool:
        """Whether windows of time stand for cycles, because no steps were recorded: then only rates say anything."""
        return all(run.anchor == WINDOWS for run in (*self.pair.base, *self.pair.other))

    @property
    def is_profiled(self) -> bool:
        """Whether it is known where the time of a cycle went."""
        return any(name not in GAPS for name in self.parts)

    @property
    def has_tail(self) -> bool:
        """Whether really more steps of the whole run are slow, which makes the mean step longer."""
        tails = self.tails
        if tails is None or tails.added_ns < self.run_least_ns:
            return False
        # A regular distance is no accident by itself, and neither are steps that take three times as long as others.
        limit = _REGULAR if tails.other.every is not None else _IF_FAR if tails.other.is_far else SURE
        return tails.p_value <= limit

    @property
    def is_faster(self) -> bool:
        """Whether cycles are really shorter."""
        return self.same_cycles and self.step.is_real and self.step.delta < -self.least_ns

    def resource(self, device: str, *metrics: str) -> Change:
        """The mean over cycles of the first of these metrics that both runs have."""
        changes = (self.resources.get((device, metric), ABSENT) for metric in metrics)
        return next((change for change in changes if change.is_known), ABSENT)

    def per_cycle(self, device: str, *metrics: str) -> Change:
        """The first of these rates that both runs have, as an amount per cycle: ns, bytes, or events."""
        changes = (self.amounts.get((device, metric), ABSENT) for metric in metrics)
        return next((change for change in changes if change.is_known), ABSENT)

    def part(self, *names: str) -> Change:
        """The sum of these parts of the cycle."""
        parts = [self.parts[name] for name in names if name in self.parts]
        if not parts:
            return ABSENT
        base, other = sum(part.base or 0.0 for part in parts), sum(part.other or 0.0 for part in parts)
        return Change(base, other, any(part.is_real for part in parts), "ns")

    def gaps(self) -> Change:
        """Time per cycle in which nothing recorded ran on the host (Python, sleep, waits); without a profile, all."""
        return self.part(*GAPS) if self.parts else self.step

    def suspect(
        self,
        name: str,
        statement: str,
        affected_ns: float,
        confidence: float,
        shown: Iterable[Evidence],
        *,
        resource: str,
        advice: str,
        device: str | None = None,
        magnitude: float | None = None,
        explained_ns: float | None = None,
        consequences: Iterable[Evidence] = (),
    ) -> Suspect:
        """A cause in this process. It explains the part of `affected_ns` that made cycles longer, unless given."""
        where = (resource, device, self.pair.label, self.rank)
        explained = exposed(self, affected_ns) if explained_ns is None else explained_ns
        sure, texts = clipped(confidence), (tuple(shown), tuple(consequences), advice)
        return Suspect(Cause(name, statement, *where, magnitude, explained, sure, *texts), affected_ns)

    def devices(self, prefix: str) -> list[str]:
        """Names of the devices of that kind which have resources or work, in order."""
        of_work = self.work["device"].unique().to_list() if self.work.height else []
        names = {device for device, _ in self.resources} | set(of_work)
        return sorted(name for name in names if name.startswith(prefix))

    def host_work(self) -> pl.DataFrame:
        """Operators, scheduled time and file access on the host, without collectives and without other sizes."""
        kinds = ("operator", "sched_oncpu", "io")
        is_host = (pl.col("device") == "host") & pl.col("category").is_in(kinds) & ~pl.col("is_collective")
        return self.work.filter(is_host & ~pl.col("is_resized"))

    def operators(self) -> pl.DataFrame:
        """Operators of the framework on the host, without collectives."""
        is_host = (pl.col("device") == "host") & (pl.col("category") == "operator")
        return self.work.filter(is_host & ~pl.col("is_collective"))

    def kernels(self, device: str) -> pl.DataFrame:
        """Kernels of an accelerator, without collectives."""
        work = self.work
        return filtered(work, (work["device"] == device) & (work["category"] == "kernel") & ~work["is_collective"])


def not_slower(name: str, view: View) -> RuledOut:
    """The judgement on a cause of longer cycles where cycles are not longer, or cannot be compared."""
    reason = "cycles are not slower" if view.same_cycles else "the runs have different kinds of cycle"
    return RuledOut(name, reason, is_judged=False)


def not_grown(name: str, view: View, time: Change, reason: str, *, least_ns: float | None = None) -> RuledOut:
    """The judgement on a time per cycle that is not proven to have grown by `least_ns`, by default `View.least_ns`.

    It speaks against the cause only if it is about as long as before, or shorter although cycles are not. Units: ns.
    """
    if not view.same_cycles:
        return RuledOut(name, f"{reason}, but the runs have different kinds of cycle", is_judged=False)
    if time.delta > (view.least_ns if least_ns is None else least_ns):
        return RuledOut(name, f"{reason}, which is not proven", is_judged=False)
    if time.delta < -view.least_ns and view.delta_ns < 0:
        return RuledOut(name, f"{reason}: cycles become shorter by it", is_judged=False)
    return RuledOut(name, reason)


def exposed(view: View, affected_ns: float) -> float:
    """The part of some added time that made the cycle longer: at most the growth of the cycle. Units: ns."""
    return max(0.0, min(affected_ns, view.delta_ns)) if view.same_cycles else affected_ns


def exposed_on_device(view: View, affected_ns: float) -> float:
    """The same for a device, whose added time may be hidden: none unless cycles really take longer. Units: ns."""
    return exposed(view, affected_ns) if view.is_slower or not view.same_cycles else 0.0


def typical_slowdown(work: pl.DataFrame) -> float | None:
    """How many times longer a call takes: the median over functions, by their time in the base; None if unknown."""
    both = work.filter(
        (pl.col("ns_per_call_base") > 0) & (pl.col("ns_per_call_other") > 0) & (pl.col("own_ns_base") > 0)
    )
    if both.is_empty():
        return None
    ratios = both.select(ratio=_own_ratio(), weight="own_ns_base").sort("ratio")
    reached = ratios["weight"].cum_sum().to_numpy() >= ratios["weight"].sum() / 2
    return float(ratios["ratio"][int(np.argmax(reached))])


def share_slowed_by(work: pl.DataFrame, ratio: float) -> float:
    """Share of the base's time in functions whose calls became slower by about `ratio`, 0..1.

    About means between its root and its 1.5th power, that is within half of it on a logarithmic scale.
    """
    both = work.filter(
        (pl.col("ns_per_call_base") > 0) & (pl.col("ns_per_call_other") > 0) & (pl.col("own_ns_base") > 0)
    )
    whole = float(both["own_ns_base"].sum())
    if not whole or ratio == 1:
        return 0.0
    low, high = sorted((ratio**0.5, ratio**1.5))
    near = both.filter(_own_ratio().is_between(low, high))
    return float(near["own_ns_base"].sum()) / whole


def _own_ratio() -> pl.Expr:
    base, other = pl.col("own_ns_base") / pl.col("calls_base"), pl.col("own_ns_other") / pl.col("calls_other")
    return other / base


class Suspect(msgspec.Struct, frozen=True):
    """A cause that has its necessary evidence and nothing against it.

    `affected_ns` is the time per cycle by which the work that depends on the resource became longer. Other work may
    hide some of it: `cause.explained_ns` is the part that made the cycle longer.
    """

    cause: Cause
    affected_ns: float


class Missing(msgspec.Struct, frozen=True):
    """A cause that cannot be judged, and the recording or counter that it needs."""

    category: str
    needs: str


Judgement = Suspect | RuledOut | Missing


class Rule(msgspec.Struct, frozen=True):
    """A cause and the function that judges it on one pair of processes."""

    category: str
    judge: Callable[[View], Judgement]


def clipped(value: float, most: float = 0.97) -> float:
    """A confidence, limited to the range from 0 to `most`."""
    return max(0.0, min(value, most))


def weigh(start: float, clues: Sequence[Clue]) -> tuple[float, tuple[Evidence, ...]]:
    """The confidence, which is `start` plus the weights of the clues, and the evidence."""
    present = [clue for clue in clues if clue is not None]
    return clipped(start + sum(weight for weight, _ in present)), tuple(row for _, row in present)


def views(case: Case) -> tuple[View, ...]:
    """A view of each pair of the case, in order."""
    peers = {pair.label: [other for other in case.pairs if other is not pair] for pair in case.pairs}
    return tuple(view_of(pair, case.effects, peers[pair.label], case.whole) for pair in case.pairs)


def view_of(pair: Pair, effects: pl.DataFrame, peers: Sequence[Pair] = (), whole: Effect | None = None) -> View:
    """The view of one pair. `effects` is EFFECTS of all pairs; `peers` are the other pairs.

    With the change of the `whole` run a cycle of the base, as it was profiled, changes as much as a step of that run.
    """
    is_timed = all(run.run_resources.height for run in (*pair.base, *pair.other))
    base, other = ([RunByCycle(run, is_timed) for run in side] for side in (pair.base, pair.other))
    step = run_step = changed([run.cycles for run in base], [run.cycles for run in other], relative=MATERIAL, unit="ns")
    if whole is not None and is_timed:
        run_step = Change(elapsed_step_ns(pair.base), elapsed_step_ns(pair.other), whole.is_different, "ns")
    elif whole is not None:
        run_step = Change(whole.base, whole.other, whole.is_different, "ns")
    if whole is not None and whole.ratio and step.base:
        step = Change(step.base, step.base * whole.ratio, whole.is_different, "ns")
    names = dict.fromkeys(name for run in (*base, *other) for name in run.parts)
    least = MATERIAL * (step.base or 0.0)
    parts = {
        name: changed(
            [run.part(name) for run in base], [run.part(name) for run in other], relative=0.05, absolute=least
        )
        for name in names
    }
    series = dict.fromkeys(key for run in (*base, *other) for key in run.resources)
    resources = {key: of_resource(key, base, other) for key in series}
    amounts = {key: of_amount(key, base, other, least) for key in series if unit_of(key, base, other).endswith("/s")}
    anchors = [{run.observed.anchor for run in side} for side in (base, other)]
    work = _work(effects.filter(pl.col("process") == pair.label), pair)
    work = _with_single_tests(work, base, other, step)
    same = anchors[0] == anchors[1]
    is_sure = whole is None or whole.low is None or whole.low > 0
    return View(pair, step, parts, resources, amounts, work, same, tuple(peers), tails_of(pair), run_step, is_sure)


def _work(effects: pl.DataFrame, pair: Pair) -> pl.DataFrame:
    """`View.work` from the long table of effects."""
    rows = effects.filter(pl.col("measure").is_in(_MEASURES)).with_columns(
        pl.col("device", "name", "category").cast(pl.String)
    )
    wide = rows.select(*_WORK).unique(maintain_order=True)
    category = rows.group_by(_WORK).agg(pl.col("category").drop_nulls().first())
    wide = wide.join(category, on=_WORK, how="left", maintain_order="left")
    for measure in _MEASURES:
        is_sure = pl.col("is_different") | ((pl.col("p_value") <= 0.001) & (pl.col("delta").abs() > pl.col("drift")))
        mine = rows.filter(pl.col("measure") == measure).select(
            *_WORK,
            pl.col("base").alias(f"{measure}_base"),
            pl.col("other").alias(f"{measure}_other"),
            is_sure.fill_null(value=False).alias(f"{measure}_real"),
        )
        wide = wide.join(mine, on=_WORK, how="left", maintain_order="left")
    # Own time is known for host work only; device work does not nest.
    has_own = pl.col("self_ns_base").is_not_null() | pl.col("self_ns_other").is_not_null()
    wide = wide.with_columns(
        pl.when(has_own)
        .then(pl.col(f"self_ns_{side}"))
        .otherwise(pl.col(f"total_ns_{side}"))
        .fill_null(0.0)
        .alias(f"own_ns_{side}")
        for side in ("base", "other")
    ).with_columns(pl.col("calls_base", "calls_other").fill_null(0.0))
    real = pl.when(has_own).then(pl.col("self_ns_real")).otherwise(pl.col("total_ns_real")).fill_null(value=False)
    resized = sizes_of_calls(pair).filter((pl.col("ratio") - 1).abs() > _SAME_SIZE).select(*_WORK, is_resized=True)
    wide = wide.join(resized, on=_WORK, how="left", maintain_order="left").with_columns(
        pl.col("is_resized").fill_null(value=False)
    )
    is_collective = talks_to_ranks(wide["name"].cast(pl.Categorical))
    return wide.with_columns(
        is_collective=is_collective, is_real=real, delta_ns=pl.col("own_ns_other") - pl.col("own_ns_base")
    )


def _with_single_tests(
    work: pl.DataFrame, base: Sequence[RunByCycle], other: Sequence[RunByCycle], step: Change
) -> pl.DataFrame:
    """Tests functions that grew by 1 % of a cycle, or of their device's work, by themselves as well.

    This finds changes that few cycles or only some of them show, which the correction for all functions hides.
    """
    of_device = pl.col("own_ns_base").sum().over("device")
    least = 0.01 * (step.base or 0.0)
    grew = pl.col("delta_ns") > pl.min_horizontal(pl.lit(least), 0.01 * of_device)
    unsure = work.filter(grew & ~(pl.col("is_real") & pl.col("ns_per_call_real").fill_null(value=False)))
    if unsure.is_empty():
        return work
    series = [[run.of_functions(unsure) for run in side] for side in (base, other)]
    tests = []
    for key in unsure.select(*_WORK).iter_rows():
        own, each = ([[run.get(key, _NEVER_RAN)[i] for run in side] for side in series] for i in (0, 1))
        is_real = changed(own[0], own[1], relative=0.05, absolute=0.1 * least).is_real
        tests.append((*key, is_real, changed(each[0], each[1], relative=0.05).is_real))
    schema = {**dict.fromkeys(_WORK, pl.String), "too": pl.Boolean, "each_too": pl.Boolean}
    joined = work.join(pl.DataFrame(tests, schema=schema, orient="row"), on=_WORK, how="left", maintain_order="left")
    return joined.with_columns(
        is_real=pl.col("is_real") | pl.col("too").fill_null(value=False),
        ns_per_call_real=pl.col("ns_per_call_real").fill_null(value=False) | pl.col("each_too").fill_null(value=False),
    ).drop("too", "each_too")
