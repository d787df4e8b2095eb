from __future__ import annotations

import msgspec
import pytest

from stepscope.comparison import observe
from stepscope.comparison.history.digest import digest_from, digest_of, encode, head_from
from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.readers import open_trace


@pytest.fixture(scope="module")
def processes(examples):
    return observe(open_trace(str(examples / "demo-cpu-decode" / "rank0.pt.trace.json.gz")))


@pytest.fixture(scope="module")
def digest(processes):
    return digest_of(processes, paths=["rank0.json"], added_unix_ns=5, label="mine", commit="abc")


def test_its_step_is_that_of_a_comparison(processes, digest) -> None:
    cycles = processes[0].complete_cycles["dur_ns"]
    assert digest.head.step_ns == pytest.approx(cycles.mean())
    assert digest.head.n_cycles == cycles.len()
    assert sum(digest.parts.values()) == pytest.approx(cycles.mean())


def test_functions_have_their_own_time_per_cycle_and_the_largest_come_first(processes, digest) -> None:
    times = [row.self_ns for row in digest.functions]
    assert times == sorted(times, reverse=True)
    first = digest.functions[0]
    cycles = processes[0].complete_cycles["cycle"]
    rows = processes[0].functions.filter(cycle=None) if not cycles.len() else processes[0].functions
    mine = [
        row["self_ns"] or 0
        for row in rows.iter_rows(named=True)
        if row["name"] == first.name and (row["device"] or "host") == first.device and row["cycle"] in cycles
    ]
    assert first.self_ns == pytest.approx(sum(mine) / cycles.len())


def test_a_digest_is_small_and_comes_back_as_it_was(digest) -> None:
    data = encode(digest)
    assert len(data) < 200_000
    assert digest_from(data, "f", digest.head.key) == digest
    assert head_from(encode(digest.head), "f", digest.head.key) == digest.head


def test_the_same_recording_has_the_same_key_wherever_and_whenever_it_is_added(processes, digest) -> None:
    again = digest_of(processes, paths=["elsewhere.json"], added_unix_ns=9, label="other", commit="abc")
    assert again.head.key == digest.head.key


@pytest.mark.parametrize(
    "change", [{"step_ns": 0.0}, {"step_ns": -1.0}, {"schema": "x"}, {"recorded_unix_ns": 2**63}, {"key": "0" * 24}]
)
def test_a_head_that_cannot_be_is_refused(digest, change) -> None:
    data = encode(msgspec.structs.replace(digest.head, **change))
    with pytest.raises(CorruptInput, match="f: ") as caught:
        head_from(data, "f", digest.head.key)
    assert caught.value.hint


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"\xff", b'{"key": 1}', b" " * (1 << 21)])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptInput):
        digest_from(data, "f", "k")


def test_a_run_without_a_complete_step_has_no_digest(processes) -> None:
    with pytest.raises(StepscopeError, match="no complete step"):
        digest_of([], paths=[], added_unix_ns=0)
    assert processes
