from __future__ import annotations

import pytest

from stepscope.core.schema import CATEGORIES
from stepscope.readers.chrome.classify import CALL, DEVICE, FRAME, LANE, METRICS, OPERATOR, PLAIN, category_of, kind_of


@pytest.mark.parametrize(
    ("cat", "category", "kind"),
    [
        ("cpu_op", "operator", OPERATOR),
        ("Operator", "operator", OPERATOR),
        ("user_annotation", "user_range", OPERATOR),
        ("gpu_user_annotation", "device_range", LANE),
        ("kernel", "kernel", DEVICE),
        ("Kernel", "kernel", DEVICE),
        ("mtia_ccp_events", "kernel", DEVICE),
        ("gpu_memcpy", "memcpy", DEVICE),
        ("Memcpy", "memcpy", DEVICE),
        ("gpu_memset", "memset", DEVICE),
        ("Memset", "memset", DEVICE),
        ("cuda_sync", "sync", DEVICE),
        ("cuda_runtime", "runtime", CALL),
        ("Runtime", "runtime", CALL),
        ("cuda_driver", "driver", CALL),
        ("xpu_runtime", "runtime", CALL),
        ("mlu_runtime", "runtime", CALL),
        ("privateuse1_driver", "driver", CALL),
        ("python_function", "python", FRAME),
        ("python", "python", OPERATOR),
        ("mlu_memcpy", "memcpy", DEVICE),
        ("mlu_memset", "memset", DEVICE),
        ("mlu_user_annotation", "device_range", LANE),
        ("overhead", "overhead", PLAIN),
        ("cuda_profiler_range", "device_range", METRICS),
        ("Trace", "other", PLAIN),
        ("", "other", PLAIN),
        (None, "other", PLAIN),
    ],
)
def test_categories_of_every_age_and_vendor(cat, category, kind):
    assert category_of(cat) == category
    assert category in CATEGORIES
    assert kind is None or kind_of(cat) == kind
