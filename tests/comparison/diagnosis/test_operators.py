from __future__ import annotations

from faulty_jobs import MS, Job, Op, categories, diagnosed, not_judged
from msgspec.structs import replace

BASE = Job()
DOUBLE = (
    replace(BASE.op("aten::mm"), each_ns=5.4 * MS, types='["double","double"]'),
    replace(BASE.op("aten::addmm"), each_ns=3.5 * MS, types='["double","double","double"]'),
    Op("aten::copy_", 39, 0.36 * MS, BASE.op("aten::copy_").shapes, '["double","float"]'),
)


def test_another_element_type_is_a_slow_operator():
    diagnosis = diagnosed(BASE, BASE.with_ops(*DOUBLE))
    assert categories(diagnosis) == ["slow_operator"]
    cause = diagnosis.causes[0]
    assert cause.statement.startswith("aten::mm now works on double instead of float")
    assert "aten::copy_" in cause.statement
    assert cause.confidence >= 0.9


def test_an_operator_in_place_of_another_is_a_slow_operator():
    ops = tuple(op for op in BASE.operators if op.name != "aten::_log_softmax")
    other = replace(BASE, operators=(*ops, Op("aten::logsumexp", 1, 16 * MS, "[[576,2048]]")))
    diagnosis = diagnosed(BASE, other)
    assert categories(diagnosis) == ["slow_operator"]
    assert "runs where aten::_log_softmax did" in diagnosis.causes[0].statement


def test_an_operator_that_is_slower_per_call_at_equal_sizes_is_found():
    diagnosis = diagnosed(
        BASE, BASE.with_ops(replace(BASE.op("aten::gelu"), each_ns=16 * MS)).levels(process_minor_faults=150e3)
    )
    assert categories(diagnosis) == ["slow_operator"]
    assert "takes longer per call at equal sizes" in diagnosis.causes[0].statement


def test_one_that_is_slower_for_no_reason_must_cost_more_than_memory_does():
    assert not diagnosed(BASE, BASE.with_ops(replace(BASE.op("aten::_log_softmax"), each_ns=7 * MS))).causes


def test_operators_that_are_slower_alike_are_no_single_one():
    diagnosis = diagnosed(BASE, replace(BASE, typical_slowdown=1.4))
    assert "slow_operator" not in categories(diagnosis)


def test_a_slow_operator_is_found_beside_contention():
    other = replace(BASE.with_ops(*DOUBLE), typical_slowdown=2.0).levels(
        process_oncpu_time=5e8, process_cpu_usage=50.0, process_runq_time=5e8
    )
    assert set(categories(diagnosed(BASE, other))) == {"cpu_contention", "slow_operator"}


def test_types_that_a_device_computes_longer_with_are_a_slow_operator():
    base = replace(
        BASE, operators=tuple(replace(op, each_ns=op.each_ns / 20) for op in BASE.operators), computing_ms=40.0
    )
    half = replace(base.op("aten::mm"), types='["float","float"]')
    full = replace(base.op("aten::mm"), types='["double","double"]')
    diagnosis = diagnosed(base.with_ops(half), replace(base.with_ops(full), computing_ms=80.0))
    assert categories(diagnosis) == ["slow_operator"]
    assert diagnosis.causes[0].statement.startswith(
        "aten::mm now works on double instead of float; the device computes"
    )


def test_an_operator_in_place_of_another_stands_out_where_all_are_slower():
    """As where the faster implementation does not take the element type, on a machine that is slower meanwhile."""
    ops = tuple(op for op in BASE.operators if op.name != "aten::_log_softmax")
    other = replace(
        BASE, operators=(*ops, Op("aten::_slow_softmax", 1, 25 * MS, "[[576,2048]]")), typical_slowdown=1.25
    )
    diagnosis = diagnosed(BASE, other)
    assert "slow_operator" in categories(diagnosis)


def test_operators_that_touch_new_memory_are_not_slower_themselves():
    other = BASE.with_ops(replace(BASE.op("aten::_log_softmax"), each_ns=14 * MS)).levels(process_minor_faults=300e3)
    diagnosis = diagnosed(BASE, other)
    assert "slow_operator" not in categories(diagnosis)
    assert any("touch new memory" in row.reason for row in diagnosis.ruled_out)


def test_operators_that_nobody_recorded_are_asked_for():
    base = replace(BASE, operators=())
    assert "slow_operator" in not_judged(diagnosed(base, base))


def test_copies_into_another_order_in_memory_have_a_name_of_their_own():
    clone = Op("aten::clone", 6, 0.004 * MS, "[[8,72,320]]")
    copies = replace(BASE.op("aten::copy_"), calls=29, each_ns=0.9 * MS)
    diagnosis = diagnosed(BASE, BASE.with_ops(clone, copies))
    assert categories(diagnosis)[0] == "layout_copies"
    assert "copies take from 2.0" in diagnosis.causes[0].statement
    assert "layout_copies" not in categories(diagnosed(BASE, BASE.with_ops(clone)))  # views, or tiny tensors


def test_what_comes_with_copies_into_another_order_is_theirs():
    clone = Op("aten::clone", 60, 0.02 * MS, "[[8,72,320]]")
    copies = replace(BASE.op("aten::copy_"), calls=83, each_ns=0.03 * MS)
    views = Op("aten::transpose", 120, 0.02 * MS, "[[8,72,320]]")
    launches = Op("cudaLaunchKernel", 60, 0.01 * MS, "[]", category="runtime")
    diagnosis = diagnosed(BASE, BASE.with_ops(clone, copies, views, launches))
    assert categories(diagnosis) == ["layout_copies"]  # the small calls are no cause beside it
    assert "what comes with them 3" in diagnosis.causes[0].statement


def test_a_job_that_compiles_in_its_steps_is_recognised():
    compiles = Op("_compile.compile_inner (dynamo_timed)", 1, 30 * MS, "[[8,72,320]]", category="user_range")
    diagnosis = diagnosed(BASE, BASE.with_ops(compiles))
    assert categories(diagnosis)[0] == "compilation"
    assert not diagnosed(BASE.with_ops(compiles), BASE.with_ops(compiles)).causes
