from __future__ import annotations

from unittest import mock

import pytest
from faulty_jobs import MS, Job, Op, case_of, gpu_job
from msgspec.structs import replace

from stepscope.comparison.diagnosis import case
from stepscope.comparison.diagnosis.case import clipped, exposed, share_slowed_by, typical_slowdown, views, weigh
from stepscope.comparison.model import Evidence

BASE = Job()


def view_between(base, other, **how):
    return views(case_of(base, other, **how))[0]


def test_parts_and_steps_are_set_side_by_side():
    view = view_between(BASE, replace(BASE, loading_ms=30.0))
    assert view.is_slower
    assert not view.is_faster
    assert view.part("data loading").delta == pytest.approx(29.5 * MS, rel=0.1)
    assert view.part("nowhere") == view.part("nowhere too")
    assert view.delta_ns > view.least_ns > 0


def test_what_many_rules_ask_of_a_pair_is_worked_out_once():
    view = view_between(BASE, BASE)
    with mock.patch.object(case, "sizes", wraps=case.sizes) as asked:
        assert view.sizes is view.sizes
    asked.assert_called_once_with(view.pair)
    assert replace(view, same_cycles=False).sizes.equals(view.sizes)


def test_a_shorter_cycle_is_faster():
    assert view_between(replace(BASE, loading_ms=30.0), BASE).is_faster


def test_rates_become_amounts_per_cycle():
    view = view_between(
        BASE.levels(process_voluntary_ctx_switches=100.0), BASE.levels(process_voluntary_ctx_switches=300.0)
    )
    switches = view.per_cycle("process", "process_voluntary_ctx_switches")
    assert switches.base == pytest.approx(100 * view.step.base / 1e9, rel=0.05)
    assert switches.unit is None
    assert view.per_cycle("process", "process_runq_time").unit == "ns"
    assert view.per_cycle("process", "process_write_bytes_rate").unit == "bytes"
    assert not view.per_cycle("process", "process_mem_rss").is_known


def test_the_first_metric_that_is_known_counts():
    view = view_between(BASE, BASE)
    assert view.resource("host", "no_such", "host_cpu_usage").is_known
    assert not view.resource("host", "no_such").is_known


def test_work_has_own_times_and_calls():
    other = BASE.with_ops(replace(BASE.op("aten::gelu"), each_ns=9 * MS), Op("aten::new", 3, MS))
    rows = {row["name"]: row for row in view_between(BASE, other).work.to_dicts()}
    assert rows["aten::gelu"]["is_real"]
    assert rows["aten::gelu"]["ns_per_call_real"]
    assert rows["aten::new"]["calls_base"] == 0
    assert rows["aten::new"]["own_ns_base"] == 0
    assert not rows["aten::mm"]["is_real"]


def test_calls_on_other_sizes_are_marked():
    other = BASE.with_ops(replace(BASE.op("aten::gelu"), shapes="[[16,72,1280]]"))
    view = view_between(BASE, other)
    assert view.work.filter(view.work["is_resized"])["name"].to_list() == ["aten::gelu"]
    assert "aten::gelu" not in view.host_work()["name"].to_list()
    assert "aten::gelu" in view.operators()["name"].to_list()


def test_few_cycles_show_what_a_gap_parts():
    few = replace(gpu_job(), cycles=5)
    slow = replace(few, kernels=tuple(replace(k, each_ns=2 * k.each_ns) for k in few.kernels))
    kernels = view_between(few, slow).kernels("gpu0")
    assert kernels["is_real"].any()
    assert kernels["ns_per_call_real"].any()


def test_a_typical_call_is_that_of_most_of_the_time():
    view = view_between(BASE, replace(BASE, typical_slowdown=2.0))
    assert typical_slowdown(view.host_work()) == pytest.approx(2, rel=0.05)
    assert share_slowed_by(view.host_work(), 2.0) > 0.9
    assert share_slowed_by(view.host_work(), 5.0) < 0.1
    assert share_slowed_by(view.host_work(), 1.0) == 0
    assert typical_slowdown(view.host_work().clear()) is None


def test_cycles_of_different_kinds_have_no_difference():
    view = view_between(BASE, replace(BASE, anchor="layer", typical_slowdown=3.0))
    assert not view.same_cycles
    assert view.delta_ns == 0
    assert not view.is_slower
    assert exposed(view, 5.0) == 5.0


def test_no_more_is_explained_than_cycles_grew():
    view = view_between(BASE, replace(BASE, loading_ms=30.0))
    assert exposed(view, 1e12) == view.delta_ns
    assert exposed(view, -5.0) == 0


def test_evidence_that_is_there_raises_the_confidence():
    one, two = Evidence("one"), Evidence("two")
    confidence, shown = weigh(0.5, [(0.2, one), None, (0.0, two)])
    assert confidence == 0.7
    assert shown == (one, two)


def test_nothing_is_quite_certain():
    assert clipped(1.4) == 0.97
    assert clipped(-1.0) == 0.0
