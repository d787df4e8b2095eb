"""Of real traces the compiled decoder makes what the decoder in Python makes, and leaves hardly an event to it."""

from __future__ import annotations

from unittest import mock

import pytest

from stepscope.readers.chrome import event_columns, kineto, parts, scanner
from stepscope.readers.common.source import Source

TRACES = [
    "kineto/resnet50_num_workers_0/worker0.1623143089861.pt.trace.json.gz",
    "more/kineto-multirank/megatron-tp8-a100/megatron_kineto_0.json.gz",
    "tracelens/mi300/gaunernst_bert-small-uncased__1016001.json.gz",
    "tracelens/b200/eager_trace.json.gz",
    "hta/rank_non_gpu/rank_non_gpu.json.gz",
    "hta/triton_example/triton_example.json.gz",
    "cuda-graph-pairs/ViT_v100.pt.trace.json.gz",
]


def read(path, *, compiled):
    with (
        mock.patch.object(scanner, "is_there", return_value=compiled),
        mock.patch.object(parts, "cores_for_threads", return_value=1),
        mock.patch.object(event_columns.Columns, "add", autospec=True, side_effect=event_columns.Columns.add) as slow,
    ):
        trace = kineto.read(Source(str(path)))
    return trace, sum(len(given.args[1]) for given in slow.call_args_list)


@pytest.mark.skipif(not scanner.is_there(), reason="this installation has no compiled decoder")
@pytest.mark.parametrize("path", TRACES)
def test_a_real_trace_has_the_same_tables(shared, path):
    (expected, _), (trace, n_left) = (read(shared / "traces" / path, compiled=c) for c in (False, True))
    assert trace.meta == expected.meta
    assert trace.tables.keys() == expected.tables.keys()
    for name, table in trace.tables.items():
        assert table.equals(expected.tables[name]), name
    assert not n_left
