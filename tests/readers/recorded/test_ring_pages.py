from __future__ import annotations

import struct

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sched_files import PAGE, event, padding, page, stamp

from stepscope.readers.recorded.ring_pages import decoded

BASE = 23_000_000_000_000


def oracle(content: bytes, page_bytes: int) -> list[tuple[int, int, bytes]]:
    """(place in bytes, time, first eight bytes of the content), an event at a time, as the kernel's own reader goes."""
    found = []
    for begin in range(0, len(content) - page_bytes + 1, page_bytes):
        time, used = struct.unpack_from("<QQ", content, begin)
        upper = time & ~((1 << 59) - 1)
        at, end = begin + 16, begin + 16 + (used & 0xFFFFF)
        while at < end:
            (head,) = struct.unpack_from("<I", content, at)
            (then,) = struct.unpack_from("<I", content, at + 4) if at + 8 <= len(content) else (0,)
            kind, delta = head & 31, head >> 5
            if kind == 29:
                if delta == 0:
                    break
                time += delta
                at += 4 + then
            elif kind == 30:
                time += delta + (then << 27)
                at += 8
            elif kind == 31:
                time = (delta + (then << 27)) | upper
                at += 8
            else:
                time += delta
                where, length = (at + 8, 4 + then) if kind == 0 else (at + 4, 4 + 4 * kind)
                found.append((where, time, content[where : where + 8]))
                at += length
    return found


PIECES = st.one_of(
    st.tuples(st.just("event"), st.integers(0, 1 << 40), st.integers(2, 28)),
    st.tuples(st.just("long"), st.integers(0, (1 << 27) - 1), st.integers(2, 60)),
    st.tuples(st.just("padding"), st.integers(1, 1000), st.integers(2, 9)),
    st.tuples(st.just("stamp"), st.integers(0, 1 << 58), st.just(0)),
)


def made(pieces: list[tuple[str, int, int]]) -> bytes:
    data = b""
    for number, (kind, value, words) in enumerate(pieces):
        content = struct.pack("<HHi", number, 0, -number) + bytes(4 * max(words - 2, 0))
        match kind:
            case "event" | "long":
                data += event(value, content, long=kind == "long")
            case "padding":
                data += padding(4 * words, value)
            case _:
                data += stamp(value)
    return data


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.lists(PIECES, max_size=12)), max_size=5))
def test_pages_are_read_as_one_event_after_the_other_is(told):
    content = b"".join(page(begin, made(pieces)) for begin, pieces in told)
    found = decoded(content, PAGE)
    assert list(zip((found.at * 4).tolist(), found.ts_ns.tolist(), strict=True)) == [
        (place, time) for place, time, _ in oracle(content, PAGE)
    ]
    rows = np.arange(found.at.size)
    numbers = [struct.unpack("<HHi", head) for _, _, head in oracle(content, PAGE)]
    assert found.kind().tolist() == [kind for kind, _, _ in numbers]
    assert found.field(rows, 4).tolist() == [value for _, _, value in numbers]


def test_padding_without_a_time_ends_the_page():
    data = event(5, b"\1\0\0\0") + struct.pack("<I", 29) + event(5, b"\2\0\0\0")
    assert decoded(page(BASE, data), PAGE).ts_ns.tolist() == [BASE + 5]


def test_pages_of_other_sizes_are_read():
    data = b"".join(event(1, struct.pack("<HHi", 9, 0, i)) for i in range(3000))
    found = decoded(page(BASE, data, n_bytes=1 << 16), 1 << 16)
    assert found.field(np.arange(3000), 4).tolist() == list(range(3000))
    assert found.ts_ns[-1] == BASE + 3000


def test_events_that_were_lost_are_told_with_their_place():
    one, two = event(1, b"\1\0\0\0"), event(2, b"\2\0\0\0")
    content = page(BASE, one) + page(BASE, two, missed=7) + page(BASE, b"", missed=0) + page(BASE, one + two, missed=0)
    found = decoded(content, PAGE)
    assert (found.lost_before.tolist(), found.n_lost.tolist()) == ([1, 2, 2], [7, 0, 0])


def test_an_event_that_reaches_beyond_its_page_is_left_out():
    data = event(1, b"\1\0\0\0") + struct.pack("<I", 28)  # says 28 words
    assert decoded(page(BASE, data), PAGE).ts_ns.tolist() == [BASE + 1]
    data = event(1, b"\1\0\0\0") + struct.pack("<II", 0, 1 << 31)
    assert decoded(page(BASE, data) + bytes(99), PAGE).ts_ns.tolist() == [BASE + 1]


def test_texts_end_with_their_zero():
    data = event(0, b"\1\0\0\0python\0junk\0\0\0\0\0") + event(0, b"\1\0\0\0\xff234567890123456")
    assert decoded(page(0, data), PAGE).text(np.arange(2), 4, 16) == ["python", "�234567890123456"]
