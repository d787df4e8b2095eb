"""Memory over time in a browser: drawn, zoomed, a moment chosen, a stack shown."""

from __future__ import annotations

import pickle

import pytest
from served import serve
from snapshots import snapshot


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot(every_us=1_000)))
    with serve(path) as served:
        yield served


def test_a_click_chooses_a_moment_and_a_holder_shows_its_stack(tab, address):
    page = tab.open(address + "/memory")
    page.wait_for_selector('html[data-memory="ready"][data-windows]', state="attached")
    assert "22 MiB in use, 42 MiB reserved · the peak" in page.locator("#memory-when").text_content()
    box = page.locator("#levels").bounding_box()
    page.mouse.click(box["x"] + 120, box["y"] + 100)
    page.wait_for_selector("#memory-when:has-text('14 MiB in use')")
    page.locator("#memory-details td button").first.click()
    page.wait_for_selector("#memory-stack li")
    assert "/home/me/model.py" in page.locator("#memory-stack").text_content()
    page.locator("#levels").focus()
    before = int(page.locator("html").get_attribute("data-windows"))
    page.keyboard.press("w")
    page.keyboard.press("w")
    page.keyboard.press("w")
    page.wait_for_function("before => Number(document.documentElement.dataset.windows) > before", arg=before)
    page.select_option("#memory-by", "stack")
    page.wait_for_selector("#memory-legend li:has-text('forward (model.py:7)')")
