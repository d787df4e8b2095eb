from __future__ import annotations

import numpy as np
import pytest
import xplane_profiles as made
from hypothesis import given
from hypothesis import strategies as st
from protobuf_writer import single

from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.protobuf import Wire
from stepscope.readers.xplane._decode import decode, instructions


def decoded(*planes):
    return decode(Wire([made.space(*planes)]))


def test_events_refer_to_names_and_statistics_of_their_own_plane():
    planes = []
    for word in ("a", "b"):
        plane = made.Plane(f"/host:{word}")
        planes.append(plane.line(word, plane.event(f"name {word}", 0, 1, hlo_op=made.Ref(f"op {word}"))))
    space = decoded(*planes)
    texts = space.text_list()
    assert [plane.name for plane in space.planes] == ["/host:a", "/host:b"]
    assert [texts[code] for code in space.name[space.metadata]] == ["name a", "name b"]
    assert [texts[code] for code in space.values("hlo_op")] == ["op a", "op b"]


def test_a_statistic_of_an_event_goes_before_that_of_its_metadata():
    plane = made.Plane("/device:TPU:0")
    plane.line("XLA Ops", plane.event("f", 0, 1, about={"flops": 5}), plane.event("f", 2, 1, flops=7))
    plane.line("Steps", plane.event("0", 0, 1))
    assert decoded(plane).values("flops").tolist() == [5, 7, ABSENT]
    assert decoded(plane).values("step_num") is None


def test_numbers_may_be_signed_unsigned_or_fractions():
    plane = made.Plane("/host:CPU", clock=-3, rate=2.5, vendor="AMD", ref=made.Ref("text"))
    plane.line("x", *(plane.event("f", 0, 1, flops=value) for value in (-4, 4, 4.0)))
    space = decoded(plane)
    assert space.values("flops").tolist() == [-4, 4, 4]
    assert space.planes[0].facts == {"clock": -3, "rate": 2.5, "vendor": "AMD", "ref": "text"}


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=8), st.integers(0, 2**60))
def test_times_are_rounded_so_that_neighbours_stay_neighbours(events, origin_ns):
    plane = made.Plane("/host:CPU")
    made_of = [plane.event("f", start / made.US, dur / made.US) for start, dur in events]
    # Floats of microseconds lose picoseconds, so that the messages are written again.
    made_of = [
        made.content(4, made.number(1, 1) + made.number(2, start) + made.number(3, dur)) for start, dur in events
    ]
    space = decoded(plane.line("x", *made_of, ts_ns=origin_ns))
    ends = [origin_ns + (start + dur + 500) // 1000 for start, dur in events]
    assert space.ts.tolist() == [origin_ns + (start + 500) // 1000 for start, _ in events]
    assert space.end.tolist() == ends


@pytest.mark.parametrize("large", [2**62, 2**63 - 1, -(2**63)])
def test_numbers_that_are_no_times_are_unknown(large):
    plane = made.Plane("/host:CPU")
    plane.metadata("f")
    space = decoded(plane.line("x", made.content(4, made.number(1, 1) + made.number(2, large))))
    assert space.ts.tolist() == [ABSENT]


def test_zeros_are_not_written():
    plane = made.Plane("/host:CPU")
    plane.metadata("f")
    space = decoded(plane.line("x", made.content(4, made.number(1, 1))))
    assert (space.ts.tolist(), space.end.tolist()) == ([1_000], [1_000])


def test_a_module_says_category_framework_operation_and_source_of_each_instruction():
    data = made.hlo_module()
    wire = Wire([data])
    assert instructions(wire, (0, len(data))) == {"fusion.1": ("loop fusion", "jit(f)/add", "m.py:9")}


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_to_something(data):
    space = decode(Wire([data]))
    assert space.ts.size == space.line.size == space.metadata.size
    instructions(Wire([data]), (0, len(data)))


def test_fields_of_later_versions_are_passed_over():
    plane = made.Plane("/host:CPU")
    plane.line("x", plane.event("f", 0, 1) + made.content(90, "new") + single(91, 1))
    assert np.array_equal(decoded(plane).ts, [1_000])
