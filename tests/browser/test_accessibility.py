"""axe-core finds no serious violation on any page, light or dark."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from stepscope.web.pages.sections import NAVIGATION


@pytest.fixture(scope="module")
def axe():
    """The text of axe-core, which its Python package ships."""
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None:
        pytest.skip("axe-playwright-python is not installed")
    return next(Path(spec.origin).parent.rglob("axe.min.js")).read_text(encoding="utf-8")


ASKED = "/sql?q=SELECT+*+FROM+spans+LIMIT+20"
PAGES = [*(path for path, _ in NAVIGATION), "/compare?a=0&b=1", "/tables/steps", ASKED, "/sql?q=SELEC", "/nothing"]


#: Dark pages are the light ones in other colours: the elements, and all that other rules ask of them, are the same.
RULES = {"light": "", "dark": ", runOnly: ['color-contrast', 'link-in-text-block']"}


@pytest.fixture(scope="module")
def open_page(browser):
    """A page of a tab into which scripts may be put: for these tests alone the pages' own policy is set aside."""
    return browser.new_context(bypass_csp=True, viewport={"width": 1280, "height": 800}).new_page()


@pytest.mark.parametrize("address", PAGES)
def test_no_serious_violation(open_page, demo, axe, address):
    page = open_page
    page.goto(demo + address)
    page.wait_for_selector("main:not(:has([data-waiting]))", state="attached")
    page.wait_for_load_state("load")
    page.evaluate(axe)
    serious = []
    for scheme, rules in RULES.items():
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations'], elementRef: false{rules}}})")
        serious += [
            (scheme, one["id"], one["help"], [node["html"][:200] for node in one["nodes"][:3]])
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]
    assert serious == []
