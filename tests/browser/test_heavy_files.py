"""The page of a file that is valid and absurd: it answers within seconds, and runs nothing of the file."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from http.client import HTTPException
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from served import serve
from web_traces import HOSTILE, event, training, written

ADDRESSES = (
    "/",
    "/timeline",
    "/operators",
    "/kernels",
    "/memory",
    "/communication",
    "/stacks",
    "/tables/spans",
    "/compare?a=0&b=0",
)
ANSWER_S, OVERVIEW_S = 10.0, 2.0
#: A query that runs until it is stopped.
HEAVY = "/sql?q=" + quote("SELECT count(*) FROM spans a, spans b, spans c WHERE a.dur_ns < b.dur_ns + c.dur_ns")


@pytest.fixture(scope="module")
def absurd(tmp_path_factory):
    """Very many processes, very deep calls, long names that all differ, no durations, a claim of 10⁹ ranks."""
    many = [event(f"op{i % 100}", 1_000 + i, 50, pid=i + 10) for i in range(5_000)]
    deep = [event(f"f{i % 300}", 1_000 + i, 40_000 - 2 * i, tid=2) for i in range(5_000)]
    empty = [event("nothing", 2_000, 0, tid=3) for _ in range(2_000)]
    names = tuple(f"{HOSTILE[i % len(HOSTILE)]}{i}" + "x" * 500 for i in range(300))
    content = training(names, kernel="<img src=x onerror=window.hacked=1>")
    content["traceEvents"] += [*many, *deep, *empty]
    content["distributedInfo"]["world_size"] = 10**9
    with serve(written(tmp_path_factory.mktemp("absurd") / "t.json", content)) as address:
        yield address


def test_an_absurd_file_is_shown_in_time(tab, absurd):
    for address in ADDRESSES:
        began = time.monotonic()
        page = tab.open(absurd + address)
        assert page.evaluate("window.hacked") is None
        assert time.monotonic() - began < ANSWER_S, address


def asked(address, **headers):
    began = time.monotonic()
    with urlopen(Request(address, headers=headers)) as answer:
        return answer.status, time.monotonic() - began


def asked_in_vain(address):
    with suppress(OSError, HTTPException):  # the server ends before the query does
        asked(address, **{"x-stepscope-wait": "1"})


def test_the_overview_is_there_while_a_heavy_query_runs(tab, absurd):
    tab.open(absurd + "/")
    threading.Thread(target=asked_in_vain, args=(absurd + HEAVY,)).start()
    for _ in range(5):
        status, seconds = asked(absurd + "/overview")
        assert (status, seconds < OVERVIEW_S) == (200, True)
    with urlopen(absurd + "/api/progress") as answer:
        assert json.load(answer)["inputs"] == ["t"]
