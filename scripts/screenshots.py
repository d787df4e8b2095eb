"""Makes docs/images: every page of `stepscope serve`, as a browser draws it. Needs Debian's chromium and playwright.

usage: python scripts/screenshots.py [PATH…] [--out FOLDER] [--dark]
"""

from __future__ import annotations

import argparse
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import uvicorn
from playwright.sync_api import sync_playwright

from stepscope.web.app import application
from stepscope.web.pages.sql import EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "overview": "/", "timeline": "/timeline", "operators": "/operators", "kernels": "/kernels", "memory": "/memory",
    "communication": "/communication", "compare": "/compare?a=0&b=1", "tables": "/tables",
    "table": "/tables/operators?sort=host_self_ns",
    "sql": "/sql?" + urlencode({"q": EXAMPLES[3].text}),
}  # fmt: skip
WHOLE = ("overview",)
#: Ways from the first page to an answer: the example, the card, its link.
PATHS = {
    "path-slowest-step": ("demo-cpu-2ranks", "Slowest step", "timeline"),
    "path-operator": ("demo-cpu-2ranks", "Operator with most time", "by call stack"),
    "path-wait": ("demo-slow-loader/abnormal", "Longest wait of the host", "timeline"),
    "path-memory": ("demo-cpu-2ranks", "Peak memory", "who holds it"),
}


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
    print(file)


def settle(page: Page) -> None:
    """Wait until the page is fully drawn."""
    page.wait_for_selector("main:not(:has([data-waiting]))", state="attached", timeout=60_000)
    page.wait_for_load_state("networkidle")
    if "/timeline" in page.url:
        page.wait_for_selector("html[data-windows]", state="attached")
    page.wait_for_timeout(500)


def walk(page: Page, out: Path, suffix: str) -> None:
    """Go each of the ways by hand, and take a picture of where it ends."""
    page.set_viewport_size({"width": 1120, "height": 600})
    for name, (example, card, link) in PATHS.items():
        with served([str(ROOT / "examples" / example)]) as address:
            page.goto(address)
            settle(page)
            page.locator(".card", has_text=card).get_by_role("link", name=link, exact=True).click()
            page.wait_for_url(lambda url, first=address: url.rstrip("/") != first)
            settle(page)
            page.screenshot(path=out / f"{name}{suffix}.png")
            print(out / f"{name}{suffix}.png")


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", default=[str(ROOT / "examples" / "demo-cpu-2ranks")])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--pages", nargs="*", help="as in timeline?t=0; those of the menu if none are named")
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    pages = {f"page-{i}": "/" + page for i, page in enumerate(wanted.pages)} if wanted.pages else PAGES
    with served(wanted.paths) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        scheme = "dark" if wanted.dark else "light"
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
        page.on("console", lambda message: print("console:", message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: print("error:", error))
        suffix = "-dark" if wanted.dark else ""
        for name, path in pages.items():
            shoot(page, address + path, wanted.out / f"{name}{suffix}.png", whole=name in WHOLE)
        if not wanted.pages:
            walk(page, wanted.out, suffix)
        browser.close()


if __name__ == "__main__":
    main()
