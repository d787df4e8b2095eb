from __future__ import annotations

import json
import warnings

import pytest
from chrome_traces import call, kernel, op, packed, x

from stepscope.api import verbs
from stepscope.core.errors import StepscopeError


def recorded(*, rank=None, slower=1):
    events = [
        x("ProfilerStep#1", 0, 100, "user_annotation"), op("aten::mm", 10, 20 * slower, External_id=1),
        call("cudaLaunchKernel", 11, 2, 1, External_id=1), kernel("gemm", 20, 30 * slower, 1),
        op("nccl:all_reduce", 60, 5, External_id=9, Input_Dims=[[4]], Input_type=["float"]),
    ]  # fmt: skip
    more = {} if rank is None else {"distributedInfo": {"rank": rank, "backend": "nccl", "world_size": 2}}
    return packed(events, schemaVersion=1, **more)


@pytest.fixture
def folder(tmp_path):
    for name, slower in (("w0.100", 1), ("w0.200", 2), ("w1.150", 1)):
        (tmp_path / f"{name}.pt.trace.json").write_bytes(recorded(slower=slower))
    return tmp_path


def exported(paths, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is not recorded
        return json.loads(verbs.export(paths, "tensorboard", **options))


def test_of_one_trace_the_views_are_the_object(folder):
    found = exported(folder / "w0.100.pt.trace.json")
    assert found["views"] == ["Overview", "Operator", "Kernel", "Trace"]
    assert "distributed" not in found
    assert found["overview"]["environments"][0]["value"] == "1"


def test_several_workers_have_an_object_each_and_a_view_of_all(folder):
    (folder / "w0.200.pt.trace.json").unlink()
    found = exported(folder)
    assert list(found) == ["w0", "w1", "distributed"]
    assert list(found["distributed"]) == ["gpu_info", "steps_to_overlap", "steps_to_wait", "comm_ops"]
    assert found["w0"]["overview"]["environments"][0]["value"] == "2"


def test_spans_are_one_level_deeper_and_the_view_of_all_is_by_span(folder):
    found = exported(folder)
    assert list(found) == ["w0", "w1", "distributed"]
    assert list(found["w0"]) == ["1", "2"]
    assert found["w1"]["views"][0] == "Overview"
    assert list(found["distributed"]) == ["1"]  # of span 2 there is only one worker
    assert found["w0"]["2"]["kernel_pie"]["total"]["rows"] == [["gemm", 60]]


def test_ranks_of_other_names_are_called_by_rank(tmp_path):
    for rank in range(2):
        (tmp_path / f"x{rank}.json").write_bytes(recorded(rank=rank))
    assert list(exported(tmp_path)) == ["rank_0", "rank_1", "distributed"]


def test_another_run_is_compared_with_this_one_as_base(folder):
    paths = [folder / f"{name}.pt.trace.json" for name in ("w0.100", "w0.200")]
    found = exported(paths[0], diff=str(paths[1]))["diff"]
    assert (found["left"]["device_duration"], found["right"]["device_duration"]) == (30, 60)


def test_a_broken_worker_is_left_out_and_named(folder):
    (folder / "w2.160.pt.trace.json").write_bytes(b"not a trace")
    (folder / "w3.170.pt.trace.json").write_bytes(packed([x("a", 0, 1, "something")]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = json.loads(verbs.export(folder, "tensorboard"))
    assert list(found) == ["w0", "w1", "distributed"]
    told = [str(w.message) for w in caught]
    assert any("w3.170.pt.trace.json is left out" in text for text in told)
    assert sum("one step is recorded" in text for text in told) == 1


def test_one_broken_trace_is_an_error_and_so_are_many(tmp_path):
    (tmp_path / "a.pt.trace.json").write_bytes(packed([x("a", 0, 1, "something")]))
    with pytest.raises(StepscopeError, match="needs events that the TensorBoard plugin knows"):
        exported(tmp_path)
    (tmp_path / "b.pt.trace.json").write_bytes(packed([x("a", 0, 1, "something")]))
    with pytest.raises(StepscopeError, match="none of the traces can be read"):
        exported(tmp_path)
