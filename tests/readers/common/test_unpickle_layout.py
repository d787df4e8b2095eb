"""Layouts of records: where their keys and values are, and what is none."""

from __future__ import annotations

import pytest

from stepscope.readers.common.unpickle_layout import Kind, layout_of


def kinds(text: str) -> bytes:
    """Kinds of operations by one letter each."""
    letters = {
        "d": Kind.DICT, "p": Kind.PUT, "(": Kind.MARK, "u": Kind.SETITEMS, "a": Kind.ATOM, "x": Kind.TEXT,
        "l": Kind.LIST, "+": Kind.APPEND, "e": Kind.APPENDS, "t": Kind.TUPLE, "2": Kind.TUPLE2, "s": Kind.SETITEM,
    }  # fmt: skip
    return bytes(letters[letter] for letter in text)


def test_keys_and_values_of_a_record():
    layout = layout_of(kinds("dp(aa" + "axp" + "alp(aae" + "a(aatp" + "aaa2" + "u"))
    assert layout is not None
    assert layout.values == ((4, 5), (6, 8), (9, 15), (16, 21), (22, 25))
    assert layout.keys[1:3] == ((5, 6), (8, 9))
    assert layout.atoms == ((4,), (), (12, 13), (17, 18), (22, 23))
    assert layout.texts[1] == (6,)
    assert layout.whole == ((), (7,), (10,), (20,), ())
    assert (layout.total_puts, layout.n_puts[[0, 2, 7]].tolist()) == (4, [0, 1, 1])


BAD = [
    "dau",
    "d(au",
    "d(aa",
    "d(aau+",
    "d(aa+u",
    "daas(aau",
    "d(ala+u(u",
    "d(a2u",
    "d(aaeu",
    "dp(lau",
    "d(al(aasu",
    "a",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_single_dict_newly_made_has_no_layout(text):
    assert layout_of(kinds(text)) is None
