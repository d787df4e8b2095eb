from __future__ import annotations

import pytest

from stepscope.readers.common.issues import IssueLog
from stepscope.readers.paddle import _events
from stepscope.readers.paddle._events import blocks, escaped


def listed(text, log=None):
    return [[event.name for event in block] for block in blocks(text, 0, len(text), log or IssueLog())]


def element(name):
    return f'  {{\n    "name": "{name}", "pid": 1,\n    "ph": "X"\n  }}'.encode()


def test_blocks_are_cut_between_elements(monkeypatch):
    text = b",\n".join(element(n) for n in ("a", "b", "c", "d")) + b",\n  {}\n"
    assert listed(text) == [["a", "b", "c", "d", ""]]
    monkeypatch.setattr(_events, "BLOCK", 60)
    assert [n for block in listed(text) for n in block] == ["a", "b", "c", "d", ""]
    assert len(listed(text)) > 1


def test_only_the_part_given_is_read():
    text = element("a")
    (block,) = blocks(b"xx" + text + b"yy", 2, 2 + len(text), IssueLog())
    assert block[0].name == "a"
    assert list(blocks(text, 5, 5, IssueLog())) == []


def test_what_cannot_be_read_is_counted_and_the_rest_kept():
    log = IssueLog()
    text = b",\n".join(
        [element("a"), b'  {\n    "name": "b", "pid": [1\n  }', element("c"), b'  {\n "name": "d", "pid": {}}']
    )
    assert listed(text, log) == [["a", "c"]]
    assert log.table().row(0)[:3] == ("damaged_events", "error", 2)


def test_sound_text_stays_as_it_is():
    log = IssueLog()
    assert escaped(element("a b"), log) == element("a b")
    assert not log.has("info")


@pytest.mark.parametrize(
    ("name", "mended"), [('a"b', 'a\\"b'), ("a\\b", "a\\\\b"), ("a\tb", "a\\tb"), ("a\nb", "a\\nb")]
)
def test_names_are_escaped(name, mended):
    log = IssueLog()
    assert escaped(element(name), log) == element(mended)
    assert log.table().row(0)[:3] == ("unescaped_names", "info", 1)
