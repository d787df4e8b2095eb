from __future__ import annotations

import json
import pickle
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.report import Report, printable, printable_lines, printable_text


def test_facts_are_read_only():
    facts = {"ranks": 8}
    report = Report("h", meta=facts)
    facts["ranks"] = 9
    assert report.meta["ranks"] == 8
    with pytest.raises(TypeError):
        report.meta["ranks"] = 9


def test_a_worker_process_can_hand_it_back():
    report = Report("one fact", meta={"n_steps": 3}, more={"memory": [1]})
    back = pickle.loads(pickle.dumps(report))
    assert (back.headline, dict(back.meta), back.more) == ("one fact", {"n_steps": 3}, {"memory": [1]})
    with pytest.raises(TypeError):
        back.meta["n_steps"] = 4


def test_it_prints_through_the_renderer_that_it_was_handed():
    assert str(Report("h")) == "h"
    assert str(Report("h", to_text=lambda report: f"<{report.headline}>\n")) == "<h>"
    assert repr(Report("h")) == "Report('h', 0 findings, 0 tables)"


def test_notebooks_show_its_text():
    class Printer:
        def text(self, text):
            self.shown = text

    printer = Printer()
    Report("h")._repr_pretty_(printer, cycle=False)
    assert printer.shown == "h"


def is_obeyed(sign: str) -> bool:
    """Whether a terminal acts on the sign, hides it, or changes the direction of others."""
    return unicodedata.category(sign) in ("Cc", "Zl", "Zp") or unicodedata.bidirectional(sign) in (
        "LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"
    )  # fmt: skip


@given(st.text())
def test_no_sign_that_a_terminal_obeys_is_left(text):
    assert not any(map(is_obeyed, printable(text)))
    assert not any(map(is_obeyed, printable_lines(text).replace("\n", "").replace("\t", "")))


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_plain_text_stays_as_it_is(text):
    assert printable(text) == printable_lines(text) == printable_lines(text, colours=True) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\t\r", "a\\nb\\t\\r"),
        ("\x1b]0;title\x07\x9b2J\x7f", "\\x1b]0;title\\x07\\x9b2J\\x7f"),
        ("gnp.\u202eexe", "gnp.\\u202eexe"),
        ("ge\u200bmm\u00ad\ufeff", "ge\\u200bmm\\xad\\ufeff"),
        ("x\U000e0041", "x\\U000e0041"),
    ],
)
def test_escapes_are_those_of_python(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_json_means_the_same_afterwards(text):
    assert json.loads(printable_lines(json.dumps([text, {text: text}], ensure_ascii=False))) == [text, {text: text}]


def test_only_sequences_for_colours_stay_where_they_are_allowed():
    text = "\x1b[1mbold\x1b[0m \x1b[2J\x1b]0;x\x07 \x1b"
    assert printable_lines(text, colours=True) == "\x1b[1mbold\x1b[0m \\u001b[2J\\u001b]0;x\\u0007 \\u001b"
    assert "\x1b" not in printable_lines(text)


def test_escapes_of_many_lines_are_those_of_one():
    assert printable_text("a\x1b\n\tb\u202e") == "a\\x1b\n\tb\\u202e"
