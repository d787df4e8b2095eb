from __future__ import annotations

import json

import pytest

from stepscope.readers.recorded.side_files import COUNTER_FILES, recording_of, side_file


@pytest.mark.parametrize("name", COUNTER_FILES)
def test_a_side_file_is_in_the_folder_of_the_trace(tmp_path, name):
    trace = str(tmp_path / "trace.json")
    assert side_file(trace, COUNTER_FILES) is None
    (tmp_path / name).touch()
    assert side_file(trace, COUNTER_FILES) == str(tmp_path / name)


@pytest.mark.parametrize("text", ["", "[]", '{"recorder": "another"}'])
def test_a_meta_json_of_others_is_no_recording(tmp_path, text):
    trace = str(tmp_path / "trace.json")
    assert recording_of(trace) == {}
    (tmp_path / "meta.json").write_text(text)
    assert recording_of(trace) == {}
    ours = {"recorder": "stepscope", "hz": 10}
    (tmp_path / "meta.json").write_text(json.dumps(ours))
    assert recording_of(trace) == ours
