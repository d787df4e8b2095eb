"""Streamed decoding of Chrome-trace JSON: blocks of `traceEvents`, cut at element borders, one block in memory.

A candidate border `},{` is right exactly when everything before it decodes as a JSON array: a border inside a
nested list or a string leaves something open. The decoder reports the end of the array as "trailing characters".
Damage costs only the elements that it touches; lost elements are counted.
"""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.core.patterns import regex
from stepscope.readers.chrome.events import Event, ExactEvent
from stepscope.readers.chrome.salvage import BORDER, FAILS, closes, last_border, repaired, salvaged, trailing_at
from stepscope.readers.chrome.scanner import BLOCK as SCANNED
from stepscope.readers.chrome.scanner import NotPlainError, Scanner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepscope.readers.chrome.events import AnyEvent
    from stepscope.readers.chrome.scanner import Batch
    from stepscope.readers.common.source import IssueLog

    #: Events; the JSON array that they were decoded from; where the array ended, if it did.
    Decoded = tuple[list[AnyEvent], bytes, int | None]

#: Small enough that a block's objects stay in the processor's cache: 256 KiB takes a fifth less time than 1 MiB.
BLOCK = 1 << 18
#: The longest single element, or metadata, that is waited for before it counts as damage.
LONGEST = 64 << 20

#: How much of an element with false borders is waited for before it counts as damage.
_MOST_AWAITED = 4 << 20

#: How many bytes show which kind of times the file has.
PROBE = 1 << 16

_BOM = b"\xef\xbb\xbf"
_TOKEN = regex(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]"]', re.DOTALL)
_KEY = b'"traceEvents"'
_ARRAY = regex(rb"\s*:\s*\[")
_UNFINISHED = regex(rb"\s*:?\s*\Z")
_FIRST_KEY = regex(rb'\[\s*\{\s*("[^"\\]*")')
_TIME = regex(rb'"ts"\s*:\s*("?)-?(\d{1,20})(\.\d{0,20}[1-9])?')
_MOST_FIELDS_DROPPED = 8
_COMMA = ord(",")
_DECODERS: dict[type[AnyEvent], msgspec.json.Decoder[Any]] = {
    Event: msgspec.json.Decoder(list[Event], strict=False),
    ExactEvent: msgspec.json.Decoder(list[ExactEvent], strict=False),
}
_NEAR = 1 << 16
_DURATION = regex(rb'"dur"\s*:\s*-?[0-9]+(\.)?')
#: The compiled decoder is not asked any more once it left this many events; each of so many that it took counts back.
_FEW = 20


class Text(Protocol):
    """A document as chunks of bytes: a whole file, or a part of it with brackets around."""

    @property
    def label(self) -> str:
        """What messages call it."""

    @property
    def n_bytes(self) -> int:
        """Bytes so far."""

    @property
    def damage(self) -> str | None:
        """What was lost of it."""

    def chunks(self) -> Iterator[bytes]:
        """Its bytes. Raises StepscopeError."""


class Document:
    """A Chrome trace being read: iterate `blocks()` once; `meta` then holds every other top-level field.

    `kind` is what its times need; without it the first ones say so. With `scans` the compiled decoder takes what it
    can, and blocks are its batches; what that makes of anything but sound files is of no use.
    """

    def __init__(
        self, source: Text, issues: IssueLog, kind: type[AnyEvent] | None = None, *, scans: bool = False
    ) -> None:
        self.source = source
        self.issues = issues
        self.meta: dict[str, Any] = {}
        self.kind: type[AnyEvent] = kind or Event
        self._is_kind_known = kind is not None
        self.has_decimals: bool | None = None  # the first duration; None without durations
        self.scanner: Scanner | None = None
        self._scans = scans
        self._n_left = 0  # times that the compiled decoder left an event to the other
        self.n_lost = 0  # elements
        self.lost_at: int | None = None
        self._chunks = source.chunks()
        self._buf = bytearray()  # always begins with the bracket of an open array, once that is found
        self._offset = 0  # of the buffer in the unpacked document
        self._searched = 0  # of the buffer: no border begins before
        self._is_open = False  # the last piece that did not decode may just be too short
        self._eof = False
        self.bare = False
        self._decoder = _DECODERS[Event]

    def blocks(self) -> Iterator[tuple[list[AnyEvent], bytes] | Batch]:
        """Events of one block, and the JSON array they were decoded from; or a batch.

        Raises UnknownFormat (no `traceEvents` list), CorruptInput (nothing readable at all), and with `scans`
        NotPlainError (it has to be read without).
        """
        self._find_array()
        self._fill(max(BLOCK, PROBE))
        if not self._is_kind_known:
            self.kind = ExactEvent if needs_exact(self._buf) else Event
        self._decoder = _DECODERS[self.kind]
        if self._scans:
            self.scanner = Scanner(exact=self.kind is ExactEvent)
        done = False
        while not done:
            batch = self._batch()
            if batch is None:
                events, block, end, border = self._block()
                self._note_decimals(block)
                done = self._eof or end is not None
                yield events, block
            else:
                border, done = batch.border, batch.is_end
                if done:
                    self._read_tail(bytes(self._buf[border + 1 :]))
                yield batch
            if not done:
                self._go_on_after(border)
        self._close()

    def _block(self) -> tuple[list[AnyEvent], bytes, int | None, int]:
        """The next block: as `Decoded`, and the comma up to which it goes. Raises NotPlainError."""
        while True:
            self._fill(BLOCK)
            borders = [] if self._eof else self._candidates()
            if not borders and not self._eof and len(self._buf) < LONGEST:
                self._more()
                continue
            for border in self._ends(borders):
                decoded = self._decode(bytes(self._buf[:border]) + (b"" if self._eof else b"]"))
                if decoded is not None:
                    if decoded[2] is not None:
                        self._read_tail(bytes(self._buf[decoded[2] :]))
                    elif self._eof and not self.bare:
                        self._note_truncated("before its closing brace")
                    return (*decoded, border)
            most = min(LONGEST, _MOST_AWAITED)
            if not self._is_open or self._eof or len(self._buf) >= most:
                if self._scans:  # damage next to the border of a batch might not show
                    raise NotPlainError
                border = self._likely(borders)
                return (*self._save(border), border)
            self._fill(min(2 * len(self._buf), most))  # every candidate was inside of an element that goes on

    def _batch(self) -> Batch | None:
        """What the compiled decoder takes next; None if nothing, and then the buffer is one of the other's blocks."""
        if self.scanner is None:
            return None
        self._fill(min(SCANNED, LONGEST))
        batch = self.scanner.scan(self._buf, 1)
        if batch.n or batch.n_rest or batch.is_end:
            self._n_left -= batch.n // _FEW
            self._note_decimals(self._buf, batch.border)
            return batch
        self._n_left = max(self._n_left, 0) + 1
        if self._n_left > _FEW:  # of such events there are many
            self.scanner = None
        if len(self._buf) > BLOCK:
            self._chunks = chain([bytes(self._buf[BLOCK:])], self._chunks)
            del self._buf[BLOCK:]
            self._eof = False
        return None

    def _go_on_after(self, border: int) -> None:
        """Go on after the comma at `border`."""
        del self._buf[: border + 1]
        self._offset += border
        self._buf[0:0] = b"["
        self._searched = 0

    def _note_decimals(self, text: bytes | bytearray, end: int = LONGEST) -> None:
        if self.has_decimals is None and (duration := _DURATION.search(text, 0, end)):
            self.has_decimals = bool(duration[1])

    def _fill(self, size: int) -> None:
        while len(self._buf) < size and self._more():
            pass

    def _more(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            self._eof = True
            return False
        # A decompression bomb may be gigabytes of blanks.
        self._buf += b" " if chunk.isspace() else chunk
        return True

    def _find_array(self) -> None:
        """Move the buffer to the events array; the fields before it go to `meta`."""
        self._fill(4096)
        if self._buf.startswith(_BOM):
            del self._buf[: len(_BOM)]
        while not (first := self._buf.lstrip()[:1]) and not self._eof:
            self._offset += len(self._buf)
            self._buf.clear()
            self._more()
        if not first:
            msg = self.source.damage or ("nothing but blanks" if self.source.n_bytes else "the file is empty")
            raise CorruptInput(msg, "record the trace again, or copy it again", path=self.source.label, offset=0)
        if first == b"[":
            self.bare = True
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
        scanned, depth = 0, 0
        while True:
            for token in _TOKEN.finditer(self._buf, scanned):
                sign = token.group()
                if sign == b'"' or (sign == _KEY and _UNFINISHED.match(self._buf, token.end())):
                    break  # a string that is not whole yet, or the key without what follows it
                scanned = token.end()
                if sign in b"{[":
                    depth += 1
                elif sign in b"}]":
                    depth -= 1
                elif sign == _KEY and depth == 1 and (bracket := _ARRAY.match(self._buf, scanned)):
                    self._keep_meta(bytes(self._buf[: token.start()]) + b'"_":0}')
                    return bracket.end() - 1
            else:
                scanned = len(self._buf)
            if len(self._buf) >= LONGEST or self._eof:
                break
            self._fill(2 * len(self._buf))  # twice as much: what is scanned again stays in proportion
        if self.source.damage or (self._eof and (depth or scanned < len(self._buf))):
            msg = self.source.damage or "the file ends before its traceEvents"
            raise CorruptInput(
                msg, "copy or record the trace again", path=self.source.label, offset=self.source.n_bytes
            )
        msg = f"{self.source.label} is JSON but holds no traceEvents list"
        raise UnknownFormat(msg, "see `stepscope formats` for what can be read")

    def _candidates(self) -> list[int]:
        """Commas of candidate borders, last first: those near the end, or else all."""
        for near in (2048, _NEAR, len(self._buf)):
            start = max(self._searched, len(self._buf) - near)
            borders = [self._buf.index(_COMMA, m.start()) for m in BORDER.finditer(self._buf, start)]
            if borders:
                return borders[::-1]
        self._searched = max(0, len(self._buf) - _NEAR)  # a border may begin here and end in the next chunk
        return []

    def _ends(self, borders: list[int]) -> Iterator[int]:
        """Where to end the block: at one of the last candidates, or else where counting brackets finds a border."""
        if self._eof or not borders:
            yield len(self._buf)
            return
        yield from borders[:3]
        # All are inside of something that is still open: a nested list, a string. Damage would show otherwise.
        border = last_border(self._buf) if self._is_open else None
        if border is not None and border not in borders[:3]:
            yield border

    def _likely(self, borders: list[int]) -> int:
        """Where to end a damaged block: before an element that begins with the key with which the first one begins."""
        key = _FIRST_KEY.match(self._buf)
        like = re.compile(rb",\s*\{\s*" + re.escape(key.group(1))) if key else None
        good = (border for border in borders if like is None or like.match(self._buf, border))
        return next(good, borders[0] if borders else len(self._buf))

    def _decode(self, block: bytes) -> Decoded | None:
        """Events, the array that holds them, and where it ended if before the block did. None: it does not decode."""
        self._is_open = False
        try:
            return self._decoder.decode(block), block, None
        except msgspec.ValidationError:
            return None
        except FAILS as error:
            end = trailing_at(error)
            self._is_open = "truncated" in str(error)
        if end is None or not closes(block, end):
            return None
        return self._decoder.decode(block[:end]), block[:end], end

    def _save(self, border: int) -> Decoded:
        """The slow way, for a block that does not decode as a whole."""
        if border >= LONGEST:
            self._lose(1, 0, f"elements longer than {LONGEST:,} bytes")
            return [], b"[]", None
        text = repaired(bytes(self._buf[:border]), self.issues)
        decoded = self._decode(text + (b"" if self._eof else b"]"))
        if decoded is None:
            saved = salvaged(text, self.kind)
            decoded = saved.events, saved.array(), saved.end
            self._lose(saved.n_lost, saved.lost_at, "elements that are not valid JSON")
            self.issues.add("odd_commas", "warning", saved.n_commas, "elements with no comma between them, or several")
            is_truncated = saved.n_lost > 0 or not self.bare
        else:
            is_truncated = not self.bare
        if decoded[2] is not None:
            self._read_tail(text[decoded[2] :] + bytes(self._buf[border:]))
        elif self._eof and is_truncated:
            self._note_truncated("inside traceEvents")
        return decoded

    def _lose(self, n: int, at: int | None, what: str) -> None:
        if n:
            self.n_lost += n
            self.lost_at = self._offset + (at or 0) if self.lost_at is None else self.lost_at
            self.issues.add("damaged_events", "error", n, f"{what}, first at about byte {self.lost_at:,}")

    def _note_truncated(self, where: str) -> None:
        example = f"the file ends {where}, after {self.source.n_bytes:,} bytes"
        self.issues.add("truncated", "error", 1, example)

    def _read_tail(self, rest: bytes) -> None:
        """What follows the array is metadata."""
        pieces, size = [rest], len(rest)
        while size < LONGEST and (chunk := next(self._chunks, None)) is not None:
            pieces.append(chunk)
            size += len(chunk)
        text = b"".join(pieces).strip()
        if self.bare or text == b"}":
            return
        if text.endswith(b"}"):
            self._keep_meta(b'{"_":0' + text)
            return
        self._note_truncated("after traceEvents")
        for _ in range(_MOST_FIELDS_DROPPED):  # keep the fields that are whole
            if self._keep_meta(b'{"_":0' + text + b"}", quiet=True):
                return
            text = text[: max(text.rfind(b","), 0)]

    def _keep_meta(self, text: bytes, *, quiet: bool = False) -> bool:
        """Whether the text is a JSON object, whose fields are then in `meta`."""
        if b"\\u" in text:
            text = repaired(text, self.issues)
        try:
            fields = json.loads(text.decode("utf-8", "replace"), strict=False)
        except (ValueError, RecursionError):
            if not quiet:
                self.issues.add("metadata_unreadable", "warning", 1, "fields other than traceEvents are not valid JSON")
            return False
        fields.pop("_", None)
        self.meta.update(fields)
        return True

    def _close(self) -> None:
        if self.source.damage:
            self.issues.add("damaged_packing", "error", 1, f"{self.source.damage} ({self.source.n_bytes:,} bytes read)")


def needs_exact(text: bytes | bytearray) -> bool:
    """Whether a double would lose nanoseconds of one of the first times: text, or 2^43 µs and more with decimals."""
    return any(t.group(1) or (t.group(3) and int(t.group(2)) >= 1 << 43) for t in _TIME.finditer(text, 0, PROBE))
