"""A server is watched though it is away, answers anything, starts anew, or hangs: each is said once."""

from __future__ import annotations

import pytest
from expositions import served, vllm

from stepscope.core.errors import StepscopeError
from stepscope.record.metrics import MetricsUrl
from stepscope.watching.server_source import ServerSource
from stepscope.watching.streams import Stream, load_state
from stepscope.watching.watcher import Watcher

URL = MetricsUrl("127.0.0.1", 8000, "/metrics", "http://localhost:8000/metrics")


class Server:
    """Answers with a text or raises an error; a second goes by with each."""

    def __init__(self, answer):
        self.answer, self.second, self.events = answer, 0, []
        self.source = ServerSource(URL, self.events.append, self.scrape, lambda: float(self.second))

    def scrape(self, _):
        self.second += 1
        answer = self.answer(self.second)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def read(self, n, streams=None):
        """The cycles of each of `n` scrapes."""
        return [self.source.read(streams or {}) for _ in range(n)]

    def said(self):
        return [(event["event"], event.get("kind")) for event in self.events]


AWAY = StepscopeError("no answer", "is it on?")


def test_each_interval_is_a_cycle_with_its_work():
    server = Server(served)
    first, [second] = server.read(2)
    assert first[0].times_ns == (0,)
    assert (second.stream, second.times_ns, second.counts) == ("engine 0", (20_000_000,), (1,))
    assert second.work == ((4.0, 400.0, 2.0),)
    assert second.every_s == 1.0
    assert server.events[0]["text"].startswith("http://localhost:8000/metrics answers: 1 engine (engine 0)")
    assert server.source.status() == "4 requests running, 0 waiting, KV cache 10 % full"


def test_a_server_that_goes_away_is_an_alarm_once_and_its_return_is_said():
    server = Server(lambda second: AWAY if 10 < second <= 40 else served(second))
    rows = server.read(45)
    assert server.said() == [("begin", None), ("alarm", "unreachable"), ("back", None)]
    assert server.events[1]["text"] == "no answer; watching goes on (is it on?)"
    assert server.events[2]["text"] == "http://localhost:8000/metrics answers again, after 31 s"
    assert rows[20] == []
    assert [row[0].times_ns for row in rows[40:42]] == [(0,), (20_000_000,)]


def test_a_single_scrape_without_an_answer_is_not_worth_a_word():
    server = Server(lambda second: AWAY if second % 5 == 0 else served(second))
    rows = server.read(12)
    assert server.said() == [("begin", None)]
    assert rows[5][0].times_ns == (20_000_000,)


def test_a_server_that_is_not_there_yet_is_a_problem_and_no_alarm():
    server = Server(lambda second: AWAY if second < 10 else served(second))
    server.read(12)
    assert server.said() == [("problem", None), ("begin", None)]


def test_an_answer_of_another_program_is_said_once():
    server = Server(lambda _: "up 1\n")
    server.read(5)
    [event] = server.events
    assert "has no times of output tokens" in event["text"]


@pytest.mark.parametrize("start", [0, 1_700_000_000])
def test_a_server_that_starts_anew_is_a_new_epoch(start):
    server = Server(lambda second: served(second % 20, start=start + second // 20 if start else 0))
    epochs = [row[0].epoch for row in server.read(30)]
    assert epochs[18] != epochs[19]
    assert len(set(epochs)) == 2


def test_after_a_restart_of_the_watch_the_stream_goes_on():
    server = Server(served)
    [[cycles]] = server.read(1, {"engine 0": Stream(epoch=7, n=100)})
    assert (cycles.epoch, cycles.n) == (7, 101)


def test_few_tokens_count_with_those_of_the_next_scrapes():
    server = Server(lambda second: served(second, batch=1, token_s=0.2))
    times = [row[0].times_ns[0] for row in server.read(7)]
    assert times == [0, 0, 200_000_000, 0, 200_000_000, 0, 200_000_000]


def test_an_engine_that_gives_no_token_hangs_which_is_said_once():
    server = Server(lambda second: served(min(second, 20), waiting=3.0))
    server.read(100)
    assert server.said() == [("begin", None), ("alarm", "hang")]
    assert server.events[1]["text"] == "ALARM hang, engine 0: no output token for 30 s, and it has 7 requests"


def test_an_idle_engine_does_not_hang():
    server = Server(lambda _: vllm(tokens=100, waited=2))
    server.read(100)
    assert server.said() == [("begin", None)]


def test_the_cause_is_what_the_slow_scrapes_have_and_those_before_had_not():
    server = Server(lambda second: served(second, waiting=9.0 if second > 50 else 0.0))
    server.read(60)
    cause = server.source.cause({"stream": "engine 0", "kind": "slow", "ratio": 1.2})
    assert cause["text"].startswith("cause, possible: queue: The queue grows: 9 requests wait to run")
    assert cause["causes"][0]["evidence"][0]["other"] == 9.0


def test_a_watch_that_is_killed_goes_on_from_its_file(tmp_path):
    server, events = Server(served), []
    watch = Watcher(server.source, tmp_path / "state", 1e-6, events.append)
    for _ in range(100):
        watch.tick()
    watch.save()
    stream = load_state(tmp_path / "state")["engine 0"]
    assert stream.n == 100
    assert stream.model.information
    assert events == []


@pytest.mark.slow
def test_ten_times_the_load_is_no_alarm_and_ten_percent_slower_for_twenty_seconds_is():
    from lab.server_metrics import Watched

    watched = Watched(seed=3)
    assert not [kind for _ in range(1500) for kind in watched.next_second()]
    assert watched.seconds_until_told(1.1) is not None
    assert set(watched.events) == {"begin"}


@pytest.mark.parametrize("value", ["1e308", "-5", "1e-300", "9e18"])
@pytest.mark.parametrize("field", ["waited", "running", "waiting", "iterations", "start"])
def test_a_server_that_says_what_cannot_be_is_watched_on(tmp_path, field, value):
    def answer(second):
        return served(second, **{field: value}) if 5 < second <= 9 else served(second)

    server = Server(answer)
    watcher = Watcher(server.source, tmp_path / "state.json", 1e-6, server.events.append)
    for _ in range(14):
        watcher.tick()
    assert server.source.status()
    watcher.save()
    assert load_state(tmp_path / "state.json")["engine 0"].n >= 5
