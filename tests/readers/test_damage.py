"""What becomes of damaged files: what can be saved is saved, what was lost is counted, nothing else is raised."""

from __future__ import annotations

import gzip
import itertools
import json
import resource
import sys
import time
import zlib

import pytest
from chrome_traces import arrow, by_name, call, column, issues, kernel, label, op, packed, read, rows, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.core.schema import SEVERITIES, TABLES

EVENTS = [
    label("process_name", "python"),
    x("ProfilerStep#1", 0, 40, "user_annotation"),
    op("aten::mm", 1, 9, External_id=4, Input_Dims=[[2, 3], []], Concrete_Inputs=["", "[1, 2]"]),
    call("cudaLaunchKernel", 2, 3, 91, External_id=4),
    kernel("gemm}, {x", 14, 9, 91, grid=[8, 1, 1], block=[32, 1, 1]),
    arrow("s", 91, 2),
    {
        "ph": "i",
        "s": "t",
        "name": "[memory]",
        "pid": 1,
        "tid": 1,
        "ts": 3,
        "args": {"Device Type": 1, "Device Id": 0, "Bytes": 8},
    },
    {"ph": "C", "name": "use", "pid": 1, "ts": 3, "args": {"value": 4}},
    {"ph": "B", "name": "open", "pid": 1, "tid": 2, "ts": 3},
    {"ph": "E", "name": "open", "pid": 1, "tid": 2, "ts": 9},
]
DOCUMENT = packed(EVENTS, schemaVersion=1)
TAIL = DOCUMENT[:-1] + b',"displayTimeUnit":"ms","baseTimeNanoseconds":17}'


def events_before(document: bytes, at: int, end: int) -> int:
    """How many events are whole before a cut."""
    ends = itertools.accumulate(len(json.dumps(e, separators=(",", ":"))) + 1 for e in EVENTS)
    start = document.index(b"[") + 1
    return sum(start + e - 1 <= min(at, end) for e in ends)


def sound(trace):
    """What holds of every trace, however damaged its file."""
    for name, frame in trace.tables.items():
        assert dict(frame.schema) == dict(TABLES[name].dtypes), name
        assert not frame.is_empty(), name
    spans = trace.spans
    assert column(spans, "span_id") == list(range(spans.height))
    assert not (spans["dur_ns"] < 0).any()
    assert spans.is_empty() or spans["ts_ns"].min() == 0
    for key in ("parent_id", "launch_id", "op_id"):
        assert spans[key].drop_nulls().is_between(0, max(spans.height - 1, 0)).all()
    assert spans["track_id"].is_in(trace.tracks["track_id"].to_list()).all()
    assert set(trace.issues["severity"].cast(str)) <= set(SEVERITIES)
    for side in ("ops", "kernels", "transfers", "collectives", "kernel_metrics"):
        assert trace.table(side)["span_id"].is_in(spans["span_id"].to_list()).all()
    return trace


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "document",
    [DOCUMENT, TAIL, DOCUMENT[DOCUMENT.index(b"[") : -1], packed(EVENTS, a=1)],
    ids=["last", "first", "bare", "meta"],
)
def test_a_file_cut_off_anywhere_keeps_every_event_before_the_cut(document):
    start, end = document.index(b"["), document.rindex(b"]")
    for at in range(0, len(document), 7):
        try:
            trace = sound(read(document[:at]))
        except StepscopeError:
            assert not events_before(document, at, end), at
            continue
        assert trace.meta.n_events == events_before(document, at, end), at
        whole_and_bare = document.startswith(b"[") and "damaged_events" not in issues(trace)
        assert issues(trace).get("truncated", 0) == int(not whole_and_bare), at
        assert at > start


def test_of_a_file_cut_off_after_the_events_the_whole_fields_are_kept():
    trace = read(TAIL[:-5])
    assert trace.meta.facts == {"displayTimeUnit": "ms", "schemaVersion": "1"}
    assert issues(trace) == {"truncated": 1}


def many(n: int) -> bytes:
    """Events whose text hardly packs."""
    return packed([op(f"name {zlib.crc32(b'%d' % i):x}", i, 1) for i in range(n)])


@pytest.mark.slow
def test_a_cut_off_gzip_gives_the_events_up_to_the_cut():
    document = many(20_000)
    data = gzip.compress(document, mtime=0)
    for share in (0.999, 0.5, 0.02):
        trace = sound(read(data[: int(len(data) * share)], "t.json.gz"))
        assert abs(trace.meta.n_events / 20_000 - share) < 0.02
        assert (
            column(trace.spans, "name")[-2:]
            == [f"name {zlib.crc32(b'%d' % i):x}" for i in range(trace.meta.n_events)][-2:]
        )
        found = issues(trace)
        assert found["damaged_packing"] == found["truncated"] == 1


@pytest.mark.slow
def test_a_flipped_byte_in_a_gzip_costs_nothing_before_it():
    document = many(20_000)
    data = bytearray(gzip.compress(document, mtime=0))
    data[len(data) // 2] ^= 0x55
    trace = sound(read(bytes(data), "t.json.gz"))
    assert trace.meta.n_events > 9_000
    assert column(trace.spans, "name")[:9_000] == [f"name {zlib.crc32(b'%d' % i):x}" for i in range(9_000)]
    assert issues(trace)["damaged_packing"] == 1


def test_a_wrong_checksum_costs_nothing():
    data = bytearray(gzip.compress(DOCUMENT, mtime=0))
    data[-6] ^= 1
    trace = sound(read(bytes(data), "t.json.gz"))
    assert trace.meta.n_events == len(EVENTS)
    assert issues(trace) == {"damaged_packing": 1}


def test_a_gzip_damaged_from_the_start_is_refused():
    with pytest.raises(CorruptInput) as caught:
        read(b"\x1f\x8b\x08" + b"\xff" * 40, "t.json.gz")
    assert "t.json.gz" in caught.value.message
    assert caught.value.hint


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_flipped_byte_loads_or_is_refused():
    for number, at in enumerate(range(0, len(DOCUMENT), 5)):
        data = bytearray(DOCUMENT)
        data[at] ^= (1, 0x20, 0x80, 0xFF)[number % 4]
        try:
            trace = sound(read(bytes(data)))
        except StepscopeError:
            assert at <= DOCUMENT.index(b"[")  # before the events nothing is sure to be a trace
            continue
        # A byte touches one event, or the two that it parts.
        assert trace.meta.n_events >= len(EVENTS) - 2, at


ONE = '{"ph":"X","name":"n","ts":1,"dur":2,"args":{}},'


@pytest.mark.parametrize(
    ("element", "name", "issue"),
    [
        ('{"ph":"X","name":"a\x01b","ts":1,"dur":2}', "a b", {"control_characters": 1}),
        ('{"ph":"X","name":"a\udcffb","ts":1,"dur":2}', "a\ufffdb", {"invalid_utf8": 1}),
        (
            '{"ph":"X","name":"b","ts":1,"dur":2,"args":{"q":NaN,"r":Infinity,"s":-Infinity}}',
            "b",
            {"non_finite_numbers": 3},
        ),
        ('{"ph":"X","name":"b","ts":1,"dur":2,"args":{"q":N/A}}', "b", {"non_finite_numbers": 1}),
        (r'{"ph":"X","name":"a\qb","ts":1,"dur":2}', r"a\qb", {"bad_escapes": 1}),
        (r'{"ph":"X","name":"a\ud800b","ts":1,"dur":2}', "a\ufffdb", {"bad_escapes": 1}),
        (r'{"ph":"X","name":"a\udc00b","ts":1,"dur":2}', "a\ufffdb", {"bad_escapes": 1}),
        ('{"ph":"X","ts":1,"dur":2}', "", {}),
        ('{"ph":"X","name":null,"ts":1,"dur":2}', "", {}),
        ('{"ph":"X","name":7,"ts":1,"dur":2}', "7", {}),
        ('{"ph":"X","name":"b","ts":"1","dur":"2","tid":"5","args":{"correlation":"x","stream":[1]}}', "b", {}),
        ('{"ph":"X","name":"b","ts":1,"dur":2,"args":null}', "b", {}),
        ('{"ph":"X","name":"b","ts":1,"dur":2,"args":[1]}', "b", {}),
        ('{"ph":"X","name":"b","ts":1,"dur":2,"pid":1.5,"tid":true,"id":{}}', "b", {}),
        ('{"ph":"X","name":"b","ts":1,"dur":2,"cat":5}', "b", {}),
        ('{"ph":"X","name":"b","ts":1,"dur":-2}', "b", {"negative_durations": 1}),
        ('{"ph":"X","name":"b","ts":1}', None, {"incomplete_events": 1}),
        ('{"ph":"X","name":"b","dur":1}', None, {"incomplete_events": 1}),
        ('{"ph":"X","name":"b","ts":NaN,"dur":1}', None, {"non_finite_numbers": 1, "incomplete_events": 1}),
        ('{"ph":"X","name":"b","ts":"soon","dur":1}', None, {"incomplete_events": 1}),
        ('{"ph":"X","name":"b","ts":1,"dur":1e300}', None, {"incomplete_events": 1}),
        ('{"ph":"X","name":"b","ts":1,"dur":1e25}', None, {"incomplete_events": 1}),
        ('{"ph":"X","name":"b","ts":4e15,"dur":1}', None, {"incomplete_events": 1}),
        ('{"ph":"X","name":oops,"ts":1,"dur":2}', None, {"damaged_events": 1}),
        ('{"ph":"?","name":"b","ts":1,"dur":2}', None, {"unknown_events": 1}),
        ('{"name":"b","ts":1,"dur":2}', None, {"unknown_events": 1}),
        ("7", None, {"damaged_events": 1}),
        ("", None, {"odd_commas": 1}),
    ],
)
def test_one_odd_event_among_sound_ones(element, name, issue):
    data = ('{"traceEvents":[' + ONE + element + "," + ONE.rstrip(",") + "]}").encode("utf-8", "surrogateescape")
    trace = sound(read(data))
    names = column(trace.spans, "name")
    assert names.count("n") == 2
    names.remove("n")
    names.remove("n")
    assert names == ([] if name is None else [name])
    assert issues(trace) == {k: n for k, n in issue.items() if n}


def test_overlapping_durations_have_parents_by_start():
    trace = sound(read([op("a", 0, 10), op("b", 5, 10), op("c", 12, 10)]))
    assert by_name(trace, "parent_id") == {"a": None, "b": 0, "c": 1}


def test_duplicate_ids_bind_to_the_first_call():
    trace = sound(
        read(
            [
                call("cudaLaunchKernel", 0, 1, 5),
                call("cudaMemcpyAsync", 2, 1, 5),
                kernel("k", 4, 1, 5),
                kernel("l", 6, 1, 5),
            ]
        )
    )
    assert by_name(trace, "launch_id")["k"] == by_name(trace, "launch_id")["l"] == 0


@pytest.mark.parametrize("ids", [(0, 0), (-1, -1), (None, None), (2**70, 2**70), ("x", "x")])
def test_ids_that_are_none_bind_nothing(ids):
    trace = sound(read([call("cudaLaunchKernel", 0, 1, ids[0]), kernel("k", 4, 1, ids[1])]))
    assert by_name(trace, "launch_id")["k"] is None


def test_numbers_beyond_their_columns_are_unknown():
    big = 2**80
    trace = sound(read([
        op("a", 0, 5, External_id=big, Sequence_number=-big, Fwd_thread_id=big),
        kernel("k", 6, 1, big, device=big, stream=big, registers_per_thread=2**40, shared_memory=-big,
        grid=[big, 1, 1], block=[1, -1, 1]),
        kernel("l", 6, 1, -(2**62), device=2**40, stream=-(2**62), warps_per_SM=1e308),
        x("Memcpy HtoD", 8, 1, "gpu_memcpy", pid=big, tid=-big, device=-5, stream=3, bytes=big),
        {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": 1,
        "args": {"Device Type": big, "Device Id": 2**40, "Bytes": 8, "Addr": big}},
        {"ph": "C", "name": "use", "pid": big, "ts": 3, "args": {"value": 10**400, "b": True, "c": "x", "d": [1]}},
        arrow("s", big, 1), arrow("s", "q", 1),
    ], deviceProperties=[{"id": 2**40, "numSms": 2**40, "totalGlobalMem": big, "totalMem(MiB)": 2**62},
    {"id": 0, "numSms": "x"}]))  # fmt: skip
    assert trace.spans.height == 4
    assert column(trace.spans, "external_id") == [None] * 4
    assert rows(trace.kernels, "registers", "shared_bytes", "grid_x", "block_y") == [(None,) * 4] * 2
    assert column(trace.transfers, "bytes") == [None]
    assert rows(trace.allocations, "bytes", "address", "device_id") == [(8, None, None)]
    assert column(trace.counters, "value") == [None]


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "phases"), [(500, "XCM"), (2_000, "XCM"), (10**6, "X")])
def test_deep_nesting_costs_at_most_its_own_event(depth, phases):
    for deep in (nested(depth), b'{"a":' * depth + b"1" + b"}" * depth, b"[" * depth):
        for ph in phases:
            odd = (
                b'{"ph":"'
                + ph.encode()
                + b'","name":"deep","ts":1,"dur":1,"args":{"Input Dims":'
                + deep
                + b',"q":'
                + deep
                + b"}}"
            )
            data = b'{"traceEvents":[' + ONE.encode() + odd + b"," + ONE.rstrip(",").encode() + b"]}"
            try:
                trace = sound(read(data))
            except UnknownFormat:
                pytest.fail("the other events should be there")
            assert column(trace.spans, "name").count("n") >= (1 if deep == b"[" * depth else 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [b"[" * 10**6, nested(10**6), b'{"a":' * 10**6, b'{"traceEvents":' + nested(10**6) + b"}", b"[{" * 10**6]
)
def test_nothing_but_nesting_is_no_trace(text):
    with pytest.raises(StepscopeError) as caught:
        read(text)
    assert caught.value.hint


@pytest.mark.slow
def test_deep_nesting_beside_the_events_costs_the_other_fields():
    good = packed([op("n", 1, 1)])
    for data in (good[:-1] + b',"a":' + nested(10**6) + b"}", b'{"a":' + nested(10**6) + b"," + good[1:]):
        trace = sound(read(data))
        assert column(trace.spans, "name") == ["n"]
        assert issues(trace) == {"metadata_unreadable": 1}


def bomb(n_bytes: int) -> bytes:
    """A sound gzip of valid JSON that unpacks to so many bytes of blanks: one member, many times over."""
    member = gzip.compress(b" " * (64 << 20), 9)
    return gzip.compress(b'{"traceEvents":[', mtime=0) + member * (n_bytes >> 26) + gzip.compress(b"]}", mtime=0)


@pytest.fixture(scope="module")
def four_gigabytes() -> bytes:
    return bomb(4 << 30)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << (20 if sys.platform == "darwin" else 10))


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [None, 10 << 20])
def test_a_decompression_bomb_is_refused(four_gigabytes, max_bytes):
    before, began = peak_mib(), time.monotonic()
    with pytest.raises(StepscopeError, match="unpacks to more than") as caught:
        read(four_gigabytes, "bomb.json.gz", max_bytes=max_bytes)
    assert "--max-bytes" in caught.value.hint
    assert peak_mib() - before < 400
    assert time.monotonic() - began < 60


def test_max_bytes_bounds_plain_files_too():
    with pytest.raises(StepscopeError, match="unpacks to more than 100 bytes"):
        read([op("n", i, 1) for i in range(100)], max_bytes=100)
    assert read([op("n", i, 1) for i in range(100)], max_bytes=100_000).spans.height == 100


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "is empty"),
        (b" \n\t" * 50, "no known format"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "no known format"),
        (b"name,ts,dur\na,1,2\n", "no known format"),
        (b"\xff\xfe[\0{\0", "no known format"),
        (gzip.compress(b"", mtime=0), "is empty"),
    ],
)
def test_other_formats_are_named_by_their_first_bytes(data, what):
    with pytest.raises(UnknownFormat, match=what) as caught:
        read(data, "input.json")
    assert "input.json" in caught.value.message
    assert ("record the trace again" if what == "is empty" else "stepscope formats") in caught.value.hint


# What a mutation does: flip, insert, delete, repeat, cut, or put in what JSON or the format finds odd.
odd = st.sampled_from([
    b"NaN", b"null", b'""', b"-1", b"1e400", b"[]", b"{}", b"},{", b"]", b'"', b"\\", b"\\ud800", b"\xff", b"\0",
    b"9" * 30, b'"ts":', b"true",
    b'"ph":"B"', b'"ph":"E"', b'"ph":"C"', b'"ph":"i"', b'"cat":"kernel"', b'"cat":"cuda_profiler_range"',
    b"Input Dims", b"1e999999", b'"NaN"',
])  # fmt: skip
places = st.integers(0, 2**20)
mutations = st.one_of(
    st.tuples(st.just("flip"), places, st.integers(1, 255)),
    st.tuples(st.just("put"), places, st.one_of(odd, st.binary(max_size=4))),
    st.tuples(st.just("over"), places, st.one_of(odd, st.binary(max_size=4))),
    st.tuples(st.just("drop"), places, st.integers(1, 40)),
    st.tuples(st.just("again"), places, st.integers(1, 200)),
    st.tuples(st.just("cut"), places, st.none()),
)


def mutated(data: bytes, kind: str, place: int, what) -> bytes:
    at = place % (len(data) + 1)
    if kind == "flip":
        return data[:at] + bytes(b ^ what for b in data[at : at + 1]) + data[at + 1 :]
    if kind in ("put", "over"):
        return data[:at] + what + data[at + (len(what) if kind == "over" else 0) :]
    if kind == "drop":
        return data[:at] + data[at + what :]
    return data[:at] if kind == "cut" else data[:at] + data[at : at + what] * 2 + data[at + what :]


EXACT = TAIL.replace(b'"ts":', b'"ts":171234567890123').replace(b'"dur":', b'"dur":0.00')


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [TAIL, EXACT, json.dumps(EVENTS, indent=1).encode()], ids=["compact", "Unix times", "bare"]
)
@given(changes=st.lists(mutations, min_size=1, max_size=6))
def test_any_mutation_loads_or_is_refused(seed, changes):
    data = seed
    for change in changes:
        data = mutated(data, *change)
    refused: StepscopeError | None = None
    try:
        sound(read(data))
    except StepscopeError as error:
        refused = error
    assert refused is None or (refused.message and refused.hint)
