"""How fast the page is on a big trace: first page cold and from the cache, answers to pan and zoom, the browser's heap.

python page_speed.py [TRACE] [--moves N] [--no-chromium]     by default one of examples/ repeated: 450 MB, 1.76 M events

TRACE may be a folder with the ranks of a job, such as `lab/make_ranks.py FOLDER --tp 8 --dp 1 --filler 6400` writes:
eight of 56 MB each when unpacked.

The server is a process of its own, started as a user starts it, with a cache of its own, empty at first. Cold is from
its start to the whole first page; the file's blocks may be in the system's cache. "From the cache" is the same for
servers that are started after it, the median of five. Moves are windows of random place and length, asked for as the
page asks: all tracks, both sides of the window, twice the canvas' pixels. The heap is what lives after a garbage
collection. A frame is what the timeline's script takes to draw one, while keys zoom and move it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np
from inputs import MB, Input, cache_folder, from_examples, make
from page import grid

if TYPE_CHECKING:
    from playwright.sync_api import Page

TARGETS = {
    "first page, cold": "≤ 4 s",
    "first page, from the cache": "≤ 0.8 s",
    "pan and zoom, p95": "≤ 16 ms",
    "a frame drawn, p95": "≤ 16 ms",
    "browser's heap": "≤ 250 MB",
}
CANVAS_PX = 860
COPIES = 65


def big_trace() -> Path:
    """A recording of ours, repeated."""
    source = from_examples()[0].source
    rank = min(source.glob("*.gz")) if source.is_dir() else source
    return make(Input(f"page-x{COPIES}", rank, COPIES), cache_folder()).path


class Server:
    """`stepscope serve` of one trace, and a connection to it."""

    def __init__(self, trace: Path, cache: Path) -> None:
        command = [sys.executable, "-m", "stepscope", "serve", str(trace), "--no-browser"]
        self.started = time.perf_counter()
        environment = {**os.environ, "STEPSCOPE_CACHE_DIR": str(cache)}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert self.process.stderr is not None
        match = re.search(r"http://\S+", self.process.stderr.readline())
        assert match, "the server did not start"
        self.address = match.group()
        self.connection = http.client.HTTPConnection(urlsplit(self.address).netloc, timeout=120)

    def get(self, path: str) -> bytes:
        """The body of a page that is there; waits until it is."""
        while True:
            self.connection.request("GET", path, headers={"x-stepscope-wait": "1"})
            answer = self.connection.getresponse()
            body = answer.read()
            if answer.status == 200:
                return body
            assert answer.status in (202, 503), body[:300]

    def cpu_s(self) -> float | None:
        """User and system time that it and its processes that have ended took so far, where the system tells.

        On cores that others use too the wall time says little.
        """
        stat = Path(f"/proc/{self.process.pid}/stat")
        if not stat.exists():
            return None
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End it."""
        self.connection.close()
        self.process.terminate()
        self.process.wait()


def moves(server: Server, n: int) -> list[float]:
    """Seconds that each of n windows took, from the whole recording to a few microseconds."""
    layout = json.loads(server.get("/api/trace/0/layout"))
    tracks = ",".join(str(track["id"]) for group in layout["groups"] for track in group["tracks"])
    first, last = layout["first_ns"], layout["last_ns"]
    dice, taken = random.Random(1), []
    for _ in range(n):
        length = max((last - first) / 10 ** dice.uniform(0, 6), 2_000)
        low = first + dice.uniform(0, 1) * (last - first - length)
        window = f"from={int(low - length / 2)}&to={int(low + 1.5 * length)}&px={2 * CANVAS_PX}"
        path = f"/api/trace/0/window?{window}&tracks={tracks}"
        begin = time.perf_counter()
        server.get(path)
        taken.append(time.perf_counter() - begin)
    return taken


#: Puts the milliseconds of each frame's script into a list.
_TIMED = """const frames = window.frames_ms = [], own = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (draw) => own((time) => {
  const begin = performance.now(); draw(time); frames.push(performance.now() - begin); });"""


def heap(address: str) -> tuple[float, float, float]:
    """Seconds until a browser shows the overview, bytes of JavaScript's heap, and ms for a frame, the 95th percentile.

    The larger of two: with the overview and its chart drawn, and after zooming through the timeline.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        page.add_init_script(_TIMED)
        begin = time.perf_counter()
        page.goto(address)
        page.wait_for_selector("h1.headline")
        shown = time.perf_counter() - begin
        page.locator("figure.chart svg.main-svg").first.wait_for()
        most = heap_bytes(page)
        page.goto(address + "timeline")
        page.wait_for_selector("html[data-windows]", state="attached")
        page.locator("#canvas").focus()
        for key in "wwwwwwdddwwwwaaaassssddddwwwww0wwwwddddss":
            page.keyboard.press(key)
            page.wait_for_timeout(40)
        page.wait_for_timeout(1_000)
        most = max(most, heap_bytes(page))
        frame_ms = float(np.percentile(page.evaluate("window.frames_ms"), 95))
        browser.close()
    return shown, most, frame_ms


def heap_bytes(page: Page) -> float:
    """What lives on the heap of a tab, its typed arrays included."""
    client = page.context.new_cdp_session(page)
    client.send("HeapProfiler.collectGarbage")
    used = client.send("Runtime.getHeapUsage")
    return float(used["usedSize"] + used.get("backingStorageSize", 0))


def measured(trace: Path, cache: Path, n_moves: int, *, with_browser: bool) -> list[tuple[str, str]]:
    """All figures, by name."""
    server = Server(trace, cache)
    rows: list[tuple[str, str]] = []
    try:
        server.get("/")
        rows.append(("first page, cold", f"{time.perf_counter() - server.started:.2f} s"))
        if (cpu_s := server.cpu_s()) is not None:
            rows.append(("CPU time of that", f"{cpu_s:.2f} s"))
        begin = time.perf_counter()
        server.get("/api/trace/0/layout")
        rows.append(("timeline laid out", f"{time.perf_counter() - begin:.2f} s"))
        taken = np.array(moves(server, n_moves)) * 1_000
        for name, value in (("p50", np.percentile(taken, 50)), ("p95", np.percentile(taken, 95)), ("max", taken.max())):
            rows.append((f"pan and zoom, {name}", f"{value:.1f} ms"))
        if with_browser and shutil.which("chromium"):
            shown, used, frame_ms = heap(server.address)
            rows += [("first page in a browser", f"{shown:.2f} s"), ("browser's heap", f"{used / MB:.0f} MB"),
                     ("a frame drawn, p95", f"{frame_ms:.1f} ms")]  # fmt: skip
    finally:
        server.stop()
    again = sorted(_first_page_s(trace, cache) for _ in range(5))
    return [
        *rows[:2],
        ("first page, from the cache", f"{again[2]:.2f} s ({again[0]:.2f} to {again[-1]:.2f})"),
        *rows[2:],
    ]


def _first_page_s(trace: Path, cache: Path) -> float:
    server = Server(trace, cache)
    try:
        server.get("/")
        return time.perf_counter() - server.started
    finally:
        server.stop()


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--moves", type=int, default=300)
    parser.add_argument("--no-chromium", action="store_true")
    wanted = parser.parse_args()
    trace = wanted.trace or big_trace()
    with tempfile.TemporaryDirectory() as cache:
        rows = measured(trace, Path(cache), wanted.moves, with_browser=not wanted.no_chromium)
    n_bytes = sum(file.stat().st_size for file in (trace.iterdir() if trace.is_dir() else [trace]))
    print(f"{trace.name}, {n_bytes / MB:,.0f} MB\n")
    print(grid(("what", "measured", "target"), [(name, value, TARGETS.get(name, "")) for name, value in rows]))


if __name__ == "__main__":
    main()
