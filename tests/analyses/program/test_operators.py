from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyses.program.operators import ANALYSIS, OPERATORS, operators
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import enclosing
from stepscope.core.schema import OPS, SPANS, STACKS
from stepscope.core.trace import Meta, Trace

NO_OPS, NO_STACKS = OPS.empty(), STACKS.empty()


def spans_of(*rows: tuple[int, int, int, str, str, int | None]) -> pl.DataFrame:
    """Spans from (track_id, ts_ns, dur_ns, name, category, op_id), already sorted; host parents are worked out."""
    columns = ("track_id", "ts_ns", "dur_ns", "name", "category", "op_id")
    frame = pl.DataFrame(rows, schema=columns, orient="row").with_row_index("span_id")
    ts, dur, track = (frame[c].to_numpy().astype(np.int64) for c in ("ts_ns", "dur_ns", "track_id"))
    parents = pl.Series("parent_id", enclosing(ts, ts + dur, track)).replace(-1, None)
    host = ~pl.col("category").is_in(["kernel", "memcpy", "memset"])
    return SPANS.conform(frame.with_columns(parents).with_columns(pl.when(host).then("parent_id")))


TRAINING = spans_of(
    (0, 0, 100, "aten::linear", "operator", None),
    (0, 10, 60, "aten::addmm", "operator", None),
    (0, 20, 15, "cudaLaunchKernel", "runtime", 1),
    (0, 80, 10, "aten::view", "operator", None),
    (0, 200, 50, "aten::linear", "operator", None),
    (7, 40, 500, "gemm", "kernel", 1),
    (7, 600, 30, "Memcpy", "memcpy", 4),
    (7, 700, 20, "orphan", "kernel", None),
)


def row(frame: pl.DataFrame, name: str) -> dict[str, object]:
    return frame.row(by_predicate=pl.col("name") == name, named=True)


def test_time_is_split_into_own_and_total_on_host_and_device() -> None:
    got = operators(TRAINING, NO_OPS, NO_STACKS)
    assert got["name"].to_list() == ["aten::addmm", "aten::linear", "aten::view"]
    assert row(got, "aten::addmm") == {
        "name": "aten::addmm", "calls": 1, "device_self_ns": 500, "device_total_ns": 500, "n_kernels": 1,
        "host_self_ns": 45, "host_total_ns": 60, "host_mean_ns": 60.0, "share_ratio": 500 / 550,
        "tc_eligible": True, "tc_self_ratio": 0.0, "tc_total_ratio": 0.0,
    }  # fmt: skip
    linear = row(got, "aten::linear")
    assert (linear["calls"], linear["device_self_ns"], linear["device_total_ns"]) == (2, 30, 530)
    assert (linear["host_self_ns"], linear["host_total_ns"], linear["n_kernels"]) == (100 - 60 - 10 + 50, 150, 0)


def test_recursion_counts_once_in_totals() -> None:
    got = operators(
        spans_of(
            (0, 0, 100, "f", "operator", None),
            (0, 10, 50, "g", "operator", None),
            (0, 20, 20, "f", "operator", None),
            (0, 60, 10, "f", "operator", None),
            (1, 0, 5, "k", "kernel", 0),
            (1, 5, 7, "k", "kernel", 2),
        ),
        NO_OPS,
        NO_STACKS,
    )
    f = row(got, "f")
    assert (f["calls"], f["host_total_ns"], f["device_total_ns"], f["device_self_ns"]) == (3, 100, 12, 12)
    assert row(got, "g")["device_total_ns"] == 7


def test_python_frames_and_annotations_inside_an_operator_are_its_own_time() -> None:
    got = operators(
        spans_of(
            (0, 0, 100, "MyFunctionBackward", "operator", None),
            (0, 10, 80, "backward.py(3)", "python", None),
            (0, 20, 60, "my range", "user_range", None),
            (0, 30, 25, "aten::mul", "operator", None),
        ),
        NO_OPS,
        NO_STACKS,
    )
    assert row(got, "MyFunctionBackward")["host_self_ns"] == 75


def test_a_parent_that_starts_with_its_child_does_not_lend_it_its_device_work() -> None:
    got = operators(
        spans_of(
            (0, 0, 100, "outer", "operator", None),
            (0, 0, 100, "inner", "operator", None),
            (1, 5, 10, "k", "kernel", 0),
        ),
        NO_OPS,
        NO_STACKS,
    )
    assert row(got, "inner")["device_total_ns"] == 0
    assert row(got, "outer")["device_total_ns"] == 10


def test_without_device_work_its_columns_are_null_and_shares_are_of_host_time() -> None:
    got = operators(spans_of((0, 0, 30, "a", "operator", None), (0, 40, 10, "b", "operator", None)), NO_OPS, NO_STACKS)
    assert got["device_self_ns"].null_count() == got["n_kernels"].null_count() == 2
    assert got.select("name", "share_ratio").rows() == [("a", 0.75), ("b", 0.25)]


def test_by_shape_keeps_calls_of_unequal_shapes_apart() -> None:
    ops = OPS.conform(pl.DataFrame({"span_id": [0, 4], "input_shapes": ["[[2,3]]", "[[4,3]]"]}))
    got = operators(TRAINING, ops, NO_STACKS, by="shape")
    assert "stack" not in got.columns
    linear = got.filter(pl.col("name") == "aten::linear").select("input_shapes", "calls", "device_self_ns")
    assert linear.rows() == [("[[4,3]]", 1, 30), ("[[2,3]]", 1, 0)]


def test_by_stack_names_the_frames_outermost_first() -> None:
    ops = OPS.conform(pl.DataFrame({"span_id": [0, 4], "stack_id": [1, 0]}))
    stacks = STACKS.conform(pl.DataFrame({"stack_id": [0, 1], "frames": [["main", "eval"], ["main", "train"]]}))
    got = operators(TRAINING, ops, stacks, by="stack").filter(pl.col("name") == "aten::linear")
    assert got["stack"].to_list() == ["main;eval", "main;train"]


def test_what_is_missing_is_named() -> None:
    trace = Trace(Meta("x.json", "kineto"), {"spans": TRAINING})
    with pytest.raises(MissingTable, match="operators' shapes") as caught:
        ANALYSIS(trace, by="shape")
    assert "record_shapes" in caught.value.hint
    with pytest.raises(MissingTable, match="operators' stacks"):
        ANALYSIS(trace, by="stack")
    with pytest.raises(MissingTable, match="needs operators"):
        ANALYSIS(trace.with_tables(spans=TRAINING.filter(pl.col("category") == "kernel")))


def test_the_result_has_the_declared_columns_in_order() -> None:
    got = operators(TRAINING, NO_OPS, NO_STACKS)
    assert dict(got.schema) == {c: t for c, t in OPERATORS.dtypes.items() if c in got.columns}
    assert got.columns == [c for c in OPERATORS.dtypes if c not in ("input_shapes", "stack")]


@st.composite
def forests(draw: st.DrawFn) -> pl.DataFrame:
    host = draw(
        st.lists(
            st.tuples(
                st.integers(0, 1),
                st.integers(0, 20),
                st.integers(0, 12),
                st.sampled_from("fgh"),
                st.sampled_from(["operator", "operator", "runtime", "python"]),
            ),
            min_size=1,
            max_size=12,
        )
    )
    host = sorted(host, key=lambda r: (r[0], r[1], -r[2]))
    callers = [i for i, r in enumerate(host) if r[4] == "operator"]
    work = draw(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, *callers])), max_size=8))
    return spans_of(*((*r, None) for r in host), *((5, 0, d, "k", "kernel", op) for d, op in work))


@pytest.mark.slow
@given(forests())
def test_it_equals_counting_span_by_span(spans: pl.DataFrame) -> None:
    rows = spans.to_dicts()
    calls = [r for r in rows if r["category"] == "operator"]
    if not calls:
        with pytest.raises(MissingTable):
            operators(spans, NO_OPS, NO_STACKS)
        return

    def ancestors(r: dict[str, object]) -> list[dict[str, object]]:
        found = []
        while r["parent_id"] is not None:
            r = rows[r["parent_id"]]  # type: ignore[index]
            found.append(r)
        return found

    def own_host(r: dict[str, object]) -> int:
        points = set(range(r["ts_ns"], r["ts_ns"] + r["dur_ns"]))  # type: ignore[operator,call-overload]
        for c in rows:
            open_then = (a for a in ancestors(c) if a["ts_ns"] + a["dur_ns"] > c["ts_ns"])  # type: ignore[operator]
            above = [a for a in open_then if a["category"] in ("operator", "runtime")]
            if c["category"] in ("operator", "runtime") and above and above[0] is r:
                points -= set(range(c["ts_ns"], c["ts_ns"] + c["dur_ns"]))
        return len(points)

    def within(r: dict[str, object], c: dict[str, object]) -> bool:
        start, end = r["ts_ns"], r["ts_ns"] + r["dur_ns"]  # type: ignore[operator]
        later = c["span_id"] > r["span_id"] and c["track_id"] == r["track_id"]  # type: ignore[operator]
        return c is r or (later and start <= c["ts_ns"] < end)  # type: ignore[operator]

    device = {r["span_id"]: sum(k["dur_ns"] for k in rows if k["op_id"] == r["span_id"]) for r in calls}
    for got in operators(spans, NO_OPS, NO_STACKS).to_dicts():
        mine = [r for r in calls if r["name"] == got["name"]]
        outermost = [r for r in mine if not any(o is not r and within(o, r) for o in mine)]
        assert got["calls"] == len(mine)
        assert got["host_total_ns"] == sum(r["dur_ns"] for r in outermost)
        assert got["host_self_ns"] == sum(own_host(r) for r in mine)
        if got["device_self_ns"] is not None:
            assert got["device_self_ns"] == sum(device[r["span_id"]] for r in mine)
            below = [device[c["span_id"]] for r in outermost for c in calls if within(r, c)]
            assert got["device_total_ns"] == sum(below)


def test_the_part_on_matrix_units_is_told_by_the_names_of_kernels() -> None:
    spans = spans_of(
        (0, 0, 100, "aten::linear", "operator", None),
        (0, 10, 60, "aten::addmm", "operator", None),
        (0, 200, 50, "fused_step", "operator", None),
        (7, 300, 30, "ampere_s16816gemm", "kernel", 1),
        (7, 400, 10, "splitKreduce_kernel", "kernel", 1),
        (7, 500, 40, "relu", "kernel", 0),
        (7, 600, 5, "nvjet_hsh_64x8", "kernel", 2),
    )
    got = operators(spans, NO_OPS, NO_STACKS)
    columns = ("name", "tc_eligible", "tc_self_ratio", "tc_total_ratio")
    assert sorted(got.select(columns).rows()) == [
        ("aten::addmm", True, 0.75, 0.75),
        ("aten::linear", True, 0.0, 30 / 80),
        ("fused_step", True, 1.0, 1.0),
    ]


def test_without_device_work_names_still_tell_who_is_eligible() -> None:
    got = operators(TRAINING.filter(pl.col("track_id") == 0), NO_OPS, NO_STACKS)
    assert sorted(got.select("name", "tc_eligible", "tc_self_ratio").rows()) == [
        ("aten::addmm", True, None),
        ("aten::linear", True, None),
        ("aten::view", False, None),
    ]
