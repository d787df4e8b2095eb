"""The slow way for JSON that is damaged or has unexpected types: repaired where safe, read element by element."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from stepscope.core.patterns import regex
from stepscope.readers.chrome.events import AnyEvent, coerce

if TYPE_CHECKING:
    from stepscope.readers.common.source import IssueLog

BORDER = regex(rb"\}\s*,\s*\{")
#: A false border (inside a nested list or a string) is passed by joining pieces. Both the pieces and the bytes decoded
#: without success per block are limited: a file of nothing but damage would take hours.
_MOST_JOINED = 64
_MOST_IN_VAIN = 32 << 20
_BLANKED = bytes(max(i, 32) for i in range(256))
_CONTROLS = bytes(i for i in range(32) if i not in b"\t\n\r")
_TRAILING = regex(r"trailing characters \(byte (\d+)\)")
_NOT_A_NUMBER = regex(
    rb"-?\b(?:Infinity|NaN|nan|inf)\b|\bN/A\b|-?\b\d+(?:\.\d+)?[eE]\+?0*(?:309|3[1-9]\d|[4-9]\d\d|\d{4,})\b"
)
_ODD_VALUES = (b"NaN", b"Inf", b"nan", b"inf", b"N/A")
_BIG = regex(rb"[eE]\+?\d\d\d")
_ESCAPE = regex(rb'\\(?:u(?P<code>[0-9a-fA-F]{4})(?:\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2}))?|["\\/bfnrt])|(?P<bad>\\)')
_TOKEN = regex(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],]', re.DOTALL)
#: After the bracket that closes the array come other fields, or nothing. Before a list or an object it is a stray one.
_STRAY = regex(rb"\s*,?\s*[\[{\]]")
#: After a last element that is damaged: the end of the array, and of the document or its next field.
_TAIL = regex(rb'\}(?P<array>\s*\])\s*(?:\}\s*\Z|,\s*"[^"\\]*"\s*:)')
#: What decoding raises on damaged text.
FAILS = (msgspec.DecodeError, RecursionError, UnicodeError, OverflowError)
_BLANK = b" \t\r\n,"


class Salvage(msgspec.Struct):
    """What a damaged block still held. `end` is where the array closed inside the text, if it did."""

    events: list[AnyEvent] = []
    pieces: list[bytes] = []
    end: int | None = None
    n_lost: int = 0
    n_commas: int = 0
    lost_at: int | None = None

    def keep(self, event: AnyEvent, piece: bytes) -> None:
        """Take an element, and the text that it came from."""
        self.events.append(event)
        self.pieces.append(piece)

    def lose(self, at: int) -> None:
        """Count an element given up, and remember where the first one was."""
        self.n_lost += 1
        if self.lost_at is None:
            self.lost_at = at

    def array(self) -> bytes:
        """The saved elements as a JSON array."""
        return b"[" + b",".join(self.pieces) + b"]"


def repaired(text: bytes, issues: IssueLog) -> bytes:
    """The text with control characters, invalid UTF-8, non-finite numbers and bad escapes replaced, and counted."""
    mended = text.translate(_BLANKED)
    n_control = len(text) - len(text.translate(None, _CONTROLS))
    issues.add("control_characters", "warning", n_control, "raw control characters in the JSON read as spaces")
    try:
        mended.decode("utf-8")
    except UnicodeDecodeError:
        as_text = mended.decode("utf-8", "replace")
        issues.add("invalid_utf8", "warning", as_text.count("\ufffd"), "bytes that are not UTF-8 read as \ufffd")
        mended = as_text.encode("utf-8")
    n_escapes = 0

    def escape(match: re.Match[bytes]) -> bytes:
        nonlocal n_escapes
        code = match["code"]
        if match["bad"] is None and not (code and 0xD800 <= int(code, 16) <= 0xDFFF and not _is_pair(match)):
            return match.group()
        n_escapes += 1
        return b"\\\\" if code is None else b"\\ufffd"

    if b"\\" in mended:
        mended = _ESCAPE.sub(escape, mended)
    issues.add("bad_escapes", "warning", n_escapes, "invalid escapes in strings read literally")
    mended, n_numbers = _without_odd_numbers(mended)
    issues.add("non_finite_numbers", "warning", n_numbers, "NaN, Infinity or N/A read as null")
    return mended


def _is_pair(match: re.Match[bytes]) -> bool:
    """Whether a surrogate is a high one with its low one after it."""
    return match["low"] is not None and int(match["code"], 16) <= 0xDBFF


def _without_odd_numbers(text: bytes) -> tuple[bytes, int]:
    """The text with null for invalid numbers outside of strings, and their count."""
    # The text has no control characters left, so two of them can replace the escapes that hide a quote.
    parts = text.replace(b"\\\\", b"\0").replace(b'\\"', b"\1").split(b'"')
    outside = b'"'.join(parts[::2])
    suspect = any(word in outside for word in _ODD_VALUES) or _BIG.search(outside)  # ten times as fast as the pattern
    outside, n = _NOT_A_NUMBER.subn(b"null", outside) if suspect else (outside, 0)
    if not n:
        return text, 0
    parts[::2] = outside.split(b'"')
    return b'"'.join(parts).replace(b"\1", b'\\"').replace(b"\0", b"\\\\"), n


def closes(text: bytes | bytearray, after: int) -> bool:
    """Whether a closing bracket that ends at `after` may be the one of the events array."""
    return _STRAY.match(text, after) is None


def last_border(text: bytes | bytearray) -> int | None:
    """The last comma between elements of the array that `text` begins with, found by counting brackets."""
    depth, border = 0, None
    for token in _TOKEN.finditer(text):
        sign = token.group()
        if sign == b",":
            if depth == 1:
                border = token.start()
        elif sign in b"{[":
            depth += 1
        elif sign in b"}]":
            depth -= 1
    return border


def salvaged(text: bytes, kind: type[AnyEvent]) -> Salvage:
    """Every element of the array `text` (it begins with a bracket and may end anywhere) that can be read."""
    salvage = Salvage()
    elements = _Elements(kind)
    stops = [m.start() + 1 for m in BORDER.finditer(text)]
    stops.append(len(text))
    start, i = 1, 0
    while i < len(stops):
        event, end, i = elements.next(text, start, stops, i)
        if event is not None:
            salvage.keep(event, text[start:end].strip(_BLANK))
        # What stands between the element and the border: nothing, the end of the array, or damage.
        at = stops[i] - len(text[end : stops[i]].lstrip(_BLANK))
        if text[at : at + 1] == b"]" and closes(text, at + 1):
            salvage.end = at + 1
            break
        if event is None and at < stops[i]:
            salvage.lose(at)
        again = text.find(b'{"', max(at, start + 1), stops[i])
        if event is None and (again < 0 or text[at : at + 1] == b"{"):
            if i == len(stops) - 1 and (tail := _TAIL.search(text, start)):
                salvage.end = tail.end("array")
            again = -1
        elif event is not None and again == at:
            salvage.n_commas += 1
        elif event is not None and at < stops[i]:
            salvage.lose(at)
        if again >= 0:
            start = again
        else:
            start, i = stops[i] + 1, i + 1
    return salvage


class _Elements:
    """Decodes one element after the other, and tries less when most of it fails."""

    def __init__(self, kind: type[AnyEvent]) -> None:
        self._kind = kind
        self._typed = msgspec.json.Decoder(kind, strict=False)
        self._in_vain = 0

    def next(self, text: bytes, start: int, stops: list[int], first: int) -> tuple[AnyEvent | None, int, int]:
        """The element that begins at `start`, or None; where it ends; and the index of the border reached."""
        for j in range(first, min(first + _MOST_JOINED, len(stops))):
            piece = text[start : stops[j]]
            event, end, is_truncated = self._decode(piece)
            if event is not None:
                return event, start + end, j
            self._in_vain += len(piece)
            if not is_truncated or self._in_vain > _MOST_IN_VAIN:
                break
        return None, start, first

    def _decode(self, piece: bytes) -> tuple[AnyEvent | None, int, bool]:
        """An event or None; where it ends in the piece; whether more text might make it whole."""
        body = piece.lstrip(_BLANK)
        lead, end = len(piece) - len(body), len(body)
        try:
            return self._event(body), len(piece), False
        except FAILS as error:
            if (trailing := trailing_at(error)) is None:
                return None, 0, "truncated" in str(error)
            end = trailing
        return self._event(body[:end]), lead + end, False

    def _event(self, body: bytes) -> AnyEvent | None:
        """The event of this JSON text, None if it is not an object. Raises one of FAILS."""
        try:
            return self._typed.decode(body)
        except msgspec.ValidationError:
            raw = msgspec.json.decode(body)
            return coerce(raw, self._kind) if isinstance(raw, dict) else None


def trailing_at(error: Exception) -> int | None:
    """Where something follows a complete value, by the decoder's error; None if the error is another one."""
    match = _TRAILING.search(str(error))
    return int(match.group(1)) - 1 if match else None  # msgspec counts from 1
