"""Makes docs/images: pages of `stepscope serve`, as a browser draws them, and the answers to ten questions.

Needs Debian's chromium, playwright, and Pillow for pictures of 256 colours, which take a third of the space. No
recording of a GPU job may be shipped: the picture of one is of a job that lab/make_ranks.py simulates.

usage: python scripts/screenshots.py [PATH…] [--out FOLDER] [--dark | --looks]
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import sync_playwright

from stepscope.web.app import application
from stepscope.web.pages.sections import NAVIGATION
from stepscope.web.pages.sql import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "overview": "/", "timeline": "/timeline", "sql": "/sql?" + urlencode({"q": EXAMPLES[3].text}),
}  # fmt: skip
WHOLE = ("overview",)
_PAUSE_MS = 500
LOOKS = tuple(product((1440, 800), ("light", "dark")))


@dataclass(frozen=True, slots=True)
class Task:
    """A question, the example that it is about, the way to its answer from the first page, and where the answer is.

    A step of the way is a selector of Playwright to click, "choose NAME LABEL" for a list, or "type KEYS". A picture of
    the answer is taken if it has a name.
    """

    question: str
    example: str
    way: tuple[str, ...]
    answer: str
    picture: str = ""

    @property
    def clicks(self) -> int:
        """How many of the steps are clicks."""
        return sum(not step.startswith("type ") for step in self.way)


_JOB, _SLOW = "demo-cpu-2ranks", "demo-slow-loader/abnormal"
_SLOWEST = '.card:has-text("Slowest step") a:text-is("timeline")'
_LATE = 'section:has-text("Who is late")'
TASKS = (
    Task("Which step is the slowest, and why?", _JOB, (_SLOWEST,),
         "#details h2:has-text('Range of')", "path-slowest-step"),
    Task("Which step is the third slowest, and why?", _JOB,
         ('.card:has-text("Slowest step") a:text-is("all steps")', "tbody tr:nth-child(3) td.go a"),
         "#details h2:has-text('Range of')"),
    Task("What is the longest wait, and its cause?", _SLOW,
         ('.card:has-text("Longest wait of the host") a:text-is("timeline")',),
         "#details h2:has-text('DataLoader')", "path-wait"),
    Task("Which operator takes most time, and who calls it?", _JOB,
         ('.card:has-text("Operator with most time") a:text-is("by call stack")',),
         "td:has-text('aten::mm')", "path-operator"),
    Task("Where are all calls of one module?", _JOB,
         ('nav a:text-is("Operators")', '.tree tr:has-text("Embedding_0") td.go a'),
         "#details h2:has-text('nn.Module: Embedding_0')"),
    Task("Which rank is late in step 5?", _JOB, ('nav a:text-is("Communication")',),
         f"{_LATE} tr:has(td:nth-child(2):has-text('5')):has(td:nth-child(3):has-text('0')) td:has-text('29 ms')",
         "path-late-rank"),
    Task("What determines the length of the slowest step?", _JOB, (_SLOWEST, "choose #marks critical path", "type n"),
         "#details .mark dt:text-is('on path')", "path-critical"),
    Task("How long is it from one all-reduce to the next?", _JOB,
         ('nav a:text-is("Timeline")', "type /gloo:all_reduce", "type Enter", "type m", "type n", "type m"),
         "#details dt:text-is('start to start')"),
    Task("When is memory at its peak, and who holds it?", _JOB,
         ('.card:has-text("Peak memory") a:text-is("who holds it")',), "th:has-text('at peak')", "path-memory"),
    Task("What do two ranks or runs do differently in the same step?", _JOB,
         ('nav a:text-is("Compare")', 'button:text-is("Compare")', 'a:has-text("aligned by step")'),
         "#align option:checked:text-is('by step')"),
)  # fmt: skip


@contextmanager
def served(paths: list[str]) -> Iterator[str]:
    """The page's address while it is served from this process."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application(paths), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def shoot(page: Page, address: str, file: Path, *, whole: bool) -> None:
    """One page as a picture, once it is fully drawn."""
    page.goto(address)
    settle(page)
    page.screenshot(path=file, full_page=whole)
    shrink(file)
    print(file)


def shrink(file: Path) -> None:
    """Reduce a picture to 256 colours, which is as good for pages."""
    from PIL import Image  # the tests go the ways of this file without pictures

    with Image.open(file) as picture:
        # Of all methods this one keeps the colours of small things, such as legends.
        reduced = picture.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    reduced.save(file, optimize=True)


def shoot_gpu_job(page: Page, out: Path, suffix: str) -> None:
    """The first page of a simulated job of eight GPUs, one of which is late."""
    with tempfile.TemporaryDirectory() as folder:
        job = ["--tp", "4", "--dp", "2", "--steps", "8", "--late", "5:1500"]
        subprocess.run([sys.executable, str(ROOT / "lab" / "make_ranks.py"), folder, *job], check=True)
        with served([folder]) as address:
            shoot(page, address, out / f"gpu-overview{suffix}.png", whole=False)


def settle(page: Page, pause_ms: int = _PAUSE_MS) -> None:
    """Wait until the page is fully drawn; its last changes of colour and size take the pause."""
    page.wait_for_selector("main:not(:has([data-waiting]))", state="attached", timeout=60_000)
    page.wait_for_load_state("networkidle")
    if "/timeline" in page.url:
        page.wait_for_selector("html[data-windows]", state="attached")
    page.wait_for_timeout(pause_ms)


def solve(page: Page, address: str, task: Task, pause_ms: int = _PAUSE_MS) -> None:
    """Go the way of a task by hand, until its answer is there."""
    page.goto(address)
    settle(page, pause_ms)
    for step in task.way:
        verb, _, rest = step.partition(" ")
        if verb == "choose":
            name, _, label = rest.partition(" ")
            page.select_option(name, label=label)
            page.wait_for_selector("#hits:has-text('of')")
            page.locator("#canvas").focus()
        elif verb == "type":
            page.keyboard.press(rest) if rest == "Enter" else page.keyboard.type(rest)
        else:
            page.locator(step).first.click()
            page.wait_for_load_state()
        settle(page, pause_ms)
    page.locator(task.answer).first.wait_for(state="attached")
    show = """answer => {
        const panel = answer.closest("section.panel"), chart = document.querySelector("figure.chart");
        if (panel) panel.scrollIntoView();
        else if (chart) answer.closest(".scroll")?.scrollIntoView();
        if (chart && !panel) scrollBy(0, -60);  // what stands at the top covers the head of a table
    }"""
    page.locator(task.answer).first.evaluate(show)


def walk(page: Page, out: Path, suffix: str) -> None:
    """Go each of the ways by hand, and take a picture of where it ends."""
    page.set_viewport_size({"width": 1120, "height": 600})
    for task in (task for task in TASKS if task.picture):
        with served([str(ROOT / "examples" / task.example)]) as address:
            solve(page, address, task)
            page.screenshot(path=out / f"{task.picture}{suffix}.png")
            shrink(out / f"{task.picture}{suffix}.png")
            print(out / f"{task.picture}{suffix}.png")


def look(browser: Browser, address: str, out: Path) -> None:
    """Each page of the menu whole, wide and narrow, light and dark; says which are wider than their window."""
    for (width, scheme), (path, title) in product(LOOKS, NAVIGATION):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.goto(address + path)
        settle(page)
        # Charts are drawn when they come into sight, and a picture of the whole page has all of them.
        height = max(page.evaluate("document.documentElement.scrollHeight"), 900) if path != "/timeline" else 900
        page.set_viewport_size({"width": width, "height": height})
        shoot(page, address + path, out / f"{title.lower().replace(' ', '-')}-{width}-{scheme}.png", whole=True)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            print(f"{title} is wider than {width} pixels")
        page.close()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", default=[str(ROOT / "examples" / "demo-cpu-2ranks")])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--looks", action="store_true", help="each page at 1440 and 800 pixels, light and dark")
    parser.add_argument("--pages", nargs="*", help="as in timeline?t=0; those of the menu if none are named")
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    pages = {f"page-{i}": "/" + page for i, page in enumerate(wanted.pages)} if wanted.pages else PAGES
    with served(wanted.paths) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        if wanted.looks:
            look(browser, address, wanted.out)
            return
        scheme = "dark" if wanted.dark else "light"
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: print("console:", message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: print("error:", error))
        suffix = "-dark" if wanted.dark else ""
        for name, path in pages.items():
            shoot(page, address + path, wanted.out / f"{name}{suffix}.png", whole=name in WHOLE)
        if not wanted.pages:
            shoot_gpu_job(page, wanted.out, suffix)
            walk(page, wanted.out, suffix)
        browser.close()


if __name__ == "__main__":
    main()
