from __future__ import annotations

import polars as pl

from stepscope.analyses.kernels.kernels import kernels
from stepscope.analyses.program.operators import operators
from stepscope.core.schema import TRACKS
from stepscope.reports._tables import kernel_block, merged, name_block, operator_block, track_block


def blocks(trace):
    found = operators(trace.spans, trace.ops, trace.stacks)
    return operator_block(found), kernel_block(kernels(trace.spans, trace.tracks))


def small(rows, device_ns: int):
    op = rows.op(0, 50, "aten::mm")
    rows.op(60, 10, "aten::view")
    rows.kernel(0, device_ns, "gemm", op=op)
    return rows.trace()


def test_operators_show_the_device_where_there_is_one(rows, new_rows) -> None:
    block, _ = blocks(small(rows, 100))
    assert block.frame.columns == ["name", "calls", "device_self_ns", "share_ratio", "n_kernels", "host_self_ns"]
    host = new_rows()
    host.op(0, 10)
    trace = host.trace()
    block = operator_block(operators(trace.spans, trace.ops, trace.stacks))
    assert block.frame.columns == ["name", "calls", "host_self_ns", "share_ratio", "host_total_ns"]


def test_kernels_that_read_the_same_are_one_row(rows) -> None:
    rows.op(0, 1)
    rows.kernel(0, 30, "fusion.12")
    rows.kernel(30, 50, "fusion.7")
    rows.kernel(80, 20, "other")
    _, block = blocks(rows.trace())
    assert block.frame.rows() == [("fusion", 2, 80, 0.8, 40.0), ("other", 1, 20, 0.2, 20.0)]


def test_ranks_are_summed_and_averages_remade(rows, new_rows) -> None:
    each = [blocks(small(rows, 100)), blocks(small(new_rows(), 300))]
    ops, work = merged(each)
    assert ops.note == "Sums over 2 traces."
    assert ops.frame.rows() == [("aten::mm", 2, 400, 1.0, 2, 100)]
    assert work.frame.rows() == [("gemm", 2, 400, 1.0, 200.0)]


def test_of_one_rank_the_first_rows_stand_with_their_whole_names(rows) -> None:
    name = "aten::" + "very_long_name_" * 10
    op = rows.op(0, 1, name)
    for i in range(9):
        rows.kernel(i * 10, 10, f"kernel_{'abcdefghi'[i]}", op=op)
    ops, work = merged([blocks(rows.trace())])
    assert work.frame.height == 6
    assert work.note == ""
    assert ops.frame["name"][0] == name


def test_a_table_without_rows_worth_showing_is_left_out(rows) -> None:
    rows.op(0, 1)
    rows.kernel(0, 100, "gemm")
    assert [block.title for block in merged([blocks(rows.trace())])] == ["Kernels"]


def test_tracks_are_told_by_the_time_in_which_something_is_open(rows) -> None:
    rows.add(0, 0, 50, "a", "other")
    rows.add(0, 10, 10, "b", "other")
    rows.add(1, 80, 20, "c", "other")
    trace = rows.trace()
    named = trace.tracks.with_columns(process=pl.lit("python"), label=pl.Series(["main", None, None, None, None]))
    block = track_block(trace.with_tables(tracks=TRACKS.conform(named)))
    assert block.frame.rows() == [("python / main", 2, 50, 0.5), ("python / 1", 1, 20, 0.2)]


def test_names_are_told_by_their_own_time(rows) -> None:
    rows.add(0, 0, 50, "a", "other")
    rows.add(0, 10, 40, "b", "other")
    assert name_block(rows.trace()).frame.rows() == [("b", 1, 40, 0.8), ("a", 1, 10, 0.2)]


def test_spans_without_length_have_no_shares(rows) -> None:
    rows.add(0, 0, 0, "a", "other")
    trace = rows.trace()
    assert name_block(trace).frame["share_ratio"].to_list() == [None]
    assert track_block(trace).frame["busy_ratio"].to_list() == [None]


def test_a_track_without_a_name_shows_its_numbers(rows) -> None:
    rows.op(0, 10)
    trace = rows.trace()
    bare = {"process": None, "label": None, "pid": [7, None, *[None] * (trace.tracks.height - 2)], "tid": None}
    columns = [pl.Series(name, values if isinstance(values, list) else [values] * trace.tracks.height,
                         TRACKS.dtypes[name]) for name, values in bare.items()]  # fmt: skip
    block = track_block(trace.with_tables(tracks=trace.tracks.with_columns(columns)))
    assert block.frame["track"].to_list() == ["process 7"]
