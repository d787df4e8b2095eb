from __future__ import annotations

import json

import pytest

from stepscope.readers.recorded import recording_of


@pytest.mark.parametrize("text", ["", "[]", '{"recorder": "another"}'])
def test_a_meta_json_of_others_is_no_recording(tmp_path, text):
    trace = str(tmp_path / "trace.json")
    assert recording_of(trace) == {}
    (tmp_path / "meta.json").write_text(text)
    assert recording_of(trace) == {}
    ours = {"recorder": "stepscope", "hz": 10}
    (tmp_path / "meta.json").write_text(json.dumps(ours))
    assert recording_of(trace) == ours
