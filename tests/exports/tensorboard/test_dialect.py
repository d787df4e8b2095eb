from __future__ import annotations

import pytest
from chrome_traces import kernel, op, read, x

from stepscope.exports.tensorboard._dialect import Dialect, dialect_of


@pytest.mark.parametrize(
    ("kind", "noun"),
    [("cuda", "GPU"), ("rocm", "GPU"), ("mlu", "MLU"), ("npu", "NPU"), ("xpu", "XPU"), ("mtia", "MTIA")],
)
def test_devices_are_called_by_their_vendors_word(kind, noun):
    assert Dialect(kind).noun == noun


def test_the_dialect_is_that_of_the_traces_accelerator():
    assert dialect_of(read([op("a", 0, 1)])) == Dialect("cuda")
    trace = read([x("cnInvokeKernel", 0, 1, "mlu_runtime", correlation=1), kernel("k", 2, 1, 1)])
    assert dialect_of(trace).is_mlu
    assert not dialect_of(trace).uses_own_categories
