from __future__ import annotations

from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.schema import CATEGORIES
from stepscope.readers.chrome.events import (
    CALL,
    DEVICE,
    FRAME,
    LANE,
    METRICS,
    OPERATOR,
    PLAIN,
    Args,
    Event,
    ExactEvent,
    RawEvent,
    category_of,
    coerce,
    kind_of,
)
from stepscope.readers.common.columns import ABSENT

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(["ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "other"])
arguments = st.dictionaries(
    st.sampled_from([f.encode_name for f in msgspec.structs.fields(Args)]), json_values, max_size=4
)


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        ({"ph": "X", "ts": "1.5", "dur": 2}, {"ph": "X", "ts": 1.5, "dur": 2.0}),
        ({"ts": "soon", "dur": "NaN", "name": 7}, {"name": "7"}),
        ({"ts": True, "dur": [1], "name": None, "cat": {}}, {}),
        ({"pid": 1.5, "tid": False, "id": "0x1"}, {"pid": "1.5", "id": "0x1"}),
        ({"args": [1], "other": 3}, {}),
        ({"args": {"stream": [1], "device": "0", "External id": "12", "registers per thread": 1.5}},
         {"args": Args(device="0", external_id=12)}),
    ],
)  # fmt: skip
def test_fields_of_the_wrong_type_are_left_out(raw, kept):
    assert coerce(raw, Event) == Event(**kept)


@pytest.mark.parametrize(
    ("value", "exact"),
    [
        ("1712345678901234.567", Decimal("1712345678901234.567")),
        (" 7 ", Decimal(7)),
        (0.1, Decimal("0.1")),
        ("Infinity", None),
        ("x", None),
        (True, None),
    ],
)
def test_exact_times_are_kept_digit_by_digit(value, exact):
    assert coerce({"ts": value}, ExactEvent).ts == exact


@pytest.mark.slow
@given(st.dictionaries(keys, json_values), arguments, st.sampled_from([Event, ExactEvent]))
def test_any_object_gives_an_event(raw, args, kind):
    event = coerce({**raw, "args": args}, kind)
    assert isinstance(event, kind)
    assert isinstance(event.args, Args)
    assert isinstance(event.ph, str)
    hash((event.name, event.cat, event.pid, event.tid, event.id))
    assert event.ts is None or event.ts - event.ts == 0


def test_absent_arguments_are_absent_not_zero():
    event = msgspec.json.decode(b'{"ph":"X","args":{}}', type=Event)
    assert event.args.external_id == event.args.registers == ABSENT
    assert event.args.stream is None
    assert bytes(event.args.grid) == b""


def test_raw_events_keep_their_arguments_as_text():
    assert bytes(msgspec.json.decode(b'{"ph":3,"args": {"a" :1}}', type=RawEvent).args) == b'{"a" :1}'


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
