from __future__ import annotations

import json

import pytest

import stepscope
from stepscope.readers.recorded import recording_of


@pytest.mark.parametrize("text", ["", "[]", '{"recorder": "another"}', "[" * 100_000])
def test_a_meta_json_of_others_is_no_recording(tmp_path, text):
    trace = str(tmp_path / "trace.json")
    assert recording_of(trace) == {}
    (tmp_path / "meta.json").write_text(text)
    assert recording_of(trace) == {}
    ours = {"recorder": "stepscope", "hz": 10}
    (tmp_path / "meta.json").write_text(json.dumps(ours))
    assert recording_of(trace) == ours


def jax_recording(folder, *, name="pid7.jax.trace.json", pids=(7,), profiled=701):
    """The processes of the tracks of a profile whose process has this number."""
    event = {"ph": "X", "cat": "cpu_op", "name": "dot", "pid": profiled, "tid": 7, "ts": 0, "dur": 10}
    document = {"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "traceEvents": [event]}
    (folder / name).write_text(json.dumps(document))
    (folder / "meta.json").write_text(json.dumps({"recorder": "stepscope", "pids": list(pids)}))
    return stepscope.load(str(folder / name)).tracks["pid"].drop_nulls().unique().to_list()


def test_a_profile_that_numbers_its_process_otherwise_is_of_the_recorded_one(tmp_path):
    assert jax_recording(tmp_path) == [7]


@pytest.mark.parametrize(
    "other",
    [{"name": "trace.json"}, {"pids": ()}, {"pids": (7, 701)}, {"pids": (8,)}],
    ids=["no number in the name", "no processes known", "the number is a process", "another process"],
)
def test_a_number_that_is_not_known_to_be_another_stays(tmp_path, other):
    assert jax_recording(tmp_path, **other) == [701]
