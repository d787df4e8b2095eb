"""The causes that are no faults: the run does other work, or more requests come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.comparison.diagnosis.case import Judgement, Missing, Rule, Suspect, not_slower
from stepscope.comparison.diagnosis.change import Change, change_of, evidence, fold, span
from stepscope.comparison.diagnosis.cores import (
    HALF_CORE,
    exchanges,
    held_by_threads,
    outside_cores,
    ran,
    ran_in_all,
    waited,
    with_workers,
)
from stepscope.comparison.diagnosis.python import SMALL_NS, small_calls
from stepscope.comparison.diagnosis.sampled import (
    APART,
    at_queues,
    file_of,
    grown,
    in_functions,
    is_new,
    say_more,
    spread,
    typical_growth,
    waiting,
)
from stepscope.comparison.diagnosis.sizes import PRODUCTS, most_telling
from stepscope.comparison.model import LAYOUT_CALLS, LAYOUT_COPIES, OPERATORS, PROCESS, WORKERS, RuledOut
from stepscope.comparison.whole_run import mean_step_ns
from stepscope.core import units
from stepscope.core.names import shorten
from stepscope.core.table import filtered

if TYPE_CHECKING:
    from stepscope.comparison.diagnosis.case import View
    from stepscope.comparison.model import Evidence


#: Logarithm of the ratio from which on sizes have changed; batches of varying length average to less than 10 %.
_RESIZED = math.log(1.1)
#: Change of a number of calls that counts; cycles that are found by functions may hold a call more or less.
_RECOUNTED = 0.2
#: Share of the time in changed work: half, because the optimizer's work does not grow with the batch.
_HALF = 0.5
#: Time may change by this many times the relative change of the amounts, as of attention over longer sequences.
_FASTER = 3
#: Steps take longer by at least this part of what there is more to do, or the profiled ones are not like the others.
_LEAST_OF_WORK = 0.1
#: Requests differ. Their sizes make steps longer if operators take longer by this part of that.
_LEAST_PAID = 0.25
#: What functions take longer is known by so many standard deviations.
_SIGMAS = 3.0
#: Functions take longer alike if what so much of the time goes to does.
_ALIKE = 0.7
#: Functions at work use about as much processor time as they take; much more than that, and something else works.
_LEAST_USED, _MOST_USED = 0.5, 2.0
#: Share of a run's time in work that the other lacks, up to which the other does all of it.
_LITTLE = 0.2
#: Share of a cycle that added work must cost; runs differ by less.
_ADDED = 0.05
#: Share of the growth of cycles that added work must explain.
_PART = 0.1
_ONCPU, _RUNQ, _GIVEN_UP = "process_oncpu_time", "process_runq_time", "process_voluntary_ctx_switches"


def other_work(view: View) -> tuple[float, float] | None:
    """Share of the base's time in work whose amount changed, and the typical ratio of the change.

    Only work of both runs counts. Amounts are elements (of matrix products: multiplications) per cycle if shapes are
    recorded, else calls of kernels per cycle. None if unknown. If most of the time goes to the same shapes as often as
    before, nothing changed.
    """
    same = view.share_of_same_work
    if same is not None and same > _HALF:
        return 0.0, 1.0
    known = view.sizes
    if known.height and float(known["time_base"].sum()) > 0:
        amounts = known.select(weight="time_base", ratio=pl.col("volume_other") / pl.col("volume_base"))
    else:
        is_kernel = (pl.col("category") == "kernel") & ~pl.col("is_collective")
        rows = view.work.filter(is_kernel & (pl.col("calls_base") > 0))
        ratio = pl.col("calls_other") / pl.col("calls_base")
        counted = pl.col("calls_real") & ((ratio - 1).abs() >= _RECOUNTED)
        amounts = rows.select(weight="own_ns_base", ratio=pl.when(counted).then(ratio).otherwise(1.0))
    amounts = amounts.filter((pl.col("ratio") > 0) & (pl.col("weight") > 0)).sort("ratio")
    if amounts.is_empty():
        return None
    changed = amounts.filter(pl.col("ratio").log().abs() > _RESIZED)
    if changed.is_empty():
        return 0.0, 1.0
    of_changed = float(changed["weight"].sum())
    at = int((changed["weight"].cum_sum() < of_changed / 2).sum())
    return of_changed / float(amounts["weight"].sum()), float(changed["ratio"][min(at, changed.height - 1)])


def is_other(work: tuple[float, float] | None) -> bool:
    """Whether a result of `other_work` means other work: half of the time, and typically 10 % more or less."""
    return work is not None and work[0] >= _HALF and abs(math.log(work[1])) > _RESIZED


def workload_change(view: View) -> Judgement:
    """The run does other work: other sizes, more or fewer calls, other operators or kernels.

    Necessary is one of five: work of half of the base's time has 10 % more or less to do per cycle, and cycles change
    alike; half of the time of each run goes to operators that the other does not have, or half of the other run's
    operators and kernels are new; operators of 50 µs and more per call were added that cost 5 % of a cycle, while none
    disappeared and the old ones are unchanged; or, without a profile, worker processes compute a tenth longer, or
    process and workers wait for each other three times as often while the process needs more processor time.
    """
    known = _of_workers(view) or _between_processes(view) or _of_operators(view)
    return known if isinstance(known, Suspect) else _of_functions(view) or known


def _of_operators(view: View) -> Judgement:
    name = "workload_change"
    gone, work = _gone(view), other_work(view)
    if gone >= _HALF or does_more(view):
        return _another_program(view, max(strangers(view, "operator") or (gone, gone)))
    if work is not None and is_other(work) and view.same_cycles:
        return _resized(view, *work)
    added = _added(view)
    if view.is_slower and float(added["delta_ns"].sum()) >= max(_ADDED * view.base_ns, _PART * view.delta_ns):
        return _extra(view, added)
    if work is None:
        return Missing(name, "shapes of the operators' inputs")
    return not_slower(name, view) if is_other(work) else _the_same(work)


def _of_workers(view: View) -> Suspect | None:
    """The judgement on work that worker processes do, if nothing else is known of it.

    Processor time is what work costs, however long it waits for a core. So it grew, and not the waits: these grow
    by half as much at most. No neighbour stretches it, and the workers are what a cycle waits for. Where the loop waits
    for the next item of a queue, they get its data, which is a cause of its own.
    """
    own, theirs = view.per_cycle(WORKERS, _ONCPU), view.per_cycle(WORKERS, _RUNQ)
    if view.is_profiled or not view.is_slower or not own.is_known or not own.rose(times=math.exp(_RESIZED)):
        return None
    wait = with_workers(view, waited(view), _RUNQ)
    at_once = ((own.other or 0.0) + (theirs.other or 0.0)) / (view.run_step.other or 1.0)
    is_stretched = (outside_cores(view) or 0.0) >= HALF_CORE
    if is_stretched or wait.delta > 0.5 * own.delta or at_once < _HALF or own.delta < view.least_ns:
        return None
    if at_queues(view) >= _HALF * view.delta_ns:
        return None
    shown = [
        evidence("processor time of worker processes, per cycle", own, role="necessary", device=WORKERS, metric=_ONCPU),
        evidence("time that process and workers wait for cores, per cycle", wait, device=WORKERS, metric=_RUNQ),
    ]
    text = (
        f"The worker processes compute {span(own.base, own.other, 'ns')} per cycle"
        f" ({change_of(own.base, own.other)}) and do not wait for cores more: they have more to do, or do it in a"
        " slower way."
    )
    return _suspect(view, 0.65, text, own.ratio, own.delta / max(at_once, 1.0), shown)


def _between_processes(view: View) -> Suspect | None:
    """The judgement on data that passes between the process and its workers, if nothing is known of their work."""
    turns, own = exchanges(view), ran(view)
    if turns is None or not view.is_slower or not own.rose(by=view.least_ns):
        return None
    mine, theirs = turns
    shown = [
        evidence("processor time of the process, per cycle", own, role="necessary", device=PROCESS, metric=_ONCPU),
        evidence("waits of the process, per cycle", mine, role="necessary", device=PROCESS, metric=_GIVEN_UP),
        evidence("waits of its workers, per cycle", theirs, role="necessary", device=WORKERS, metric=_GIVEN_UP),
    ]
    text = (
        f"More data passes between the process and its workers: per cycle its waits went"
        f" {span(mine.base, mine.other, None)}, theirs {span(theirs.base, theirs.other, None)}, and its own processor"
        f" time {span(own.base, own.other, 'ns')}, which packing and unpacking takes."
    )
    advice = "send less between processes, or share memory (multiprocessing.shared_memory, shared tensors)"
    return _suspect(view, 0.7, text, mine.ratio, own.delta, shown, advice)


def _of_functions(view: View) -> Suspect | None:
    """The judgement on functions that all take longer alike, by samples of stacks, if the work is not known otherwise.

    Processor time is what work costs. It is most of their time and grew by as much: nothing else of the process works
    more, waits for cores, or keeps Python's lock. What most of the time goes to grew at least half as much as all did.
    All functions take longer on slower cores, too, so the mean step must be proven to.
    Windows of time are as long as the run makes them, so they say nothing of the work.
    """
    own, wait = ran_in_all(view), with_workers(view, waited(view), _RUNQ)
    if not say_more(view) or not view.is_slower or view.is_of_time or not own.is_known or not view.is_sure:
        return None
    grew_more = is_new() & (pl.col("high") >= APART * (typical_growth(view) or 1.0) * pl.col("low"))
    new = grown(view).filter(grew_more)
    added_ns = float(new.filter(~waiting())["delta"].sum())
    if view.pair.answers_requests and added_ns >= _LEAST_PAID * view.run_delta_ns:
        return None  # threads that answer at the same time slow each other down
    rows = in_functions(view).filter(~waiting()).join(new, on="function", how="anti")
    rows = rows.filter(~file_of().is_in(spread(view).filter(grew_more)["function"].implode()).fill_null(value=False))
    if view.has_tail:  # what only slow steps take is periodic work, or a tail
        rows = rows.with_columns(pl.col("high") - pl.col("slow"), pl.col("delta") - pl.col("slow"))
    whole = Change(float(rows["low"].sum()), float(rows["high"].sum()), is_real=True, unit="ns")
    # As several threads or workers may be at work. What uses the processor must be these functions.
    at_once = max((own.other or 0.0) / (view.run_step.other or 1.0), 1.0)
    ends = (own.base, whole.base), (own.other, whole.other), (own.delta, whole.delta)
    used = [(mine or 0.0) / theirs if theirs else 0.0 for mine, theirs in ends]
    is_more = whole.delta >= view.least_ns and (whole.ratio or 0.0) >= math.exp(_RESIZED)
    if not is_more or not all(_LEAST_USED <= each <= _MOST_USED * at_once for each in used):
        return None
    grew = pl.col("high") >= (1 + _HALF * ((whole.ratio or 1.0) - 1)) * pl.col("low")
    alike = float(rows.filter(grew)["low"].sum()) / (whole.base or 1.0)
    scatter = math.sqrt(float(rows.select((pl.col("scatter") ** 2).sum()).item()))
    is_held = held_by_threads(view).rose(by=_HALF * view.least_ns)
    is_sure = own.is_real or whole.delta >= _SIGMAS * scatter
    is_stretched = wait.delta > _HALF * own.delta or (outside_cores(view) or 0.0) >= HALF_CORE or is_held
    if is_stretched or not is_sure or alike < _ALIKE:
        return None
    most = ", ".join(rows.sort("delta", descending=True).head(2)["function"])
    shown = [
        evidence("time of functions, per cycle", whole, role="necessary", device="host", unit="ns"),
        evidence("processor time per cycle, workers included", own, role="necessary", device=PROCESS, metric=_ONCPU),
    ]
    text = (
        f"Functions take longer alike: {span(whole.base, whole.other, 'ns')} per cycle in all, most of it in {most}."
        " There is more to do in each cycle, or the cores are slower."
    )
    return _suspect(view, 0.6, text, whole.ratio, whole.delta, shown)


def _the_same(work: tuple[float, float]) -> RuledOut:
    share = units.percent(1 - work[0])
    return RuledOut("workload_change", f"{share} of the work has the sizes and counts that it had")


def strangers(view: View, category: str) -> tuple[float, float] | None:
    """Share of each run's time in operators, or in kernels, that the other run does not have: base, other.

    `category` is `operator` or `kernel`. None if one of the runs has none of that category.
    """
    rows = filtered(view.work, (view.work["category"] == category) & ~view.work["is_collective"])
    shares = []
    for mine, theirs in (("base", "other"), ("other", "base")):
        whole = float(rows[f"own_ns_{mine}"].sum())
        gone = float(rows[f"own_ns_{mine}"].filter(rows[f"calls_{theirs}"] == 0).sum())
        shares.append(gone / whole if whole else None)
    return None if shares[0] is None or shares[1] is None else (shares[0], shares[1])


def does_more(view: View) -> bool:
    """Whether the other run does what the base did and at least as much again, on the host and on a device."""
    shares = strangers(view, "operator"), strangers(view, "kernel")
    return all(each is not None and each[1] >= _HALF and each[0] < _LITTLE for each in shares)


def _gone(view: View) -> float:
    """Share of a run's time in work that the other run does not do; the smaller of both runs."""
    # Operators belong to the program, kernels to its libraries: these only count if there are no operators.
    shares = strangers(view, "operator" if view.operators().height else "kernel")
    return 0.0 if shares is None else min(shares)


def _another_program(view: View, gone: float) -> Suspect:
    share = units.percent(gone)
    text = f"The runs do different work: {share} of the time goes to operators or kernels that only one of them has."
    shown = [evidence(f"{share} of the time is in work that only one run has", role="necessary")]
    return _suspect(view, 0.85, text, None, view.delta_ns, shown)


def _resized(view: View, share: float, ratio: float) -> Judgement:
    what = f"work with {units.percent(share)} of the time has {_times(ratio)} to do per cycle"
    step = view.step.ratio or 1.0
    if (step - 1) * (ratio - 1) <= 0:
        took = f"the cycle takes {fold(step)} as long" if view.step.is_known else "the change of the cycle is not known"
        return RuledOut("workload_change", f"{what}, but {took}", is_judged=False)
    is_on_host = not (view.work["category"] == "kernel").any()  # nothing hides it
    is_little = view.tails is not None and is_on_host and step - 1 < _LEAST_OF_WORK * share * (ratio - 1)
    if is_little and not _pays(view):
        text = f"{what}, but steps of the whole run take only {fold(step)} as long"
        return RuledOut("workload_change", text, is_judged=False)
    inside = _inside(view)
    if view.pair.answers_requests and not (
        view.is_slower
        and view.part(OPERATORS).delta >= _LEAST_PAID * view.delta_ns
        and (inside is None or inside >= _LEAST_PAID * view.run_delta_ns)
    ):
        text = f"{what} in a few steps, as requests have it, but operators are not what takes longer"
        return RuledOut("workload_change", text, is_judged=False)
    crowded = view.pair.answers_requests and (outside_cores(view) or 0.0) >= HALF_CORE
    if crowded and waited(view).delta >= view.delta_ns:
        text = f"{what}, but other processes take the cores, and requests that wait are answered together"
        return RuledOut("workload_change", text, is_judged=False)
    rows = most_telling(view.sizes).head(3).to_dicts()
    shown = [
        evidence(
            f"{shorten(row['name'])}: {unit_of(row['name'])} per cycle",
            Change(row["volume_base"], row["volume_other"], is_real=True),
            role="necessary",
            device=row["device"],
            name=row["name"],
            unit="count",
        )
        for row in rows
    ]
    # Matrix products grow faster than their inputs, and work on parameters alone does not grow at all.
    most = _FASTER * abs(ratio - 1) * view.base_ns
    fits = abs(view.delta_ns) <= most
    if fits:
        shown.append(evidence(f"a cycle takes {'longer' if ratio > 1 else 'less'} in keeping with it", view.step))
    if rows:
        row = rows[0]
        amounts = span(row["volume_base"], row["volume_other"], "count")
        what += f" ({shorten(row['name'])}: {amounts} {unit_of(row['name'])})"
    affected = math.copysign(min(abs(view.delta_ns), most), view.delta_ns)
    return _suspect(view, 0.9 if fits else 0.75, f"The run does other work: {what}.", ratio, affected, shown)


def _inside(view: View) -> float | None:
    """How much longer calls of the model take, in the mean step of the whole run; None if unknown. Units: ns.

    A profile has a few steps of a server, whose sizes are those of a few requests.
    """
    runs = [[run.steps for run in side] for side in (view.pair.base, view.pair.other)]
    if any(steps.is_empty() or steps["inside_ns"].null_count() for side in runs for steps in side):
        return None
    inside = [[mean_step_ns(steps.with_columns(dur_ns="inside_ns")) for steps in side] for side in runs]
    return float(np.mean(inside[1]) - np.mean(inside[0]))


def _pays(view: View) -> bool:
    """Whether calls with other sizes take as much longer as the step, within a factor of two."""
    added = float(view.work.filter("is_resized")["delta_ns"].sum())
    return view.is_slower and 0.5 * view.delta_ns <= added <= 2.0 * view.delta_ns


def _times(ratio: float) -> str:
    """How much more or less there is to do: '12× as much', '86 % less'."""
    return f"{fold(ratio)} as much" if ratio >= 1 else f"{units.percent(1 - ratio)} less"


def unit_of(name: str) -> str:
    """What the amount of an operator's work counts."""
    return "multiplications" if name == PRODUCTS else "elements"


def _added(view: View) -> pl.DataFrame:
    """Operators with more calls than before, each of them long; empty if some have fewer calls or other types.

    Copies into another order in memory are a cause of their own.
    """
    work = view.operators()
    more = pl.col("calls_other") - pl.col("calls_base")
    if work.filter(pl.col("name").is_in(LAYOUT_CALLS) & pl.col("calls_real") & (more > 0)).height:
        work = work.filter(~pl.col("name").is_in(LAYOUT_COPIES))
    fewer = work.filter((more < 0) & pl.col("calls_real") & (pl.col("own_ns_base") > 0.005 * view.base_ns))
    if fewer.height or view.retyped:
        return work.clear()
    return work.filter((more > 0) & pl.col("calls_real") & pl.col("is_real") & (pl.col("delta_ns") / more >= SMALL_NS))


def newcomer(view: View) -> str | None:
    """The operator that the base never calls, if its long calls are most of all calls that were added; else None.

    Copies into another order in memory, and what computes values that the host reads at once, are other causes.
    """
    work = view.operators().filter(~pl.col("name").is_in(LAYOUT_COPIES))
    more = pl.col("calls_other") - pl.col("calls_base")
    added = work.filter((more > 0) & pl.col("calls_real") & (pl.col("delta_ns") > 0)).sort("delta_ns", descending=True)
    first = added.head(1).filter((pl.col("calls_base") == 0) & (pl.col("delta_ns") / more >= SMALL_NS))
    is_most = first.height and float(first["delta_ns"][0]) >= _HALF * float(added["delta_ns"].sum())
    return str(first["name"][0]) if is_most and not small_calls(view).fed_ns else None


def _extra(view: View, added: pl.DataFrame) -> Judgement:
    if small_calls(view).fed_ns:
        return RuledOut("workload_change", "the added operators compute values that the host reads at once")
    if newcomer(view) is not None:
        return RuledOut("workload_change", "one operator is most of what was added", is_judged=False)
    rows = added.sort("delta_ns", descending=True).head(3).to_dicts()
    cost, first = float(added["delta_ns"].sum()), rows[0]
    shown = [
        evidence(
            f"{shorten(row['name'])}: calls per cycle",
            Change(row["calls_base"], row["calls_other"], is_real=True),
            role="necessary",
            device="host",
            name=row["name"],
        )
        for row in rows
    ]
    calls = (
        f"{units.number(first['calls_other'] - first['calls_base'])} calls of {shorten(first['name'])} more per cycle"
    )
    says = f"Work was added: {calls}, {units.duration(cost)} in all; what was there before takes as long as before."
    return _suspect(view, 0.6, says, None, cost, shown)


def _suspect(
    view: View,
    confidence: float,
    says: str,
    magnitude: float | None,
    affected: float,
    shown: list[Evidence],
    advice: str = "compare runs of equal batch, sequence length and model; or by time per sample or token",
) -> Suspect:
    explained = min(affected, view.delta_ns) if affected > 0 else max(affected, view.delta_ns)
    return view.suspect(
        "workload_change",
        says,
        affected,
        confidence,
        shown,
        resource="work",
        magnitude=magnitude,
        explained_ns=explained if view.same_cycles else 0.0,
        advice=advice,
    )


RULES = (Rule("workload_change", workload_change),)
