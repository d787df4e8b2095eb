from __future__ import annotations

import pytest

from stepscope.core.errors import MissingTable
from stepscope.exports.latencyprism._cycles import cycles_of

MS = 1_000_000


def calls(rows, name, *spans, track=0):
    for ts, dur in spans:
        rows.add(track, ts * MS, dur * MS, name, "python")


def found(trace, *columns):
    return cycles_of(trace).select(columns).rows()


def test_marked_steps_are_the_cycles(rows, recorded):
    rows.step(7, 100, 50)
    rows.step(8, 150, 60)
    calls(rows, "run_batch", *((10 * i, 5) for i in range(5)))
    assert found(recorded(rows), "cycle", "ts_ns", "dur_ns", "anchor", "phase") == [
        (1, 100, 50, "ProfilerStep", "generic"),
        (2, 150, 60, "ProfilerStep", "generic"),
    ]


def test_the_function_that_takes_most_at_the_top_is_the_anchor(rows, recorded):
    calls(rows, "Scheduler.run_batch", (0, 8), (10, 9), (20, 8))
    calls(rows, "inner", (1, 7), (11, 7), (21, 7))  # not at the top
    calls(rows, "rare", (100, 500), (700, 500))  # two calls
    calls(rows, "Scheduler.recv_requests", *((1300 + 100 * i, 90) for i in range(3)))  # waits
    calls(rows, "process", (8, 1), (19, 1), (28, 1))
    assert set(cycles_of(recorded(rows))["anchor"]) == {"Scheduler.run_batch"}


@pytest.mark.parametrize(("short", "anchor"), [(3.8, "long"), (5, "short")])
def test_of_two_that_take_alike_the_one_with_longer_calls_is_the_anchor(rows, recorded, short, anchor):
    calls(rows, "long", *((100 * i, 10) for i in range(4)))
    calls(rows, "short", *((1000 + 100 * i, short) for i in range(10)))
    assert set(cycles_of(recorded(rows))["anchor"]) == {anchor}


def test_a_cycle_reaches_back_to_the_one_before_unless_that_is_far(rows, recorded):
    calls(rows, "run_batch", (100, 8), (110, 8), (200, 8))
    calls(rows, "get_batch", (109, 1), (195, 5))
    # The second takes in the call between; 82 ms before the third belong to no cycle.
    assert found(recorded(rows), "ts_ns", "dur_ns") == [
        (100 * MS, 8 * MS), (109 * MS, 9 * MS), (200 * MS, 8 * MS),
    ]  # fmt: skip


def test_a_call_that_is_open_between_two_anchors_belongs_to_the_later(rows, recorded):
    calls(rows, "run_batch", (100, 8), (110, 8), (120, 8))
    calls(rows, "event_loop", (0, 200), (300, 1), track=1)
    low = 108 * MS + 1000
    assert found(recorded(rows), "ts_ns", "dur_ns")[1] == (low, 118 * MS - low)


def test_an_anchor_within_one_of_its_name_does_not_count(rows, recorded):
    calls(rows, "step", (0, 8), (10, 8), (20, 8), (11, 5), (12, 1))
    assert cycles_of(recorded(rows)).height == 3


def test_rare_and_long_calls_are_prefills(rows, recorded):
    calls(rows, "run_batch", *((10 * i, 5) for i in range(20)))
    calls(rows, "prefill", (196, 90))
    calls(rows, "short", (300, 10))
    assert found(recorded(rows), "cycle", "phase", "anchor")[-2:] == [
        (20, "decode", "run_batch"), (21, "prefill", "prefill"),
    ]  # fmt: skip


def test_a_decode_cycle_does_not_reach_into_a_prefill(rows, recorded):
    calls(rows, "run_batch", *((10 * i, 9) for i in range(10)), *((131 + 10 * i, 9) for i in range(10)))
    calls(rows, "prefill", (100, 30))
    windows = found(recorded(rows), "ts_ns", "dur_ns", "phase")
    assert windows[10:12] == [(100 * MS, 30 * MS, "prefill"), (131 * MS, 9 * MS, "decode")]


@pytest.mark.parametrize(
    ("inside", "phases"),
    [
        (["forward_extend", "forward_decode", "x"], ["prefill", "decode", "decode"]),
        (["x", "decode_step", "y"], ["decode"] * 3),
        (["x", "forwardDecode", "y"], ["decode"] * 3),
        (["decode", "decoder", "y"], ["decode", "decode", "generic"]),  # the second follows its neighbour
        (["x", "decoder", "y"], ["generic"] * 3),
    ],
)
def test_what_an_anchor_calls_tells_its_phase(rows, recorded, inside, phases):
    calls(rows, "run_batch", (0, 8), (10, 8), (20, 9))
    for i, name in enumerate(inside):
        calls(rows, name, (10 * i + 1, 2))
    assert cycles_of(recorded(rows))["phase"].to_list() == phases


def test_a_plain_decode_beside_an_encode_is_of_text(rows, recorded):
    calls(rows, "run_batch", (0, 8), (10, 8), (20, 8))
    calls(rows, "decode", (1, 2))
    calls(rows, "encode", (4, 2))
    assert set(cycles_of(recorded(rows))["phase"]) == {"generic"}


def test_without_telling_names_long_cycles_are_prefills(rows, recorded):
    calls(rows, "run_batch", *((50 * i, 40 if i in (0, 9) else 8) for i in range(12)))
    assert cycles_of(recorded(rows))["phase"].to_list() == ["prefill" if i in (0, 9) else "decode" for i in range(12)]


def test_a_cycle_of_no_phase_takes_that_of_the_neighbour_closer_in_duration(rows, recorded):
    calls(rows, "run_batch", (0, 20), (30, 8), (40, 7))
    calls(rows, "forward_extend", (1, 1))
    calls(rows, "forward_decode", (41, 1))
    assert cycles_of(recorded(rows))["phase"].to_list() == ["prefill", "decode", "decode"]


def test_without_steps_and_calls_there_are_no_cycles(rows, recorded):
    rows.kernel(0, 10)
    with pytest.raises(MissingTable, match="no steps, or a Python function") as caught:
        cycles_of(recorded(rows))
    assert "profiler.step()" in caught.value.hint
