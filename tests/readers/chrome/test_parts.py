"""Whatever a file holds, several processes read of it what one reads."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from unittest import mock

import pytest
import zstandard
from chrome_traces import arrow, call, kernel, label, op, x
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.core.errors import StepscopeError
from stepscope.core.machine import SHARE
from stepscope.readers.chrome import kineto, parts
from stepscope.readers.common import forked as processes
from stepscope.readers.common import source as _source
from stepscope.readers.common.source import IssueLog, Source

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="parts are read on Linux only")
PACKINGS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}


def step(i):
    """Events of all kinds: names, threads, shapes and arrows that other steps have too, and some that none has."""
    at = 100 * i
    return [
        x(f"ProfilerStep#{i}", at, 90, "user_annotation"),
        op("aten::mm", at + 1, 9, External_id=i, Input_Dims=[[i % 3, 3], []], Concrete_Inputs=["", "[1, 2]"]),
        call("cudaLaunchKernel", at + 2, 3, 91 + i, External_id=i),
        kernel(f"gemm}}, {{x{i % 5}", at + 14, 9, 91 + i, grid=[8, i, 1], block=[32, 1, 1]),
        kernel("ncclAllReduce", at + 30, 9, 5000 + i, **{"Collective name": "allreduce", "dtype": "Float"}),
        arrow("s", 91 + i, at + 2),
        x("nested", at + 50, 1, "other") | {"args": {"list": [{"a": 1}, {"b": [{}, {}]}]}},
        {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": at + 3,
         "args": {"Device Type": 1, "Device Id": 0, "Bytes": 8 * i}},
        {"ph": "i", "s": "t", "name": "mark", "pid": 1, "tid": 1, "ts": at + 3},
        {"ph": "C", "name": f"use {i % 2}", "pid": 1, "ts": at + 3, "args": {"value": i}},
        {"ph": "B", "name": "open", "pid": 1, "tid": 2, "ts": at + 3},
        {"ph": "E", "name": "open", "pid": 1, "tid": 2, "ts": at + 9},
        {"ph": "s", "id": i, "pid": 1, "tid": 1, "ts": at + 4, "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "f", "id": i, "pid": 1, "tid": 2, "ts": at + 6, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        label("thread_name", f"worker {i}", tid=i),
    ]  # fmt: skip


EVENTS = [label("process_name", "python"), *(event for i in range(40) for event in step(i))]
FACTS = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}]}
OBJECT = json.dumps({**FACTS, "traceEvents": EVENTS, "displayTimeUnit": "ms"}).encode()
LIST = json.dumps(EVENTS, indent=1).encode()


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Parts of some kB, so that a small file has several."""
    monkeypatch.delenv(SHARE, raising=False)
    monkeypatch.setattr(parts, "_LEAST_BYTES", 4_000)
    monkeypatch.setattr(kineto, "_LEAST_FOR_PARTS", 0)
    monkeypatch.setattr(parts, "_UNPACKED", 100)
    for module in (parts, _source):
        monkeypatch.setattr(module, "CHUNK", 1 << 10)


@pytest.fixture
def forked(monkeypatch):
    """The processes that are started."""
    pids, fork = [], os.fork

    def noted():
        pid = fork()
        pids.append(pid)
        return pid

    monkeypatch.setattr(os, "fork", noted)
    return pids


def is_child(pid):
    """Whether it still is a process of ours, if only one that ended unnoticed."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def on(n_cores):
    """A machine with so many cores."""
    return mock.patch.object(parts, "cores_for_threads", return_value=n_cores)


def outcome(path, *, n_processes):
    """Tables, facts and issues, or the error."""
    with on(n_processes):
        try:
            trace = kineto.read(Source(str(path)))
        except StepscopeError as error:
            return type(error), error.message, error.hint
    return {name: frame.to_dict(as_series=False) for name, frame in trace.tables.items()}, trace.meta


def in_parts(path, n_processes):
    with on(n_processes):
        return parts.decode_in_parts(Source(str(path)), IssueLog())


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("document", [OBJECT, LIST], ids=["object", "list"])
def test_parts_have_the_tables_of_the_whole(tmp_path, document, packing):
    path = tmp_path / "trace"
    path.write_bytes(PACKINGS[packing](document))
    whole = outcome(path, n_processes=1)
    assert whole[1].n_events == len(EVENTS)
    assert whole[1].size_bytes == len(document)
    assert whole[0]["issues"]["code"] == ["instants_dropped", "no_launch"]
    for n_processes in (2, 3, 4):
        # zstd's reader takes so much at once that of a small file it has all.
        assert in_parts(path, n_processes) is not None or packing == "zstd"
        assert outcome(path, n_processes=n_processes) == whole


def test_times_that_need_decimals_are_exact_in_all_parts(tmp_path):
    events = [event | {"ts": f"{1_700_000_000_000_000 + event['ts']}.125"} for event in EVENTS if "ts" in event]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert in_parts(path, 4) is not None
    assert outcome(path, n_processes=4) == outcome(path, n_processes=1)


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_read_as_by_one_process(tmp_path, data):
    document = bytearray(data.draw(st.sampled_from([OBJECT, LIST])))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(document) - 1))
        document[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    del document[data.draw(st.integers(len(document) // 2, len(document))) :]
    path = Path(tmp_path / "trace.json")
    path.write_bytes(PACKINGS[data.draw(st.sampled_from(list(PACKINGS)))](bytes(document)))
    assert outcome(path, n_processes=3) == outcome(path, n_processes=1)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_file_with_anything_to_repair_is_read_by_one_process(tmp_path, place):
    at = OBJECT.index(b'"ph"', int(place * len(OBJECT)))
    path = tmp_path / "trace.json"
    path.write_bytes(OBJECT[:at] + b'"odd": NaN, ' + OBJECT[at:])
    assert in_parts(path, 3) is None
    assert outcome(path, n_processes=3) == outcome(path, n_processes=1)


def test_an_element_longer_than_a_part_is_read_by_one_process(tmp_path):
    long = x("long", 0, 1, "other") | {"args": {"text": "a" * 20_000}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([*EVENTS[:9], long, *EVENTS[9:]]))
    assert outcome(path, n_processes=16) == outcome(path, n_processes=1)


def test_a_limit_of_size_holds_for_all_parts_together(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(OBJECT))
    with on(3), pytest.raises(StepscopeError, match="unpacks to more than"):
        kineto.read(Source(str(path), max_bytes=len(OBJECT) - 1))


def test_progress_ends_with_the_size_of_the_file(tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(OBJECT)
    shown = []
    with on(3):
        kineto.read(Source(str(path), progress=shown.append))
    assert shown == sorted(shown)
    assert shown[-1] == len(OBJECT)


def test_a_process_that_dies_costs_nothing_but_time(tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_bytes(OBJECT)
    monkeypatch.setattr(parts, "_write", lambda *_: os._exit(9))
    assert in_parts(path, 3) is None
    assert outcome(path, n_processes=3) == outcome(path, n_processes=1)


def test_a_process_that_hangs_is_given_up(tmp_path, monkeypatch, forked):
    path = tmp_path / "trace.json"
    path.write_bytes(OBJECT)
    monkeypatch.setattr(parts, "_write", lambda *_: time.sleep(60))
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.05)
    assert in_parts(path, 3) is None
    assert len(forked) == 2
    assert not any(map(is_child, forked))


def test_no_process_is_left_if_this_one_is_interrupted(tmp_path, monkeypatch, forked):
    path = tmp_path / "trace.json"
    path.write_bytes(OBJECT)
    kept = parts._sound

    def interrupted(part, *rest):
        if part.low == 0:
            raise KeyboardInterrupt
        return kept(part, *rest)

    monkeypatch.setattr(parts, "_sound", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_parts(path, 3)
    assert len(forked) == 2
    assert not any(map(is_child, forked))


def test_small_files_have_one_part(tmp_path, monkeypatch):
    monkeypatch.setattr(parts, "_LEAST_BYTES", len(OBJECT))
    path = tmp_path / "trace.json"
    path.write_bytes(OBJECT)
    assert in_parts(path, 8) is None
