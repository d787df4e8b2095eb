"""Watches the engines of a server by its metrics: how long an output token takes for the work of the time.

The server may be away, start anew, or answer anything: that is said once, and watching goes on.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from stepscope.core.errors import StepscopeError
from stepscope.core.units import count, counted, duration, percent
from stepscope.record.metrics import scrape
from stepscope.watching.alarms import SLOW_CYCLES, SLOW_MOST
from stepscope.watching.engine_causes import causes_of
from stepscope.watching.engine_metrics import LEAST_TOKENS, Interval, Reading, interval_between, read_engines
from stepscope.watching.streams import Cycles
from stepscope.watching.watcher import Wording

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stepscope.record.metrics import MetricsUrl
    from stepscope.watching.streams import Stream

#: Scrapes that must fail one after the other until a server that answered is called away.
_FAILURES = 3
#: An engine that has requests and gives no token for so long hangs.
_HANGS_S = 30.0
#: Intervals that are remembered for causes; how many are the slow ones of each kind of alarm.
_HISTORY, _DURING = 400, {"stall": 1, "slow": 10, "creep": 64}


class ServerSource:
    """The engines of a server, each a stream whose cycles are the times between scrapes."""

    every_s = 1.0
    wording = Wording(
        cycle="scrape",
        stream="engine",
        streams="engines",
        stall="output tokens took {time} each,",
        slow=f"in {SLOW_MOST} of the last {SLOW_CYCLES} scrapes output tokens took at least",
        creep="output tokens have become slower little by little,",
        per=" per output token",
        nothing="no output tokens in the last minute",
    )

    def __init__(
        self,
        url: MetricsUrl,
        say: Callable[[dict[str, Any]], None],
        scrape: Callable[[MetricsUrl], str] = scrape,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`say` receives events, `scrape` gives the text of the metrics or raises StepscopeError; `clock` is in s."""
        self._url, self._say, self._scrape, self._clock = url, say, scrape, clock
        self._last: dict[str, Reading] = {}
        self._epochs: dict[str, int] = {}
        self._intervals: dict[str, deque[Interval]] = {}
        self._token_at: dict[str, float] = {}
        self._hanging: set[str] = set()
        self._has_answered, self._is_away, self._n_failures, self._answered_at = False, False, 0, 0.0

    def is_over(self) -> bool:
        """Never: a server that is away may come back."""
        return False

    def read(self, streams: Mapping[str, Stream]) -> list[Cycles]:
        """The interval since the last scrape, of each engine; none if the server does not answer."""
        return [self._cycles(name, reading, streams.get(name)) for name, reading in self._read().items()]

    def status(self) -> str:
        """What the engines do now, in words."""
        latest = [intervals[-1] for name, intervals in self._intervals.items() if intervals]
        if not latest or self._is_away:
            return "the server does not answer" if self._is_away else ""
        caches = [one.cache_use for one in latest if one.cache_use is not None]
        running, waiting = (sum(getattr(one, name) for one in latest) for name in ("running", "waiting"))
        text = f"{counted(round(running), 'request')} running, {count(round(waiting))} waiting"
        return text + (f", KV cache {percent(max(caches))} full" if caches else "")

    def waits_for_a_core(self, alarm: dict[str, Any]) -> bool:  # noqa: ARG002  metrics do not say
        """Unknown."""
        return False

    def cause(self, alarm: dict[str, Any]) -> dict[str, Any]:
        """What the metrics say of the slow scrapes that they did not say of those before."""
        intervals = list(self._intervals.get(alarm["stream"], ()))
        n = _DURING[alarm["kind"]]
        causes = causes_of(intervals[-n:], intervals[:-n], alarm["ratio"])
        first = causes[0]
        text = f"cause, {first['certainty']}: {first['category']}: {first['statement']}"
        return {"text": text + (f" {first['advice']}" if first["advice"] else ""), "causes": causes}

    def _read(self) -> dict[str, Reading]:
        """A reading of each engine. Says once when there is none, and when there is one again."""
        try:
            readings = _engines(self._url, self._scrape(self._url), self._clock())
        except StepscopeError as error:
            self._n_failures += 1
            if not self._is_away and self._n_failures >= (_FAILURES if self._has_answered else 1):
                self._is_away = True
                kind = {"event": "alarm", "kind": "unreachable"} if self._has_answered else {"event": "problem"}
                self._say({**kind, "text": f"{error.message}; watching goes on ({error.hint})"})
            return {}
        now = self._clock()
        if not self._has_answered:
            names = f"{counted(len(readings), 'engine')} ({', '.join(list(readings)[:4])})"
            self._say({"event": "begin", "text": f"{self._url.text} answers: {names}; Ctrl+C ends the watch"})
        elif self._is_away:
            away = duration((now - self._answered_at) * 1e9)
            self._say({"event": "back", "text": f"{self._url.text} answers again, after {away}"})
        self._has_answered, self._is_away, self._n_failures, self._answered_at = True, False, 0, now
        return readings

    def _cycles(self, name: str, reading: Reading, stream: Stream | None) -> Cycles:
        before = self._last.get(name)
        if name not in self._epochs or (before is not None and not reading.is_of_same_run(before)):
            # Where an engine does not say when it was started, a start is known by its counters alone.
            known = self._epochs.get(name, stream.epoch if stream else 1)
            self._epochs[name] = int(reading.start_s) or known + (name in self._epochs)
        epoch, n = self._epochs[name], 1
        if stream is not None and stream.epoch == epoch:
            n = stream.n + 1
        interval = None if before is None else interval_between(before, reading)
        self._check_tokens(name, reading, interval)
        # Of few tokens the mean says little: they count with those of the next scrapes.
        is_short = interval is not None and 0 < interval.tokens < LEAST_TOKENS
        if before is None or not is_short:
            self._last[name] = reading
        if interval is None or is_short:
            return Cycles(name, epoch, n, (0,), (1,))
        self._intervals.setdefault(name, deque(maxlen=_HISTORY)).append(interval)
        work = (interval.batch, interval.context, interval.prompt)
        time_ns = round((interval.token_s or 0.0) * 1e9)
        return Cycles(name, epoch, n, (time_ns,), (1,), (work,), interval.span_s)

    def _check_tokens(self, name: str, reading: Reading, interval: Interval | None) -> None:
        """Say once that an engine has requests and gives no token."""
        n_requests = sum(reading.values.get(role, 0.0) for role in ("running", "waiting"))
        if interval is None or interval.tokens or not n_requests or name not in self._token_at:
            self._token_at[name] = reading.at_s
            self._hanging.discard(name)
        elif reading.at_s - self._token_at[name] >= _HANGS_S and name not in self._hanging:
            self._hanging.add(name)
            text = f"ALARM hang, {name}: no output token for {duration((reading.at_s - self._token_at[name]) * 1e9)}"
            text += f", and it has {counted(n_requests, 'request')}"
            self._say({"event": "alarm", "kind": "hang", "stream": name, "text": text})


def _engines(url: MetricsUrl, text: str, at_s: float) -> dict[str, Reading]:
    """A reading of each engine. Raises StepscopeError (there is none)."""
    readings = read_engines(text, at_s)
    if not readings:
        message = f"{url.text} has no times of output tokens, as vLLM and SGLang count them"
        raise StepscopeError(message, "name the address of such a server, with metrics on")
    return readings
