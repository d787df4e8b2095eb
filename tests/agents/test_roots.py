"""An agent reads files below the named roots, whatever it asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.agents.roots import Runs
from stepscope.core.errors import StepscopeError

EXAMPLES = (Path(__file__).parents[2] / "examples").resolve()
DECODE = "demo-cpu-decode"


def test_a_handle_works_in_a_later_session_below_the_same_root_only(tmp_path, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_CACHE", str(tmp_path / "cache"))
    handle, _ = Runs((EXAMPLES,)).open([DECODE])
    assert len(Runs((EXAMPLES,)).find(handle)[1]) == 1
    with pytest.raises(StepscopeError, match="not below a root"):
        Runs((tmp_path / "elsewhere",)).find(handle)


@pytest.fixture
def fenced(tmp_path):
    """A root with ways out of it: links to a file and a folder, and a link in place of a counter file."""
    inside, outside = tmp_path / "root", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    trace = next((EXAMPLES / DECODE).glob("*.json.gz")).read_bytes()
    (outside / "rank0.pt.trace.json.gz").write_bytes(trace)
    (outside / "counters.csv").write_text("ts,x\n")
    (inside / "link.pt.trace.json.gz").symlink_to(outside / "rank0.pt.trace.json.gz")
    (inside / "folder").symlink_to(outside)
    (inside / "side").mkdir()
    (inside / "side" / "rank0.pt.trace.json.gz").write_bytes(trace)
    (inside / "side" / "counters.csv").symlink_to(outside / "counters.csv")
    return inside


@pytest.mark.parametrize(
    "path",
    [
        "../outside/rank0.pt.trace.json.gz", "folder", "folder/rank0.pt.trace.json.gz", "link.pt.trace.json.gz", "*.gz",
        "fold*/*", "side", "side/../../outside", "/etc/passwd", "/", "~/x", "file:///etc/passwd", "s3://bucket/x", "\0",
        "", "../root-other", "http://127.0.0.1/x",
    ],
)  # fmt: skip
def test_nothing_outside_the_roots_is_read(fenced, path):
    runs = Runs((fenced,))
    for ask in (lambda: runs.open([path]), lambda: runs.find(path)):
        with pytest.raises(StepscopeError, match="not below a root"):
            ask()


def test_the_second_root_is_searched_too(tmp_path):
    assert len(Runs((tmp_path, EXAMPLES)).find(DECODE)[1]) == 1
