"""A browser and a served page. Debian's chromium is used; where there is none the tests are skipped, and say so."""

from __future__ import annotations

import shutil

import pytest
from served import serve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE_MS = 30_000


@pytest.fixture(scope="session")
def browser():
    """Chromium, for all tests."""
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        # Pictures are drawn by the processor on any machine of CI: a process that imitates a graphics card takes time.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        found = started.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


class Watched:
    """A tab that remembers what went wrong in it."""

    def __init__(self, page):
        self.page, self.trouble = page, []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("dialog", lambda dialog: (self.trouble.append("dialog: " + dialog.message), dialog.dismiss()))
        page.on("console", lambda note: self.trouble.append(note.text) if note.type == "error" else None)

    def open(self, address):
        """Load the address and wait until its content is there."""
        self.page.goto(address)
        self.page.wait_for_selector("main:not(:has([data-waiting]))", state="attached")
        if "/timeline" in address:
            self.drawn()
        return self.page

    def drawn(self):
        """Wait until the timeline has got its data."""
        self.page.wait_for_selector('html[data-timeline="ready"][data-windows]', state="attached")

    def leave(self):
        """Forget all that a test did, so that the tab is as new."""
        self.page.unroute_all(behavior="ignoreErrors")
        if self.page.url != "about:blank":
            self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        self.page.emulate_media(color_scheme="light")
        self.trouble.clear()


@pytest.fixture(scope="session")
def shared_tab(browser):
    """A tab at 1280 × 800 for many tests: each new one starts a process, which takes twice as long as a page."""
    return Watched(browser.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True).new_page())


@pytest.fixture
def tab(shared_tab):
    """A tab that is as new; nothing may have gone wrong in it when the test ends."""
    yield shared_tab
    trouble = list(shared_tab.trouble)
    shared_tab.leave()
    assert trouble == []


@pytest.fixture(scope="session")
def demo(examples):
    """Address of the page of the demo: two ranks, with stacks and memory."""
    with serve(examples / "demo-cpu-2ranks") as address:
        yield address
