"""Pages of the kernel's ring buffer, as `trace_pipe_raw` gives them: when each event was, and where its fields are.

Format: a page begins with a time (u64) and the bytes in use (u64, with flags); then come events. An event begins with a
word of 5 bits of type and 27 bits of time since the one before. Types 1 to 28 say the event's length in words, 0 that
the next word has it in bytes, 29 is padding, 30 a longer time, 31 a time by itself.
Source: header_page and header_event in tracefs; include/linux/ring_buffer.h and kernel/trace/ring_buffer.c of Linux.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pages", "decoded"]

Ints = NDArray[np.int64]

_WORD, _HEAD_WORDS = 4, 4
_USED = (1 << 20) - 1
_MISSED, _MISSED_STORED = 1 << 31, 1 << 30
_LONG_EVENT, _LONGEST_SHORT, _PADDING, _EXTEND, _STAMP = 0, 28, 29, 30, 31
_DELTA_BITS = 27
#: A time by itself has 59 bits; the upper ones are those of the page.
_STAMP_BITS = np.uint64((1 << 59) - 1)


@dataclass(frozen=True, slots=True)
class Pages:
    """Events in the order of their pages.

    `words` are all pages as 4-byte words; `at` is where each event's content begins in them, `ts_ns` when it was.
    `lost_before` are events before which others were overwritten, as indices (the number of all events: after the last
    one), and `n_lost` how many, where the kernel tells.
    """

    words: NDArray[np.uint32]
    at: Ints
    ts_ns: Ints
    lost_before: Ints
    n_lost: Ints

    def field(self, rows: Ints, offset: int) -> NDArray[np.int32]:
        """A field of four bytes of some events, `offset` bytes into their content."""
        return self.words[self.at[rows] + offset // _WORD].view(np.int32)

    def text(self, rows: Ints, offset: int, size: int) -> list[str]:
        """A text of some events."""
        into = self.words.view(np.uint8)
        texts = into[(self.at[rows] * _WORD + offset)[:, None] + np.arange(size)]
        return [bytes(row).split(b"\0", 1)[0].decode("utf-8", "replace") for row in texts]

    def kind(self) -> NDArray[np.uint16]:
        """The number of the kind of each event."""
        return (self.words[self.at] & 0xFFFF).astype(np.uint16)


def decoded(content: bytes, page_bytes: int) -> Pages:
    """All events of some pages of one core, in order. What follows the last whole page is left out."""
    n_pages = len(content) // page_bytes
    # Events never end beyond their page, but damaged ones may say so: there are words to look at then.
    words = np.zeros((n_pages + 1) * page_bytes // _WORD, np.uint32)
    words[: n_pages * page_bytes // _WORD] = np.frombuffer(content, np.uint32, n_pages * page_bytes // _WORD)
    heads = words.view(np.uint64)[: n_pages * page_bytes // 8].reshape(n_pages, page_bytes // 8)[:, :2]
    start = np.arange(n_pages, dtype=np.int64) * (page_bytes // _WORD) + _HEAD_WORDS
    used = (heads[:, 1] & np.uint64(_USED)).astype(np.int64)
    end = start + np.minimum(used, page_bytes - _HEAD_WORDS * _WORD) // _WORD
    page, at, ts = _walked(words, start, end, heads[:, 0])
    missed = np.flatnonzero(heads[:, 1] & np.uint64(_MISSED))
    stored = (heads[missed, 1] & np.uint64(_MISSED_STORED)) != 0
    return Pages(words, at, ts, np.searchsorted(page, missed), np.where(stored, words[end[missed]], 0))


def _walked(words: NDArray[np.uint32], start: Ints, end: Ints, begin: NDArray[np.uint64]) -> tuple[Ints, Ints, Ints]:
    """Page, place and time of each event: a walk through all pages at once, an event of each at a time."""
    pages, at, ts = np.flatnonzero(end > start), start.copy(), begin.copy()
    found: list[tuple[Ints, Ints, Ints]] = []
    while pages.size:
        here = at[pages]
        head, then = words[here], words[here + 1].astype(np.uint64)
        kind, delta = head & 31, (head >> 5).astype(np.uint64)
        is_end = (kind == _PADDING) & (delta == 0)
        wide = (then << np.uint64(_DELTA_BITS)) + delta
        now = ts[pages] + np.where(kind == _EXTEND, wide, delta)
        upper = begin[pages] & ~_STAMP_BITS
        ts[pages] = np.where(kind == _STAMP, (wide & _STAMP_BITS) | upper, now)
        n_bytes = np.minimum(then, np.uint64(_USED)).astype(np.int64)
        length = np.where(kind >= _EXTEND, 2, 1 + kind.astype(np.int64))
        length = np.where((kind == _LONG_EVENT) | (kind == _PADDING), 1 + -(-n_bytes // _WORD), length)
        is_event = (kind <= _LONGEST_SHORT) & (here + length <= end[pages])
        found.append(
            (
                pages[is_event],
                np.asarray(here + 1 + (kind == _LONG_EVENT), np.int64)[is_event],
                ts[pages[is_event]].astype(np.int64),
            )
        )
        at[pages] = np.where(is_end, end[pages], here + length)
        pages = pages[at[pages] < end[pages]]
    if not found:
        return (np.empty(0, np.int64),) * 3
    page, places, times = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.argsort(places, kind="stable")
    return page[order], places[order], times[order]
