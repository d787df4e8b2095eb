"""The slow way: JSON that is damaged or has unexpected types, mended where that is safe and read element by element."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.readers._events import AnyEvent, coerce

if TYPE_CHECKING:
    from stepscope.readers._notes import Notes

BORDER = re.compile(rb"\}\s*,\s*\{")
#: A false border (inside a nested list or a string) is passed by joining pieces, so far and no further.
_MOST_JOINED = 64
_CONTROL = bytes(32 if i < 32 else i for i in range(256))
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
_BAD = re.compile(
    rb'(?P<string>"(?:[^"\\]|\\.)*+")|(?P<number>-?\b(?:Infinity|NaN|nan|inf)\b|-?\b\d+(?:\.\d+)?[eE]\+?\d{3,}\b|\bN/A\b)',
    re.DOTALL,
)
_ESCAPE = re.compile(
    rb'\\(?:u(?P<code>[0-9a-fA-F]{4})(?:\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2}))?|["\\/bfnrt])|(?P<bad>\\)'
)
_FAILS = (msgspec.DecodeError, RecursionError, UnicodeError, OverflowError)


@dataclass(slots=True)
class Salvage:
    """What a damaged block still held. `end` is where the array closed inside the text, if it did."""

    events: list[AnyEvent] = field(default_factory=list)
    pieces: list[bytes] = field(default_factory=list)
    end: int | None = None
    n_lost: int = 0
    lost_at: int | None = None

    def lose(self, at: int) -> None:
        """Count an element given up, and remember where the first one was."""
        self.n_lost += 1
        if self.lost_at is None:
            self.lost_at = at

    def array(self) -> bytes:
        """The saved elements as a JSON array."""
        return b"[" + b",".join(self.pieces) + b"]"


def repaired(text: bytes, notes: Notes) -> bytes:
    """The text with control characters, invalid UTF-8, non-finite numbers and bad escapes replaced, and counted."""
    mended = text.translate(_CONTROL)
    n_control = sum(text.count(bytes([i])) for i in range(32) if i not in (9, 10, 13))
    notes.add("control_characters", "warning", n_control, "raw control characters in the JSON read as spaces")
    try:
        mended.decode("utf-8")
    except UnicodeDecodeError:
        as_text = mended.decode("utf-8", "replace")
        notes.add("invalid_utf8", "warning", as_text.count("\ufffd"), "bytes that are not UTF-8 read as \ufffd")
        mended = as_text.encode("utf-8")
    counts = {"non_finite_numbers": 0, "bad_escapes": 0}

    def escape(match: re.Match[bytes]) -> bytes:
        if match["bad"] is not None:
            counts["bad_escapes"] += 1
            return b"\\\\"
        code = match["code"]
        if code is not None and 0xD800 <= int(code, 16) <= 0xDFFF and (match["low"] is None or int(code, 16) > 0xDBFF):
            counts["bad_escapes"] += 1
            return b"\\ufffd"
        return match.group()

    def token(match: re.Match[bytes]) -> bytes:
        if match["string"] is not None:
            return _ESCAPE.sub(escape, match["string"]) if b"\\" in match["string"] else match["string"]
        counts["non_finite_numbers"] += 1
        return b"null"

    mended = _BAD.sub(token, mended)
    notes.add("non_finite_numbers", "warning", counts["non_finite_numbers"], "NaN, Infinity or N/A read as null")
    notes.add("bad_escapes", "warning", counts["bad_escapes"], "invalid escapes in strings read literally")
    return mended


def salvaged(text: bytes, kind: type[AnyEvent]) -> Salvage:
    """Every element of the array `text` (it begins with a bracket and may end anywhere) that can be read."""
    found = Salvage()
    borders = [m.start() + 1 for m in BORDER.finditer(text)]
    start, joined = 1, 0
    i = 0
    while True:
        last = i >= len(borders)
        stop = len(text) if last else borders[i]
        i += 1
        piece = text[start:stop].strip(b" ,")
        element, rest, whole = _element(piece)
        if not whole and not last and joined < _MOST_JOINED:
            joined += 1
            continue
        if joined and not whole:  # joining did not help: give up the first piece alone and try from the next border
            i -= joined
            stop, last = borders[i - 1], False
            element, rest = None, None
        joined = 0
        if isinstance(element, dict):
            event = coerce(element, kind)
            found.events.append(event)
            found.pieces.append(piece if rest is None else piece[:rest])
        elif piece not in (b"", b"]"):
            found.lose(start)
        after = b"" if rest is None else piece[rest:].lstrip(b" ,")
        if piece.startswith(b"]") or after.startswith(b"]"):
            found.end = text.index(b"]", text.index(piece, start) + (rest or 0)) + 1
            break
        if after:
            found.lose(start + (rest or 0))
        if last:
            break
        start = stop + 1
    return found


def _element(piece: bytes) -> tuple[Any, int | None, bool]:
    """Decoded value or None; where it ends if more follows; whether trying with more text is pointless."""
    try:
        return msgspec.json.decode(piece), None, True
    except msgspec.DecodeError as error:
        if trailing := _TRAILING.search(str(error)):
            end = int(trailing.group(1)) - 1  # msgspec counts from 1
            return msgspec.json.decode(piece[:end]), end, True
        return None, None, "truncated" not in str(error)
    except _FAILS:
        return None, None, True
