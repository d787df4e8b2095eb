from __future__ import annotations

import numpy as np
import pytest

from stepscope.readers.common.categories import by_name, odd_device_work
from stepscope.readers.common.span_builder import CODE


@pytest.mark.parametrize(
    ("category", "name", "wanted"),
    [
        ("operator", "ProfilerStep#3", "step"),
        ("kernel", "ProfilerStep#3", "kernel"),
        ("python", "nn.Module: Net_0", "module"),
        ("operator", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "dataloader"),
        ("kernel", "MEMCPY_ASYNC", "memcpy"),
        ("kernel", "Notify Wait", "sync"),
        ("kernel", "gemm", "kernel"),
        ("runtime", "Memcpy", "runtime"),
    ],
)
def test_a_name_refines_only_the_categories_that_it_can_belong_to(category, name, wanted):
    codes = by_name(np.array([CODE[category]], np.uint8), np.array([0]), [name])
    assert codes.tolist() == [CODE[wanted]]


def test_no_spans_have_no_categories():
    assert by_name(np.empty(0, np.uint8), np.empty(0, np.int64), []).size == 0


def test_device_records_without_work_are_known_by_their_first_word():
    names = ["EVENT_WAIT", "Write Value", "reduce_async_v2", "sdma", "FillBuffer", "gemm"]
    assert [odd_device_work(name) for name in names] == ["sync", "sync", "device_range", "memcpy", "memset", None]
