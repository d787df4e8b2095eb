"""What is known of each stream of cycles of a watch, in a file that a kill does not damage.

A stream is a process of a job, or an engine of a server. Its cycles are steps, or the times between two scrapes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.record.system import meta
from stepscope.watching.alarms import Alarm, StreamTest, find_alarms
from stepscope.watching.expected_time import BAD_STATE, ExpectedTime, observe

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = "stepscope.watch/1"
#: A position in a file of step times must fit into what a file can have.
_MOST_CYCLES = 1 << 56


class Cycles(NamedTuple):
    """New cycles of a stream, oldest first: ns a cycle, and how many cycles each value is the mean of.

    A time of 0 is none. `epoch` is the process, or the start of a server; of another one the level of the stream is not
    known. `n` counts values of the epoch up to and with these. The tuples are of the same length. `work` has batch,
    context and prompt tokens of each cycle as `observe` takes them; without it the past alone says what is expected.
    `every_s` is the time from a value to the next, if it is not the value.
    """

    stream: str
    epoch: int
    n: int
    times_ns: tuple[int, ...]
    counts: tuple[int, ...]
    work: tuple[tuple[float, float, float], ...] | None = None
    every_s: float | None = None


@dataclass(frozen=True)
class Stream:
    """What is known of a stream: `n` values of its `epoch` were read, which are of `n_cycles`."""

    model: ExpectedTime = field(default_factory=ExpectedTime)
    test: StreamTest = field(default_factory=StreamTest)
    epoch: int = 0
    n: int = 0
    n_cycles: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The state as values that JSON has."""
        numbers = {"epoch": self.epoch, "n": self.n, "n_cycles": self.n_cycles}
        return {"model": json.loads(self.model.to_json()), "test": self.test.to_dict(), **numbers}

    @staticmethod
    def from_dict(state: dict[str, Any]) -> Stream:
        """The state that `to_dict` made. Raises an error of `BAD_STATE` if it is another."""
        model = ExpectedTime.from_json(json.dumps(state["model"]))
        numbers = [int(state[name]) for name in ("epoch", "n", "n_cycles")]
        if not (0 <= numbers[0] < 1 << 64 and all(0 <= number < _MOST_CYCLES for number in numbers[1:])):
            raise ValueError("no stream has so many cycles")
        return Stream(model, StreamTest.from_dict(state["test"]), *numbers)


def load_state(path: Path) -> dict[str, Stream]:
    """What an earlier watch learned; empty if there was none. Raises StepscopeError (the file is damaged)."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): Stream.from_dict(one) for name, one in state[SCHEMA].items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StepscopeError(f"cannot read {path}: {error.strerror}", "name another file with --state") from None
    except BAD_STATE:
        hint = "remove it, and the watch learns anew, or name another file with --state"
        raise StepscopeError(f"{path} is no state of a watch", hint) from None


def save_state(path: Path, streams: dict[str, Stream]) -> None:
    """Replace the file as a whole: a watch that is killed leaves the old state or the new one. Raises OSError."""
    part = path.with_name(f".{path.name}{meta.PART}")
    state = {SCHEMA: {name: one.to_dict() for name, one in streams.items()}}
    try:
        part.write_text(json.dumps(state), encoding="utf-8")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def follow(
    stream: Stream, new: Cycles, rate_per_s: float, least: float = 0.0
) -> tuple[Stream, list[Alarm], np.ndarray[Any, Any]]:
    """The stream with new cycles, their alarms, and expected time with low and high end, a row a cycle.

    `rate_per_s` is the chosen number of false alarms in a second, `least` the smallest slowdown that is worth one.
    """
    if new.epoch != stream.epoch:
        stream = replace(stream, model=stream.model.new_stream(), epoch=new.epoch, n_cycles=0)
    n_cycles = stream.n_cycles + sum(new.counts)
    times = np.array(new.times_ns, dtype=float)
    is_time = times > 0
    if not is_time.any():
        return replace(stream, n=new.n, n_cycles=n_cycles), [], np.empty((0, 3))
    work = () if new.work is None else np.array(new.work)[is_time].T
    expectation, model = observe(stream.model, times[is_time], *work)
    rate = rate_of_a_cycle(model, new, rate_per_s)
    alarms, test = find_alarms(stream.test, expectation.error, expectation.log_time, rate, least)
    interval = np.stack([expectation.expected, expectation.low, expectation.high], axis=1)
    return Stream(model, test, new.epoch, new.n, n_cycles), alarms, interval


def rate_of_a_cycle(model: ExpectedTime, new: Cycles, rate_per_s: float) -> float:
    """Chosen false alarms in a cycle, from those in a second and the time from a cycle to the next."""
    every_s = new.every_s if new.every_s is not None else math.exp(float(np.median(model.recent))) / 1e9
    return rate_per_s * every_s
