from __future__ import annotations

import paddle_profiles as made
import pytest
from paddle_profiles import BEGAN, json_host, json_profile

from stepscope.readers.common.source import IssueLog
from stepscope.readers.paddle import _json
from stepscope.readers.paddle._columns import COLUMNS
from stepscope.readers.paddle._json import blocks, decode, escaped


def decoded(data):
    log = IssueLog()
    return decode(data, log), {row[0]: row[2] for row in log.table().iter_rows()}


def names(recording, table):
    return [recording.names[i] for i in table["name"].tolist()]


def test_links_come_from_the_order_of_the_file():
    recording, _ = decoded(made.json_training())
    assert recording.host["parent"].tolist() == [-1, -1, 0, 0, 0, 0, 1, 1, 3, 6, 8, 8, 9]
    assert recording.runtime["host"].tolist() == [-1, 4, 5, 11, 12]
    assert recording.device["runtime"].tolist() == [1, 2, 3, 4]
    assert recording.memory["host"].tolist() == [11, 11, 12]
    assert recording.arguments["host"].tolist() == [8, 9]
    assert recording.kernels["device"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("data", [made.json_training(), json_profile()])
def test_all_columns_are_there(data):
    recording, _ = decoded(data)
    for name, columns in COLUMNS.items():
        assert tuple(getattr(recording, name)) == columns


def test_what_stands_before_the_first_event_of_a_thread_hangs_on_its_root():
    call = made.json_call("cudaFree", 5_000, 6_000, 3, tid=8)
    recording, _ = decoded(
        json_profile(json_host("a", "Operator", 0, 9_000), call, json_host("b", "Operator", 0, 9_000, tid=8))
    )
    assert recording.runtime["host"].tolist() == [-1]


def test_a_call_outside_the_event_before_it_hangs_on_the_root():
    """The event that it was made in is lost: the one before it is not its own."""
    call = made.json_call("cudaFree", 15_000, 16_000, 3)
    recording, issues = decoded(json_profile(json_host("a", "Operator", 0, 9_000), call))
    assert recording.runtime["host"].tolist() == [-1]
    assert issues == {"odd_parents": 1}


def test_device_work_whose_call_is_lost_is_tied_by_its_id():
    call = made.json_call("cudaLaunchKernel", 1_000, 2_000, 7)
    other = made.json_call("cudaLaunchKernel", 3_000, 4_000, 8)
    kernels = [made.json_kernel("k", 5_000, 6_000, correlation=i) for i in (7, 9)]
    recording, _ = decoded(json_profile(call, other, *kernels))
    assert recording.device["runtime"].tolist() == [0, -1]


def test_times_are_within_the_whole_microsecond_that_is_written():
    """The start of the trace lies 123 ns behind a whole µs; that it does no one field says."""
    starts = [0, 876, 877, 5_500]
    recording, _ = decoded(json_profile(*(json_host("a", "Operator", at, at + 10) for at in starts)))
    error = recording.host["start"] - BEGAN - starts
    assert abs(error).max() < 500
    assert len(set(error.tolist())) == 1


def test_an_event_that_starts_as_another_ends_is_not_inside():
    events = [
        json_host(n, "Operator", s, e) for n, s, e in (("a", 0, 50), ("b", 50, 90), ("in", 60, 90), ("empty", 90, 90))
    ]
    recording, _ = decoded(json_profile(*events))
    assert recording.host["parent"].tolist() == [-1, -1, 1, -1]


def test_names_that_paddle_did_not_escape_are_read_as_they_were():
    odd = ['say "hi"', "C:\\new\\u12", "tab\there", 'a", b', "two\nlines", "€ \\"]
    recording, issues = decoded(json_profile(*(json_host(n, "PythonUserDefined", 0, 5_000) for n in odd)))
    assert names(recording, recording.host) == odd
    assert issues == {"unescaped_names": 6}


def test_names_of_threads_need_no_escaping_either():
    recording, issues = decoded(json_profile(extra={"7": 'the "main" one', "Process Cpu Utilization": "1.5"}))
    assert recording.extra == {"7": 'the "main" one', "Process Cpu Utilization": "1.5"}
    assert issues == {}


@pytest.mark.parametrize("index", ['"span_index": "3"', '"span_indx": "3"'])
def test_the_cycle_is_told_by_versions_2_and_3(index):
    recording, _ = decoded(json_profile(index=index))
    assert (recording.span_index, recording.version) == (3, "1.0.2")


def test_durations_behind_names_are_cut_off_once():
    recording, _ = decoded(json_profile(json_host("at[0] [1.000 us]", "Operator", 0, 2_000_001)))
    assert names(recording, recording.host) == ["at[0] [1.000 us]"]


def test_a_file_that_ends_early_is_read_as_far_as_it_goes():
    whole = made.json_training()
    recording, issues = decoded(whole[: whole.index(b"my range") + 20])
    assert names(recording, recording.host)[-1] == "Linear"
    assert issues == {"truncated": 1, "damaged_events": 1}
    recording, issues = decoded(whole[:50])
    assert recording.n_events == 0
    assert issues == {"truncated": 1}


def test_a_damaged_element_is_left_out():
    text = made.json_training().replace(b'"dur": 30.000', b'"dur": oops', 1)
    recording, issues = decoded(text)
    assert recording.n_events == 24
    assert issues["damaged_events"] == 1


def test_a_file_written_anew_by_another_program_is_read_too():
    import json

    whole = json.loads(made.json_training().replace(b"\nb.py", b";b.py"))
    expected, _ = decoded(made.json_training())
    for text in (json.dumps(whole), json.dumps(whole, indent=4), json.dumps(whole, separators=(",", ":"))):
        recording, issues = decoded(text.encode())
        assert issues == {}
        assert recording.host["start"].tolist() == expected.host["start"].tolist()
        assert recording.extra == expected.extra
        assert recording.devices == expected.devices


def test_events_without_times_from_the_start_have_those_of_the_clock():
    text = (
        made.json_profile(json_host("a", "Operator", 2_000, 5_000))
        .replace(b"start_time", b"began")
        .replace(b"end_time", b"ended")
    )
    recording, _ = decoded(text)
    assert recording.host["start"].tolist() == [BEGAN // 1000 * 1000 + 2_000]
    assert (recording.host["end"] - recording.host["start"]).tolist() == [3_000]


def listed(text, log=None):
    return [[event.name for event in block] for block in blocks(text, 0, len(text), log or IssueLog())]


def element(name):
    return f'  {{\n    "name": "{name}", "pid": 1,\n    "ph": "X"\n  }}'.encode()


def test_blocks_are_cut_between_elements(monkeypatch):
    text = b",\n".join(element(n) for n in ("a", "b", "c", "d")) + b",\n  {}\n"
    assert listed(text) == [["a", "b", "c", "d", ""]]
    monkeypatch.setattr(_json, "BLOCK", 60)
    assert [n for block in listed(text) for n in block] == ["a", "b", "c", "d", ""]
    assert len(listed(text)) > 1


def test_only_the_part_given_is_read():
    text = element("a")
    (block,) = blocks(b"xx" + text + b"yy", 2, 2 + len(text), IssueLog())
    assert block[0].name == "a"
    assert list(blocks(text, 5, 5, IssueLog())) == []


def test_what_cannot_be_read_is_counted_and_the_rest_kept():
    log = IssueLog()
    text = b",\n".join(
        [element("a"), b'  {\n    "name": "b", "pid": [1\n  }', element("c"), b'  {\n "name": "d", "pid": {}}']
    )
    assert listed(text, log) == [["a", "c"]]
    assert log.table().row(0)[:3] == ("damaged_events", "error", 2)


def test_sound_text_stays_as_it_is():
    log = IssueLog()
    assert escaped(element("a b"), log) == element("a b")
    assert not log.has("info")


@pytest.mark.parametrize(
    ("name", "mended"), [('a"b', 'a\\"b'), ("a\\b", "a\\\\b"), ("a\tb", "a\\tb"), ("a\nb", "a\\nb")]
)
def test_names_are_escaped(name, mended):
    log = IssueLog()
    assert escaped(element(name), log) == element(mended)
    assert log.table().row(0)[:3] == ("unescaped_names", "info", 1)
