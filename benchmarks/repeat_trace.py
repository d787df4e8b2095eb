"""Makes a big trace out of a real one: copies of it, one after the other in time.

python repeat_trace.py TRACE OUT COPIES [--gap-us 1000] [--indent]

Each copy starts after the one before it has ended and has ids of its own, so that it is consistent in itself: nothing
in it refers to another copy. Steps go on counting. What describes the recording as a whole (metadata, the span of the
recording) is written once. Copies are written as they are made: memory is that of one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Event = dict[str, Any]

#: Arguments by which events of one recording refer to each other. Zero and less mean "none".
REFERENCES = (
    "correlation", "External id", "external id", "Record function id", "wait_on_cuda_event_record_corr_id", "Ev Idx",
    "Python id", "Python parent id", "Sequence number",
)  # fmt: skip
#: Phases of flow and asynchronous events: their "id" joins a start to its end.
PAIRED = frozenset("stfbne")
STEP = re.compile(r"(ProfilerStep#)(\d+)")
ABOUT_THE_RECORDING = ("Iteration Start:", "Record Window End")
EVENTS_A_WRITE = 5000


@dataclass(frozen=True, slots=True)
class Place:
    """A value that differs from copy to copy: `holder[key]` is `first + copy * distance`, put through `write`."""

    holder: Event
    key: str
    first: float
    distance: int
    write: Callable[[Any], Any]

    def set(self, copy: int) -> None:
        """Put in the value of that copy."""
        self.holder[self.key] = self.write(self.first + copy * self.distance)


@dataclass(frozen=True, slots=True)
class Recording:
    """A trace taken apart: `head` without its events, those written `once`, those written in `each` copy."""

    head: Event
    once: list[Event] = field(default_factory=list)
    each: list[Event] = field(default_factory=list)


def read(path: Path) -> Recording:
    """Decode a trace, packed or not, and part what is written once from what is repeated."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
    document = json.loads(text, strict=False)  # some profilers leave control characters in strings
    if isinstance(document, list):
        document = {"traceEvents": document}
    recording = Recording({key: value for key, value in document.items() if key != "traceEvents"})
    for event in document["traceEvents"]:
        (recording.once if is_about_the_recording(event) else recording.each).append(event)
    return recording


def is_about_the_recording(event: Event) -> bool:
    """Whether an event describes the recording rather than something that happened in it."""
    if event.get("ph") == "M" or "ts" not in event or event.get("cat") == "Trace":
        return True
    return str(event.get("name")).startswith(ABOUT_THE_RECORDING)


def whole(value: object) -> int | None:
    """The value as a number if it is a whole one, or a string of digits as some profilers write."""
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def references(events: Sequence[Event]) -> Iterator[tuple[Event, str, int]]:
    """Every id by which events refer to each other: where it stands, and its value."""
    for event in events:
        holders: list[tuple[Event, tuple[str, ...]]] = [(event.get("args") or {}, REFERENCES)]
        if event.get("ph") in PAIRED:
            holders.append((event, ("id",)))
        for holder, keys in holders:
            for key in keys:
                number = whole(holder.get(key))
                if number is not None and number > 0:
                    yield holder, key, number


def places(events: Sequence[Event], gap_us: float) -> tuple[list[Place], int]:
    """Every value that differs from copy to copy, and how far apart copies are (µs)."""
    lows = [float(event["ts"]) for event in events]
    highs = [low + float(event.get("dur") or 0) for low, event in zip(lows, events, strict=True)]
    shift_us = int(max(highs) - min(lows) + gap_us) + 1
    found = [Place(e, "ts", *time(e["ts"], shift_us)) for e in events]

    # One distance for all kinds of id, since kernels, calls and flows refer to each other by the same numbers.
    ids = list(references(events))
    distance = max((number for _, _, number in ids), default=0) + 1
    found += [Place(h, k, number, distance, str if isinstance(h[k], str) else int) for h, k, number in ids]

    matches = [(event, STEP.fullmatch(str(event.get("name")))) for event in events]
    steps = [(event, match[1], int(match[2])) for event, match in matches if match]
    numbers = {number for _, _, number in steps}
    n_steps = max(numbers) - min(numbers) + 1 if numbers else 0
    found += [Place(event, "name", n, n_steps, f"{prefix}{{}}".format) for event, prefix, n in steps]
    return found, shift_us


def time(value: float | str, shift_us: int) -> tuple[float, int, Callable[[Any], Any]]:
    """The moving parts of a time stamp: whole microseconds stay whole, others keep their nanoseconds."""
    return (value, shift_us, int) if isinstance(value, int) else (float(value), shift_us, lambda us: round(us, 3))


def copies_of(recording: Recording, copies: int, gap_us: float) -> Iterator[Event]:
    """Every event of the big trace. An event is valid until the next copy begins."""
    moving, shift_us = places(recording.each, gap_us)
    for event in recording.once:
        if event.get("cat") == "Trace" and "dur" in event:  # the span of the recording covers all copies
            event["dur"] += shift_us * (copies - 1)
        yield event
    for copy in range(copies):
        for place in moving:
            place.set(copy)
        yield from recording.each


def repeat(source: Path, target: Path, copies: int, *, gap_us: float = 1000, indent: bool = False) -> int:
    """Write the big trace and return how many events it has."""
    recording = read(source)
    encode = msgspec.json.Encoder().encode
    as_text = (lambda event: msgspec.json.format(encode(event), indent=2)) if indent else encode
    head = encode(recording.head)[:-1]
    n_events = 0
    with target.open("wb") as out:
        out.write(head + (b"," if recording.head else b"") + b'"traceEvents":[\n')
        # Encoded as they come, since the next copy changes the events in place.
        texts = map(as_text, copies_of(recording, copies, gap_us))
        while batch := list(islice(texts, EVENTS_A_WRITE)):
            out.write((b",\n" if n_events else b"") + b",\n".join(batch))
            n_events += len(batch)
        out.write(b"\n]}\n")
    return n_events


def main() -> int:
    """Run the command; on stdout a line of JSON says what was written."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("copies", type=int)
    parser.add_argument(
        "--gap-us", type=float, default=1000, help="between the end of a copy and the start of the next"
    )
    parser.add_argument("--indent", action="store_true", help="a line for each field, as some profilers write")
    given = parser.parse_args()
    n_events = repeat(given.trace, given.out, given.copies, gap_us=given.gap_us, indent=given.indent)
    print(json.dumps({"n_events": n_events, "n_bytes": given.out.stat().st_size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
