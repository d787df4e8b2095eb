from __future__ import annotations

import pytest
from faulty_jobs import MS, Job, Op, categories, ranks_case
from msgspec.structs import replace

from stepscope.comparison.diagnosis import diagnose
from stepscope.comparison.diagnosis.case import Suspect, views
from stepscope.comparison.diagnosis.straggler import lags, straggler
from stepscope.comparison.model import RuledOut
from stepscope.comparison.whole_run import Tail, Tails

BASE = replace(Job(), talk_ms=25.0).levels(process_runq_time=6e8, process_oncpu_time=4.4e8)


def waiting(ms):
    return replace(BASE, talk_ms=BASE.talk_ms + ms)


def late(job):
    """The late rank exchanges at once: the others are there already."""
    return replace(job, talk_ms=10.0)


def of(*peers):
    return diagnose(ranks_case(BASE, peers))


@pytest.mark.slow
def test_a_rank_that_computes_more_is_late():
    slow = late(BASE.with_ops(Op("aten::bmm", 20, 1.75 * MS, "[[384,384],[384,384]]")))
    diagnosis = of(waiting(20), waiting(20), slow, waiting(20))
    assert categories(diagnosis) == ["straggler_rank"]
    cause = diagnosis.causes[0]
    assert cause.rank == 2
    assert cause.statement.startswith("Rank 2 is late")
    assert "aten::bmm" in cause.statement
    assert cause.process == "rank 2"


@pytest.mark.slow
def test_a_rank_that_sleeps_is_late():
    diagnosis = of(waiting(20), late(replace(BASE, gaps_ms=37.0)), waiting(20), waiting(20))
    assert categories(diagnosis) == ["straggler_rank"]
    assert diagnosis.causes[0].rank == 1


@pytest.mark.slow
def test_a_rank_whose_loader_is_slow_is_late_for_that_reason():
    diagnosis = of(late(replace(BASE, loading_ms=35.0)), waiting(20))
    assert categories(diagnosis) == ["straggler_rank"]
    assert "waits for its data" in diagnosis.causes[0].statement


def test_several_reasons_why_a_rank_is_late_are_causes_of_their_own():
    collects = replace(BASE, gaps_ms=BASE.gaps_ms + 25.0).levels(process_python_gc_time=0.25e9)
    base = BASE.levels(process_python_gc_time=0.0)
    slow = late(replace(collects, loading_ms=25.0))
    diagnosis = diagnose(ranks_case(base, [slow, waiting(45).levels(process_python_gc_time=0.0)]))
    assert categories(diagnosis) == ["straggler_rank", "python_gc", "data_loading"]
    assert diagnosis.causes[0].statement.endswith("more per cycle than before.")
    assert {cause.process for cause in diagnosis.causes} == {"rank 0"}
    assert all(cause.statement.startswith("On rank 0: ") for cause in diagnosis.causes[1:])


@pytest.mark.slow
def test_what_is_wrong_on_all_ranks_is_no_straggler_s():
    slow = replace(BASE, loading_ms=30.0)
    diagnosis = of(slow, slow, slow)
    assert categories(diagnosis) == ["data_loading"]
    assert diagnosis.causes[0].process is None
    assert diagnosis.causes[0].rank is None


@pytest.mark.slow
def test_a_rank_is_late_on_a_machine_that_has_become_slower_for_all():
    def drifted(job):
        return replace(job, typical_slowdown=1.12)

    slow = late(drifted(BASE.with_ops(Op("aten::bmm", 20, 1.75 * MS, "[[384,384],[384,384]]"))))
    diagnosis = of(drifted(waiting(20)), drifted(waiting(20)), slow, drifted(waiting(20)))
    cause = next(cause for cause in diagnosis.causes if cause.category == "straggler_rank")
    assert cause.rank == 2
    assert cause.explained_ns < 40 * MS


@pytest.mark.slow
def test_ranks_that_all_got_slower_by_different_amounts_have_no_straggler():
    shares = [replace(BASE, gaps_ms=BASE.gaps_ms + more, talk_ms=60.0 - more) for more in (4.0, 16.0, 23.0, 35.0)]
    diagnosis = of(*shares)
    assert "straggler_rank" not in categories(diagnosis)
    assert any("differ by as much" in row.reason for row in diagnosis.ruled_out)


@pytest.mark.slow
def test_a_rank_that_is_late_by_far_more_than_the_run_is_longer_is_late_in_the_profile_alone():
    """It is late by 35 ms, for which the others wait, and all steps take 20 ms longer."""
    all_views = views(ranks_case(BASE, [waiting(20), late(replace(BASE, gaps_ms=37.0)), waiting(20)]))
    assert isinstance(straggler(all_views, ()), Suspect)
    none = Tail(400, 0, 0.0, 0.0, None, is_spread=False)
    timed = [replace(view, tails=Tails(none, none, 400, is_usual=False)) for view in all_views]
    said = straggler(timed, ())
    assert isinstance(said, RuledOut)
    assert "those of the whole run are not as much longer" in said.reason


@pytest.mark.slow
def test_waits_without_a_late_rank_have_no_straggler():
    diagnosis = of(waiting(20), waiting(20), waiting(20))
    assert "straggler_rank" not in categories(diagnosis)


@pytest.mark.slow
def test_a_rank_that_nobody_waits_for_is_no_straggler():
    diagnosis = of(replace(BASE, gaps_ms=30.0), BASE, BASE)
    assert "straggler_rank" not in categories(diagnosis)


@pytest.mark.slow
def test_healthy_ranks_have_no_cause():
    assert not of(BASE, BASE, BASE, BASE).causes


def test_one_rank_alone_has_no_straggler():
    all_views = views(ranks_case(BASE, [BASE]))
    assert not isinstance(straggler(all_views, []), Suspect)
    assert len(lags(all_views)) == 1


def test_processes_that_exchange_nothing_have_no_straggler():
    silent = replace(Job(), talk_ms=0.0)
    all_views = views(ranks_case(silent, [silent, silent]))
    assert not isinstance(straggler(all_views, []), Suspect)
