from __future__ import annotations

import json

import polars as pl
import pytest
from device_traces import HOST, STREAM_7, TRACKS_5, kernel, spans_of

from stepscope.analyses.ranks.calls import rank_calls
from stepscope.analyses.ranks.groups import Comm, Group, groups_of, missing_of
from stepscope.core.schema import COLLECTIVES, OPS
from stepscope.core.trace import Meta, Trace


def joined(*comms: tuple[Comm, ...], ranks: tuple[int, ...] | None = None) -> tuple[tuple[Group, ...], list[list[int]]]:
    groups, at = groups_of(comms, ranks or range(len(comms)))
    return groups, [a.tolist() for a in at]


def test_ranks_that_name_the_same_members_share_a_group():
    one, other = Comm("1", "tp", 2, (0, 1)), Comm("1", None, 2, (2, 3))
    result, at = joined((one,), (one,), (other,), (other,))
    assert [(g.name, g.description, g.members, g.present) for g in result] == [
        ("1", "tp", (0, 1), (0, 1)), ("1", None, (2, 3), (2, 3)),
    ]  # fmt: skip
    assert at == [[0], [0], [1], [1]]


def test_members_without_a_trace_count_for_the_size():
    result, _ = joined((Comm("0", None, 4, (0, 1, 2, 3)),), (Comm("0", None, 4, (0, 1, 2, 3)),))
    assert (result[0].size, result[0].present, result[0].ranks) == (4, (0, 1), (0, 1, 2, 3))


def test_a_name_alone_makes_a_group_where_the_list_of_ranks_is_cut_short():
    result, at = joined(*[(Comm("0", None, 64),)] * 3)
    assert len(result) == 1
    assert (result[0].size, result[0].ranks) == (64, (0, 1, 2))
    assert at == [[0]] * 3


def test_a_nameless_group_as_large_as_the_job_is_that_of_all():
    result, _ = joined(*[(Comm(size=3),)] * 3)
    assert [(g.name, g.ranks) for g in result] == [("0–2", (0, 1, 2))]
    result, _ = joined(*[(Comm(),)] * 2)
    assert result[0].ranks == (0, 1)


def test_smaller_nameless_groups_follow_from_places_in_them():
    blocks = [(Comm(size=2, place=r % 2),) for r in range(4)]
    assert [g.ranks for g in joined(*blocks)[0]] == [(0, 1), (2, 3)]
    strided = [(Comm(size=2, place=r // 2),) for r in range(4)]
    assert [g.ranks for g in joined(*strided)[0]] == [(0, 2), (1, 3)]


def test_two_nameless_groups_of_a_rank_are_apart():
    both = [(Comm(size=2, place=r % 2), Comm(size=2, place=r // 2, ordinal=1)) for r in range(4)]
    assert [g.ranks for g in joined(*both)[0]] == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_places_that_fit_no_layout_leave_ranks_alone():
    odd = [(Comm(size=2, place=p),) for p in (0, 0, 1, 0)]
    assert [g.ranks for g in joined(*odd)[0]] == [(0,), (1,), (2,), (3,)]
    assert joined(*odd)[0][0].size == 2


REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
LAUNCHED = (
    (HOST, 0, 90, "c10d::allreduce_", "operator"),
    (HOST, 10, 70, "record_param_comms", "operator"),
    (HOST, 20, 50, "nccl:all_reduce", "user_range"),
    (HOST, 30, 5, "cudaLaunchKernel", "runtime"),
    kernel(STREAM_7, 100, 50, REDUCE, 3),
)


def comms(trace_tables: dict[str, pl.DataFrame], **info: object):
    facts = {"distributedInfo": json.dumps(info)} if info else {}
    return rank_calls(Trace(Meta("x", "kineto", rank=3, facts=facts), {"tracks": TRACKS_5, **trace_tables}))


def recorded(**columns: object) -> dict[str, pl.DataFrame]:
    row = {"span_id": 4, "collective": "allreduce", "group": "7", "group_size": 2} | columns
    return {"spans": spans_of(*LAUNCHED), "collectives": COLLECTIVES.conform(pl.DataFrame([row]))}


def test_a_recorded_group_has_its_name_members_and_description():
    (comm,) = comms(recorded(group_ranks="[3, 1]", group_description="mesh_tp")).comms
    assert (comm.name, comm.members, comm.size, comm.description) == ("7", (1, 3), 2, "mesh_tp")


def test_a_list_of_ranks_that_is_cut_short_is_taken_from_the_header():
    abbreviated = recorded(group_ranks="[0, 1, ...]", group_size=3, group_description="undefined")
    listed = [{"pg_name": "7", "pg_desc": "dp", "pg_size": 3, "ranks": [0, 1, 9]}]
    (comm,) = comms(abbreviated, pg_config=listed).comms
    assert (comm.members, comm.description) == ((0, 1, 9), "dp")
    assert comms(abbreviated).comms[0].members is None


def test_members_that_do_not_fit_the_size_are_not_believed():
    assert comms(recorded(group_ranks="[0, 1]", group_size=5)).comms[0].members is None


def test_without_a_record_the_only_group_of_the_header_is_meant():
    spans = {"spans": spans_of(*LAUNCHED)}
    one = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}
    (comm,) = comms(spans, pg_config=[one]).comms
    assert (comm.name, comm.members) == ("0", (0, 1))
    assert comms(spans, pg_config=[one, {**one, "pg_name": "1"}]).comms[0].name is None
    assert comms(spans).comms[0].size is None


@pytest.mark.parametrize("info", ["[1, 2", "[]", '{"pg_config": 3}', '{"pg_config": [{"pg_name": 7}]}'])
def test_a_damaged_header_tells_nothing(info):
    trace = Trace(
        Meta("x", "kineto", facts={"distributedInfo": info}), {"tracks": TRACKS_5, "spans": spans_of(*LAUNCHED)}
    )
    assert rank_calls(trace).comms[0].name is None


def test_old_operators_tell_number_group_and_place():
    inputs = '["","337","93825114103440","5","","[]","[]","8"]'
    ops = OPS.conform(pl.DataFrame({"span_id": [1], "concrete_inputs": [inputs]}))
    result = comms({"spans": spans_of(*LAUNCHED, parent_id=[None, 0, 1, 2, None]), "ops": ops})
    (comm,) = result.comms
    assert (comm.size, comm.place, comm.name, comm.ordinal) == (8, 5, None, 0)
    assert result.calls["seq"].to_list() == [337]


def test_groups_without_names_are_counted():
    spans = spans_of(*LAUNCHED, *[(r[0], r[1] + 1000, *r[2:5], *(r[5:] and (8,))) for r in LAUNCHED])
    texts = [f'["","{seq}","{where}","0","","[]","[]","8"]' for seq, where in ((1, 111), (2, 222))]
    names = spans.filter(pl.col("name") == "record_param_comms")["span_id"].to_list()
    ops = OPS.conform(pl.DataFrame({"span_id": names, "concrete_inputs": texts}))
    launches = spans.filter(pl.col("category") == "runtime")["span_id"].to_list()
    kernels = spans.filter(pl.col("category") == "kernel")["span_id"].to_list()
    parents = dict.fromkeys(spans["span_id"])
    for base in range(2):
        rows = spans.filter(pl.col("category") != "kernel")["span_id"].to_list()[4 * base : 4 * base + 4]
        parents |= dict(zip(rows[1:], rows[:-1], strict=True))
    spans = spans.with_columns(
        parent_id=pl.Series([parents[row] for row in spans["span_id"]], dtype=pl.UInt32),
        launch_id=pl.Series(
            [launches[kernels.index(row)] if row in kernels else None for row in spans["span_id"]], dtype=pl.UInt32
        ),
    )
    assert [c.ordinal for c in comms({"spans": spans, "ops": ops}).comms] == [0, 1]


@pytest.mark.parametrize(
    ("ranks", "sizes", "result"),
    [
        ([0, 1, 3], [4, 4, 4], (4, 1, (2,))),
        ([0, 1, 2, 3], [4, None], (4, 0, ())),
        ([0, 5], [None, None], (None, 0, ())),  # more gaps than numbers: these are not the ranks of one job
        ([0, 1, 2, 4], [None], (None, 1, (3,))),
        ([0, 9], [4], (None, 0, ())),  # a rank that the job cannot have
        ([], [4], (None, 0, ())),
        ([1], [8, 8, 2], (8, 7, (0, 2, 3, 4, 5, 6, 7))),
        ([3], [10**9], (10**9, 10**9 - 1, tuple(rank for rank in range(1_001) if rank != 3))),
    ],
)
def test_ranks_without_a_trace_are_missing(ranks, sizes, result):
    assert missing_of(ranks, sizes) == result
