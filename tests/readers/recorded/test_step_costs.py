from __future__ import annotations

import pytest

from stepscope.core.errors import CorruptInput
from stepscope.readers import expand, open_trace


def write(tmp_path, text):
    path = tmp_path / "costs.json"
    path.write_text(text)
    return str(path)


def test_costs_of_steps_and_of_batches_are_rows(tmp_path):
    path = write(tmp_path, '{"batch_cost_s": [[0.5, 16], [0.25, null]], "reader_cost_s": [[0.125, 1]], "more": 1}')
    trace = open_trace(path)
    assert trace.meta.format == "step_costs"
    assert trace.step_costs.rows() == [
        ("step", 0, 0.5, 16, "timer"),
        ("step", 1, 0.25, None, "timer"),
        ("reader", 1, 0.125, None, "timer"),
    ]
    assert trace.spans.is_empty()


def test_no_costs_are_no_rows(tmp_path):
    assert open_trace(write(tmp_path, '{"batch_cost_s": []}')).step_costs.is_empty()


@pytest.mark.parametrize(
    "text",
    [
        '{"batch_cost_s": 5}',
        '{"batch_cost_s": [[0.5]]}',
        '{"batch_cost_s": [[0.5, 16]',
        '{"batch_cost_s": [[-1, 16]]}',
    ],
)
def test_something_else_is_refused(tmp_path, text):
    with pytest.raises(CorruptInput) as caught:
        open_trace(write(tmp_path, text))
    assert "costs.json" in caught.value.message
    assert "batch_cost_s" in caught.value.hint


def test_such_a_file_is_no_trace_of_a_folder(tmp_path):
    write(tmp_path, '{"batch_cost_s": []}')
    (tmp_path / "trace.json").write_text('{"traceEvents":[]}')
    assert expand([str(tmp_path)]) == [str(tmp_path / "trace.json")]
