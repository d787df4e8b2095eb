"""The compiled decoder makes of any file what the decoder in Python makes of it."""

from __future__ import annotations

import json
import math
from unittest import mock

import numpy as np
import pytest
from c_libraries import COMPILER, library_of
from chrome_traces import arrow, call, kernel, label, op, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError
from stepscope.readers.chrome import json as _json
from stepscope.readers.chrome import kineto, scanner
from stepscope.readers.chrome.scanner import Scanner
from stepscope.readers.common.source import Source

SOURCE = scanner.LIBRARY.with_name("scan.c")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: then nothing is compiled")


@pytest.fixture(scope="module", autouse=True)
def library(tmp_path_factory):
    """The library of this source, whether or not the installation has one."""
    path = library_of(SOURCE, tmp_path_factory.mktemp("library"))
    scanner._library.cache_clear()
    with mock.patch.object(scanner, "LIBRARY", path):
        assert scanner.is_there()
        yield path
    scanner._library.cache_clear()


def outcome(path, *, compiled):
    """Tables, facts and issues, or the error."""
    with mock.patch.object(scanner, "is_there", return_value=compiled):
        try:
            trace = kineto.read(Source(str(path)))
        except StepscopeError as error:
            return type(error), error.message, error.hint
    return {name: frame.to_dict(as_series=False) for name, frame in trace.tables.items()}, trace.meta


def assert_alike(path, text):
    path.write_bytes(text)
    expected, got = (outcome(path, compiled=compiled) for compiled in (False, True))
    assert repr(got) == repr(expected), text  # as text, since no not-a-number equals another


def events_of(text, *, exact=False):
    """How many events the decoder takes of an array, and the first of each field."""
    batch = Scanner(exact=exact).scan(bytearray(text), 1)
    return batch.n, {name: column[0] for name, column in batch.fields.items() if batch.n}


PLAIN = [
    label("process_name", "python"), label("thread_name", "worker", tid=1),
    x("ProfilerStep#1", 10, 90, "user_annotation"),
    op("aten::mm", 11, 9.5, External_id=1, Input_Dims=[[3, 3], []], Concrete_Inputs=["", "[1, 2]"], Sequence_number=4),
    op("aten::mm", 31, 9.25, External_id="2", Input_Dims=[], Call_stack="a.py(1): f;b.py(2): g"),
    call("cudaLaunchKernel", 12, 3, 91, External_id=1, kernel="gemm"),
    kernel("gemm}, {x", 24.001, 9.999, 91, grid=[8, 1, 1], block=[32, 1, 1], **{"blocks per SM": 1.5}),
    kernel("ncclAllReduce", 40, 9, 92, stream="20", **{"Collective name": "allreduce", "dtype": "Float",
    "Group size": 8}),
    kernel("Memcpy HtoD (Pageable -> Device)", 60, 2, 93, cat="gpu_memcpy", bytes=512),
    x("gpu range", 24, 40, "gpu_user_annotation", pid=0, tid=7), x("wait", 70, 5, "cuda_sync", wait_on_stream=7),
    x("f.py(1): g", 71, 1, "python_function", Python_id=3, Python_parent_id=None),
    arrow("s", 91, 12), arrow("f", 91, 24, pid=0, tid=7), arrow("s", 5, 11, cat="fwdbwd"), arrow("t", 5, 12,
    cat="fwdbwd"),
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 13, "args": {"Device Type": 1, "Bytes": 8,
    "Addr": 2**40}},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": 14, "args": {"Device Type": 0, "Device Id": -1,
    "Bytes": "-8", "Addr": -5, "Total Allocated": 0, "Total Reserved": None}},
    {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "args": {"Bytes": 8}}, {"ph": "I", "name": "note", "ts": 15},
    {"ph": "i", "name": None, "ts": 16}, {"ph": "i", "ts": 17}, {"ph": "i", "name": "Record Window End", "ts": 99},
    {"ph": "C", "name": "use", "pid": 1, "ts": 3, "args": {"value": 3}},
    {"ph": "B", "name": "open", "pid": 1, "tid": 2, "ts": 3}, {"ph": "E", "name": "open", "pid": 1, "tid": 2, "ts": 9},
]  # fmt: skip
DOCUMENT = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": PLAIN, "host_name": "h"}


def test_a_sound_trace_is_left_to_nobody(tmp_path):
    for text in (json.dumps(DOCUMENT), json.dumps(DOCUMENT, indent=2), json.dumps(PLAIN, separators=(",", ":"))):
        with mock.patch.object(_json.Document, "_decode", side_effect=AssertionError):
            path = tmp_path / "trace.json"
            path.write_text(text)
            assert outcome(path, compiled=True)[1].n_events == len(PLAIN)
        assert_alike(path, text.encode())


def test_wherever_a_trace_is_cut_short_both_say_the_same(tmp_path):
    text = json.dumps(DOCUMENT).encode()
    for end in range(0, len(text), 151):
        assert_alike(tmp_path / "trace.json", text[:end])


@pytest.mark.parametrize("block", [64, 300, 1000])
def test_it_does_not_matter_where_text_is_cut_into_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(_json, "SCANNED", block)
    monkeypatch.setattr("stepscope.readers.common.source.CHUNK", 32)
    monkeypatch.setattr(_json, "PROBE", 32)
    monkeypatch.setattr(_json, "BLOCK", 32)
    assert_alike(tmp_path / "trace.json", json.dumps(DOCUMENT).encode())


#: As JSON: sound ones, then some that are damaged or that repair changes.
SOUND = [
    "null", "true", "-0", "0", "-0.0", "1.0", "1e3", "1.5E-3", "-1e-400", '"12"', '"1.5"', '"x"', '""', "[]", "{}",
    "0.1",
    "12345678901234567", "123456789012345678", "1234567890123456789", "18446744073709551615", "1" * 40, "4.35", '"-0"',
    "9007199254740993", "1577836800123456.789", '"\\u00e9"', '"\\ud83d\\ude00"', '"é"', "[[[{}]]]", '"1e3"', '"007"',
    '{"a": [null, false, "b"]}', '"caf\\u00e9 \\n \\/"', "2199023255551.5", '" 5"', '"null"', '"nan"',
]  # fmt: skip
ODD = [
    "007",
    "1e400",
    '"\\ud83d"',
    '"\\x"',
    '"\t"',
    "NaN",
    "-Infinity",
    "nul",
    "-",
    "1.",
    ".5",
    "+1",
    "[1",
    "1 2",
    '"a" "b"',
]
KEYS = [
    "ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "other", "External id", "Input Dims", "Call stack",
    "device", "stream", "correlation", "grid", "blocks per SM", "bytes", "Addr", "Collective name", "alg_type",
    "kernel",
]  # fmt: skip


def with_field(key, value):
    """An event with the field, and one with the argument: both have it a second time if it is a usual one."""
    own = json.dumps(kernel("k", 5, 2, 9))[:-1]
    return f'{own}, "{key}": {value}}}, {own[:-1]}, "{key}": {value}}}}}'


@pytest.mark.parametrize("key", KEYS)
def test_any_sound_value_of_any_field(tmp_path, monkeypatch, key):
    monkeypatch.setattr(_json, "BLOCK", 64)  # after an event that is left, the decoder is soon asked again
    monkeypatch.setattr(_json, "_FEW", 1000)
    events = [json.dumps(op("first", 1, 1)), *(with_field(key, value) for value in SOUND)]
    assert_alike(tmp_path / "trace.json", f"[{', '.join(events)}]".encode())


@pytest.mark.parametrize("key", ["name", "ts", "External id", "grid"])
def test_damaged_values(tmp_path, key):
    for value in ODD:
        events = [json.dumps(op("first", 1, 1)), with_field(key, value), json.dumps(op("last", 8, 1))]
        assert_alike(tmp_path / "trace.json", f"[{', '.join(events)}]".encode())


@pytest.mark.parametrize("event", [
    b'{"ph": "X", "ts": 1, "dur": 1, "name": "\xff"}', b'{"ph": "X", "ts": 1, "dur": 1, "name": "\xc3\xa9"}',
    b'{"ph": "X", "ts": 1, "dur": 1, "\\u006eame": "x"}', b'{"ph": "X", "ts": 1, "dur": 1, "ts": null}',
    b'{"ph": "X", "ts": 1, "dur": 1, "args": {"grid": [1]}, "args": {}}', b'{"ph": "X" "ts": 1}', b"{}", b"[]", b"7",
    b"",
    b'{"ph": "X", "ts": 1, "dur": 1,}', b'{"ph": "X", "ts": 1, "dur": 1, "a": ' + b"[" * 60 + b"]" * 60 + b"}",
    b'{"ts": 1, "dur": 1, "name": "x", "ph": "X"}', b'{"ph": "XX", "ts": 1, "dur": 1}',
    b'{"ts": 1, "name": "cudaLaunch"}',
    b'{"ph": "s", "id": "5", "ts": 1, "cat": "fwdbwd"}', b'{"ph": "s", "ts": null, "cat": "ac2g", "id": 3}',
    b'{"ph": "X", "ts": 1, "dur": 1, "cat": "cuda_profiler_range", "args": {"metric": 3}}', b'{"": 1, "ph": "X"}',
    b'{"ph": "M", "name": 5}', b'{"ph": "M", "name": "cudaMalloc", "cat": "mlu", "args": {"name": "x"}}',
])  # fmt: skip
def test_events_that_are_unlike_others(tmp_path, event):
    before, after = (json.dumps(op(name, 3, 1)).encode() for name in ("before", "after"))
    assert_alike(tmp_path / "trace.json", b"[" + before + b", " + event + b", " + after + b"]")


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-9, 2**53), st.text(max_size=5),
    st.floats(allow_nan=False, allow_infinity=False), st.lists(st.integers(0, 9), max_size=3),
    st.integers(0, 99).map(str),
)  # fmt: skip
ARGUMENTS = st.sampled_from([one.key for one in scanner._wanted(exact=False)[1]])
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXstfiMBEC"), "ts": st.one_of(st.integers(0, 999), VALUES)},
    optional={
        "name": st.sampled_from(["a", "cudaLaunchKernel", "[memory]"]), "pid": st.sampled_from([1, 2, "1", "p", None]),
        "cat": st.sampled_from(["cpu_op", "kernel", "cuda_runtime", "gpu_user_annotation", "ac2g", "fwdbwd",
        "python_function"]),
        "tid": st.sampled_from([1, "1", 2**40]), "id": st.sampled_from([1, 2, "2", None]),
        "args": st.dictionaries(ARGUMENTS, VALUES, max_size=5), "dur": st.one_of(st.integers(0, 99), VALUES),
    },
)  # fmt: skip


@given(st.lists(EVENTS, min_size=1, max_size=8))
def test_whatever_events_hold_both_make_the_same_of_it(tmp_path_factory, events):
    assert_alike(tmp_path_factory.getbasetemp() / "any.json", json.dumps(events).encode())


@given(st.lists(st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**12), 10**12, places=3).map(str), st.decimals(0, 2**53, places=6).map(str),
    st.builds("{}.{}e{}".format, st.integers(-(10**24), 10**24), st.integers(0, 10**24), st.integers(-40, 40)),
), min_size=1, max_size=9))  # fmt: skip
def test_a_number_is_the_double_next_to_it(numbers):
    for number in numbers:
        n, first = events_of(f'[{{"ph": "X", "ts": {number}, "dur": 1}}]'.encode())
        if n:  # very long ones are left
            expected = float(number) if number != "-0" else 0.0
            assert first["ts"] == expected
            assert math.copysign(1, first["ts"]) == math.copysign(1, expected)


@given(st.decimals(-(10**14), 10**14, places=6), st.booleans())
def test_exact_times_are_rounded_as_decimals_are(number, quoted):
    text = f'"{number:f}"' if quoted else f"{number:f}"
    n, first = events_of(f'[{{"ph": "X", "ts": {text}, "dur": 1}}]'.encode(), exact=True)
    assert n == 1
    assert first["ts"] == round(number * 1000)


def test_a_file_of_events_that_are_left_is_soon_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(_json, "BLOCK", 256)
    asked = []
    scan = Scanner.scan
    monkeypatch.setattr(Scanner, "scan", lambda *given: asked.append(1) or scan(*given))
    odd = [kernel(f"k{i}", i, 1, i, kernel_type="a") for i in range(500)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([*odd, op("last", 1, 1)]))
    assert outcome(path, compiled=True)[1].n_events == 501
    assert 1 < len(asked) < 60


def test_an_older_library_is_not_used(library, monkeypatch):
    scanner._library.cache_clear()
    monkeypatch.setattr(scanner, "_VERSION", 0)
    assert not scanner.is_there()
    monkeypatch.undo()
    scanner._library.cache_clear()
    monkeypatch.setenv("STEPSCOPE_PURE_PYTHON", "1")
    assert not scanner.is_there()
    scanner._library.cache_clear()
    monkeypatch.undo()
    with mock.patch.object(scanner, "LIBRARY", library):
        assert scanner.is_there()


def test_arrays_are_those_of_the_batch():
    decoder = Scanner(exact=False)
    first = decoder.scan(bytearray(b'[{"ph":"X","ts":1,"dur":2,"args":{"grid":[1]}},{"ph":"X","ts":3,"dur":4}]'), 1)
    assert (first.n, first.is_end) == (2, True)
    assert first.fields["grid"].tolist() == [1, 0]
    assert decoder.texts(scanner.DIMS, 0) == [b"[1]"]
    second = decoder.scan(bytearray(b'[{"ph":"X","ts":5},{"ph":"X","ts":7,'), 1)
    assert (second.n, second.is_end, second.border) == (1, False, 18)
    assert second.fields["grid"].tolist() == [0]
    assert np.isnan(second.fields["dur"]).all()
    assert "grid" not in second.used
