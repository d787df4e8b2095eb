"""Dumps of a flight recorder as one trace: ranks, records, groups, and what is wrong with the files."""

from __future__ import annotations

import gzip
import json
import pickle

import polars as pl
import pytest
from dumps import START, call, dump, write

from stepscope import load
from stepscope.core.errors import CorruptInput
from stepscope.readers import expand

GROUPS = {"0": [0, 1, 2]}
FRAMES = [
    {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/c10d.py", "line": 3},
    {"name": "step", "filename": "/job/train.py", "line": 12},
]


def issues_of(trace) -> dict:
    return dict(trace.issues.select("code", "count").iter_rows())


@pytest.mark.parametrize("as_json", [True, False])
def test_a_folder_of_dumps_is_one_trace(tmp_path, as_json):
    of_rank = [call(i, sizes=[[2, 3], []], frames=FRAMES) for i in range(1, 100)] + [call(100, ended=False)]
    folder = write(tmp_path, {rank: dump(of_rank, GROUPS) for rank in range(3)}, as_json=as_json)
    assert len(expand([folder])) == 1
    trace = load(folder)
    records = trace.collective_records
    assert records.group_by("rank").len().sort("rank").rows() == [(0, 100), (1, 100), (2, 100)]
    first = records.row(0, named=True)
    assert (first["operation"], first["backend"], first["input_sizes"]) == ("all_reduce", "nccl", "2x3, scalar")
    assert (first["line"], first["created_ns"], first["timeout_ns"]) == ("step (/job/train.py:12)", 0, 600 * 10**9)
    assert trace.meta.origin_unix_ns == START + 10**9
    assert trace.stacks["frames"][0][0] == "step (/job/train.py:12)"
    assert records["retired"].to_list()[98:100] == [True, False]
    assert trace.group_status.select("rank", "group", "members").row(0) == (0, "0", "[0, 1, 2]")
    assert not issues_of(trace)


def test_missing_empty_torn_and_doubled_dumps_are_counted(tmp_path):
    groups = {"0": [0, 1, 2, 3, 4]}
    write(tmp_path, {rank: dump([call(i) for i in range(90)], groups) for rank in (0, 1, 2)}, as_json=True)
    (tmp_path / "nccl_trace_rank_1").write_bytes(b"")
    torn = tmp_path / "nccl_trace_rank_2"
    torn.write_bytes(torn.read_bytes()[:-400])
    (tmp_path / "nccl_trace_rank_host-a_0").write_text(json.dumps(dump([call(1)], groups)))
    trace = load(tmp_path)
    assert issues_of(trace) == {"doubled_dumps": 1, "empty_dumps": 1, "missing_dumps": 2, "torn_dumps": 1}
    whole = trace.group_status.group_by("rank").agg(pl.col("is_whole").first()).sort("rank")
    assert whole.rows() == [(0, True), (1, False), (2, False)]
    assert trace.collective_records.filter(rank=0).height == 90
    assert 80 <= trace.collective_records.filter(rank=2).height < 90


def test_the_rank_is_that_of_the_groups_where_the_name_has_none(tmp_path):
    (tmp_path / "dump.json").write_text(json.dumps(dump([call(1)], {"0": [0, 5], "1": [5]})))
    assert load(tmp_path / "dump.json").collective_records["rank"].to_list() == [5]


def test_a_group_without_a_name_says_nothing_of_the_rank(tmp_path):
    trace = load(write(tmp_path, {1: dump([call(1)], {"": [0]}), 0: dump([call(1)], {"": [0]})}))
    assert trace.collective_records["rank"].to_list() == [0, 1]


def test_packed_json_under_other_names_is_recognised(tmp_path):
    (tmp_path / "fr_3.json.gz").write_bytes(gzip.compress(json.dumps(dump([call(1)])).encode()))
    assert load(tmp_path).collective_records["rank"].to_list() == [3]


def test_groups_of_a_rank_without_records_have_the_names_of_its_configuration(tmp_path):
    document = dump([], {"7": [0, 1], "12": [0]})
    document["pg_status"] = {"4": {"last_enqueued_collective": 9}, "2": {"last_enqueued_collective": 5}}
    status = load(write(tmp_path, {0: document})).group_status
    assert status.select("group", "pg_id", "enqueued").sort("pg_id").rows() == [("7", 2, 5), ("12", 4, 9)]


@pytest.mark.parametrize("value", [None, "x", 2**70, [1], -1.5, {"a": 1}])
@pytest.mark.parametrize("field", ["record_id", "process_group", "input_sizes", "frames", "state", "retired", "is_p2p"])
def test_fields_of_a_wrong_kind_are_unknown(tmp_path, field, value):
    document = dump([call(1) | {field: value}, call(2)])
    assert load(write(tmp_path, {0: document}, as_json=True)).collective_records.height == 2


def test_values_that_refer_to_each_other_without_bound_are_not_followed(tmp_path):
    nested = [1]
    for _ in range(60):
        nested = [nested, nested]
    entry = dict.fromkeys(("input_sizes", "frames", "process_group", "profiling_name", "state", "pg_id"), nested)
    data = pickle.dumps({"pg_config": {"0": {"ranks": nested, "desc": nested}}, "entries": [entry]}, 2)
    (tmp_path / "nccl_trace_rank_0").write_bytes(data)
    assert load(tmp_path).collective_records.height == 1


def test_without_a_readable_dump_it_says_so(tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02cos\nsystem\n.")
    with pytest.raises(CorruptInput, match=r"no dump can be read \(nccl_trace_rank_0: .*no plain data"):
        load(tmp_path)


def test_bytes_that_are_no_text_are_replaced_and_counted(tmp_path):
    write(tmp_path, {0: dump([call(i) for i in range(9)])}, as_json=True)
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(path.read_bytes().replace(b'"nccl:', b'"nc\xa5l:', 1))
    trace = load(tmp_path)
    assert trace.collective_records.height == 9
    assert issues_of(trace)["torn_dumps"] == 1
