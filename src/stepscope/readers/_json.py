"""Streamed decoding of Chrome-trace JSON: blocks of `traceEvents`, cut at element borders, one block in memory.

A candidate border `},{` is right exactly when everything before it decodes as a JSON array: a border inside a
nested list or a string leaves something open. The end of the array shows itself as "trailing characters".
Damage costs the elements it touches: what could be saved is saved and what was lost is counted.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.errors import CorruptInput, UnknownFormat
from stepscope.readers._events import AnyEvent, Event, ExactEvent
from stepscope.readers._repair import BORDER, Salvage, repaired, salvaged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.readers._notes import Notes
    from stepscope.readers._source import Source

#: Small enough that a block's objects stay in the processor's cache: 1 MiB decodes a third faster than 8 MiB.
BLOCK = 1 << 20
#: The longest single element, or metadata, that is waited for before it counts as damage.
LONGEST = 64 << 20

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"|[{}\[\]]', re.DOTALL)
_ARRAY_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_TIME = re.compile(rb'"ts"\s*:\s*("?)(\d+)(\.\d*[1-9])?')
_COMMA = ord(",")


class Document:
    """A Chrome trace being read: iterate `blocks()` once; `meta` then holds every other top-level field."""

    def __init__(self, source: Source, notes: Notes) -> None:
        self.source = source
        self.notes = notes
        self.meta: dict[str, Any] = {}
        self.kind: type[AnyEvent] = Event
        self._chunks = source.chunks()
        self._buf = bytearray()  # always begins with the bracket of an open array, once that is found
        self._offset = 0  # of the buffer in the unpacked document
        self._eof = False
        self._bare = False

    def blocks(self) -> Iterator[tuple[list[AnyEvent], bytes]]:
        """Events of one block, and the JSON array they were decoded from.

        Raises UnknownFormat (no `traceEvents` list), CorruptInput (nothing readable at all).
        """
        self._find_array()
        while len(self._buf) < BLOCK and self._more():
            pass
        self.kind = ExactEvent if _needs_exact(self._buf) else Event
        decoder: msgspec.json.Decoder[list[AnyEvent]] = msgspec.json.Decoder(list[self.kind], strict=False)  # type: ignore[name-defined]
        done = False
        while not done:
            while len(self._buf) < BLOCK and self._more():
                pass
            cuts = [] if self._eof else self._cuts()
            if not cuts and not self._eof and len(self._buf) < LONGEST and self._more():
                continue
            for cut in [len(self._buf)] if self._eof or not cuts else cuts[:3]:
                block = bytes(self._buf[:cut]) + (b"" if self._eof else b"]")
                result = _decode(decoder, block)
                if isinstance(result, int):  # the array ends here; what follows is metadata
                    self._read_tail(bytes(self._buf[result:]))
                    block, done = block[:result], True
                    result = decoder.decode(block)
                if result is not None:
                    yield result, block
                    done = done or self._eof
                    break
            else:
                cut = cuts[0] if cuts else len(self._buf)
                saved, done = self._save(cut)
                yield saved.events, saved.array()
            if not done:
                del self._buf[: cut + 1]
                self._offset += cut
                self._buf[0:0] = b"["
        self._close()

    def _more(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            self._eof = True
            return False
        self._buf += chunk
        return True

    def _find_array(self) -> None:
        """Move the buffer to the events array; what stands before it goes to `meta`."""
        while len(self._buf) < 4096 and self._more():
            pass
        if self._buf.startswith(b"\xef\xbb\xbf"):
            del self._buf[:3]
        first = self._buf.lstrip()[:1]
        if not first:
            msg = self.source.damage or "the file is empty"
            raise CorruptInput(msg, "record the trace again, or copy it again", path=self.source.label, offset=0)
        if first == b"[":
            self._bare = True
            start = self._buf.index(b"[")
        elif first == b"{":
            start = self._scan_head()
        else:
            msg = f"{self.source.label} is not JSON: it begins with {bytes(self._buf[:12])!r}"
            raise UnknownFormat(msg, "see `stepscope formats` for what can be read")
        del self._buf[:start]
        self._offset += start

    def _scan_head(self) -> int:
        """Position of the bracket that opens `traceEvents` at the top level; the fields before it go to `meta`."""
        searched, scanned, depth = 0, 0, 0
        while True:
            found = _ARRAY_KEY.search(self._buf, searched)
            if found is None:
                searched = max(searched, len(self._buf) - 256)  # the key may straddle two chunks
                if len(self._buf) < LONGEST and self._more():
                    continue
                break
            for token in _TOKEN.finditer(self._buf, scanned, found.start()):
                depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token.group(), 0)
            scanned = searched = found.start() + 1
            if depth == 1:
                self._keep_meta(bytes(self._buf[: found.start()]) + b'"_":0}')
                return found.end() - 1
        if self.source.damage:
            raise CorruptInput(
                self.source.damage, "copy or record the trace again", path=self.source.label, offset=self.source.n_bytes
            )
        msg = f"{self.source.label} is JSON but holds no traceEvents list"
        raise UnknownFormat(msg, "see `stepscope formats` for what can be read")

    def _cuts(self) -> list[int]:
        """Commas of candidate borders, last first: those near the end, or else all."""
        for start in (max(0, len(self._buf) - 2048), max(0, len(self._buf) - 65536), 0):
            found = [self._buf.index(_COMMA, m.start()) for m in BORDER.finditer(self._buf, start)]
            if found:
                return found[::-1]
        return []

    def _save(self, cut: int) -> tuple[Salvage, bool]:
        """The slow way for a block that does not decode as it stands; whether the array ended in it."""
        text = repaired(bytes(self._buf[:cut]), self.notes)
        saved = salvaged(text, self.kind)
        if saved.n_lost:
            where = f"first at about byte {self._offset + (saved.lost_at or 0):,}"
            self.notes.add("damaged_events", "error", saved.n_lost, f"elements that are not valid JSON, {where}")
        if saved.end is not None:
            self._read_tail(text[saved.end :] + bytes(self._buf[cut:]))
        elif self._eof and not self._bare:
            where = f"the file ends inside traceEvents, after {self.source.n_bytes:,} bytes"
            self.notes.add("truncated", "error", 1, where)
        return saved, saved.end is not None or self._eof

    def _read_tail(self, rest: bytes) -> None:
        """What follows the array is metadata."""
        pieces, size = [rest], len(rest)
        while size < LONGEST and (chunk := next(self._chunks, None)) is not None:
            pieces.append(chunk)
            size += len(chunk)
        text = b"".join(pieces).strip()
        if not self._bare and text != b"}":
            self._keep_meta(b'{"_":0' + text)

    def _keep_meta(self, text: bytes) -> None:
        try:
            found = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            self.notes.add("metadata_unreadable", "warning", 1, "fields beside traceEvents are not valid JSON")
            return
        if isinstance(found, dict):
            found.pop("_", None)
            self.meta.update(found)

    def _close(self) -> None:
        if self.source.damage:
            self.notes.add("damaged_packing", "error", 1, f"{self.source.damage} ({self.source.n_bytes:,} bytes read)")


def _decode(decoder: msgspec.json.Decoder[list[AnyEvent]], block: bytes) -> list[AnyEvent] | int | None:
    """The events; or the position where the array ends before the block does; or None if it does not decode."""
    try:
        return decoder.decode(block)
    except msgspec.ValidationError:
        return None
    except msgspec.DecodeError as error:
        end = _TRAILING.search(str(error))
        return int(end.group(1)) - 1 if end else None  # msgspec counts from 1
    except (RecursionError, UnicodeError, OverflowError):
        return None


def _needs_exact(text: bytes | bytearray) -> bool:
    """Whether a double would lose nanoseconds of the first time: text, or 2^43 µs and more with decimals."""
    first = _TIME.search(text, 0, BLOCK)
    return first is not None and (
        bool(first.group(1)) or (first.group(3) is not None and int(first.group(2)) >= 1 << 43)
    )
