"""What a watch knows now, as the measures that Prometheus and OpenTelemetry collect.

Names follow OpenTelemetry. Prometheus' are derived from them as an OpenTelemetry collector derives them, so that a
dashboard works with both.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from stepscope.watching.alarms import limits
from stepscope.watching.streams import rate_of_a_cycle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepscope.watching.streams import Cycles, Stream

Values = tuple[tuple[tuple[tuple[str, str], ...], float], ...]
_UNITS = {"s": "_seconds", "1": "_ratio"}


@dataclass(frozen=True)
class StreamNow:
    """The state of one stream of steps. Times in ns are null where nothing is expected yet.

    `step_ns` is the median of the steps that were read last, `slowness` the median of measured by expected time of
    the last steps, and `limits` the ratio at which each kind of alarm is raised.
    """

    name: str
    n_steps: int
    last_unix_s: float
    step_ns: float
    expected_ns: float | None
    low_ns: float | None
    high_ns: float | None
    slowness: float | None
    limits: Mapping[str, float]


def now_of(stream: Stream, new: Cycles, interval: np.ndarray[Any, Any], rate_per_s: float) -> StreamNow | None:
    """The state of a stream after new cycles, with what `follow` says of them. None if none of them has a time."""
    times = [time_ns for time_ns in new.times_ns if time_ns > 0]
    if not times:
        return None
    expected, low, high = (None if math.isnan(value) else float(value) for value in interval[-1])
    errors = stream.test.errors
    return StreamNow(
        name=new.stream,
        n_steps=stream.n_cycles,
        last_unix_s=time.time(),
        step_ns=float(np.median(times)),
        expected_ns=expected,
        low_ns=low,
        high_ns=high,
        slowness=math.exp(float(np.median(errors))) if errors else None,
        limits=limits(stream.test, rate_of_a_cycle(stream.model, new, rate_per_s)),
    )


@dataclass(frozen=True)
class Measure:
    """One measure with a value for each set of labels. `unit` is `s`, `1` (a ratio) or, of a count, `{step}`."""

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    text: str
    values: Values

    @property
    def prometheus_name(self) -> str:
        """The name with its unit, and `_total` for a counter."""
        return self.name.replace(".", "_") + ("_total" if self.kind == "counter" else _UNITS[self.unit])


@dataclass
class Board:
    """The newest state of all streams, and counts of alarms and causes since the watch began.

    One thread writes and others read: each write replaces a value as a whole.
    """

    streams: tuple[StreamNow, ...] = ()
    _alarms: Counter[tuple[str, str]] = field(default_factory=Counter)
    _causes: Counter[str] = field(default_factory=Counter)

    def show(self, streams: tuple[StreamNow, ...]) -> None:
        """Replace the state of all streams."""
        self.streams = streams

    def take(self, event: Mapping[str, Any]) -> None:
        """Count an event of the watch. A cause that is not known counts as `unknown`."""
        if event["event"] == "alarm":
            self._alarms = self._alarms + Counter([(str(event["kind"]), str(event.get("stream", "")))])
        elif event["event"] == "cause":
            names = [str(one["category"]) for one in event["causes"][:1]] or ["unknown"]
            self._causes = self._causes + Counter(names)

    def measures(self) -> list[Measure]:
        """All measures, also those without a value so far."""
        streams = self.streams
        alarms = tuple(((("kind", kind), ("stream", name)), float(n)) for (kind, name), n in self._alarms.items())
        limits = tuple(
            ((("kind", kind), ("stream", one.name)), limit)
            for one in streams
            for kind, limit in one.limits.items()
            if math.isfinite(limit)
        )
        return [
            Measure("stepscope.steps", "counter", "{step}", "Steps so far.", _of(streams, "n_steps")),
            Measure("stepscope.step.time", "gauge", "s", "Median of the newest steps.", _of(streams, "step_ns", 1e-9)),
            Measure("stepscope.step.expected", "gauge", "s", "Expected time.", _of(streams, "expected_ns", 1e-9)),
            Measure("stepscope.step.low", "gauge", "s", "99 % of steps take longer.", _of(streams, "low_ns", 1e-9)),
            Measure("stepscope.step.high", "gauge", "s", "99 % take less.", _of(streams, "high_ns", 1e-9)),
            Measure("stepscope.step.slowness", "gauge", "1", "Measured by expected time.", _of(streams, "slowness")),
            Measure("stepscope.step.last", "gauge", "s", "When steps were last read.", _of(streams, "last_unix_s")),
            Measure("stepscope.alarm.limit", "gauge", "1", "Ratio at which an alarm is raised.", limits),
            Measure("stepscope.alarms", "counter", "{alarm}", "Alarms since the watch began.", alarms),
            Measure(
                "stepscope.causes",
                "counter",
                "{alarm}",
                "Alarms whose cause was looked for, by its category.",
                tuple(((("category", name),), float(n)) for name, n in self._causes.items()),
            ),
        ]


def _of(streams: tuple[StreamNow, ...], name: str, scale: float = 1.0) -> Values:
    known = ((one.name, getattr(one, name)) for one in streams)
    return tuple(((("stream", stream),), value * scale) for stream, value in known if value is not None)


def exposition(measures: list[Measure]) -> str:
    r"""The measures as Prometheus text.

    >>> print(exposition([Measure("a.b", "counter", "{b}", "How many.", (((("kind", "x"),), 2.0),))]), end="")
    # HELP a_b_total How many.
    # TYPE a_b_total counter
    a_b_total{kind="x"} 2.0
    """
    return "".join(line + "\n" for measure in measures for line in _lines(measure))


def _lines(measure: Measure) -> Iterator[str]:
    name = measure.prometheus_name
    yield f"# HELP {name} {measure.text}"
    yield f"# TYPE {name} {measure.kind}"
    for labels, value in measure.values:
        inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
        yield f"{name}{{{inner}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
