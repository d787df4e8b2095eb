from __future__ import annotations

import json

import pytest
from chrome_traces import label, op, packed, x
from hypothesis import given
from hypothesis import strategies as st

from stepscope.readers.chrome.events import Event
from stepscope.readers.chrome.salvage import closes, last_border, repaired, salvaged, trailing_at
from stepscope.readers.common.source import IssueLog

GOOD = [json.dumps(op(f"n{i}", i, 1), separators=(",", ":")) for i in range(4)]


def notes_of(text: bytes) -> tuple[bytes, dict[str, int]]:
    log = IssueLog()
    mended = repaired(text, log)
    return mended, dict(log.table().select("code", "count").rows())


@pytest.mark.parametrize(
    ("text", "mended", "noted"),
    [
        (b'["a\x01b\x00"]', b'["a b "]', {"control_characters": 2}),
        (b'["a\tb"]', b'["a b"]', {}),
        (b'["\xff\xfe"]', '["\ufffd\ufffd"]'.encode(), {"invalid_utf8": 2}),
        (b"[NaN,-Infinity,Infinity,nan,-inf]", b"[null,null,null,null,null]", {"non_finite_numbers": 5}),
        (b"[1e999,-2.5E+4000,1e22]", b"[null,null,1e22]", {"non_finite_numbers": 2}),
        (b"[N/A]", b"[null]", {"non_finite_numbers": 1}),
        (b'["NaN","N/A","Infinity"]', b'["NaN","N/A","Infinity"]', {}),
        (rb'["C:\windows\x"]', rb'["C:\\windows\\x"]', {"bad_escapes": 2}),
        (
            rb'["\u12","\uD83D\uDE00","\ud800","\uDC00x"]',
            rb'["\\u12","\uD83D\uDE00","\ufffd","\ufffdx"]',
            {"bad_escapes": 3},
        ),
        (rb'["\"\\\/\b\f\n\r\t\u00e9"]', rb'["\"\\\/\b\f\n\r\t\u00e9"]', {}),
    ],
)
def test_what_json_forbids_is_replaced_and_counted(text, mended, noted):
    assert notes_of(text) == (mended, noted)
    json.loads(mended)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(-1e99, 1e99) | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
    )
)
def test_sound_json_stays_as_it_is(value):
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        data = text.encode("utf-8", "replace")
        mended, noted = notes_of(data)
        assert json.loads(mended) == json.loads(data)
        assert set(noted) <= {"bad_escapes"}  # lone surrogates, which Python writes


@given(st.binary(max_size=80))
def test_any_bytes_can_be_mended_and_searched(data):
    mended, _ = notes_of(b'[{"' + data)
    salvaged(mended, Event)
    last_border(data)


def names(text: str) -> tuple[list[str | None], int, int | None]:
    found = salvaged(text.encode(), Event)
    json.loads(found.array())
    assert len(found.events) == len(found.pieces)
    return [e.name for e in found.events], found.n_lost, found.end


@pytest.mark.parametrize(
    ("text", "kept", "lost", "ended"),
    [
        ("[]", [], 0, True),
        ("[ \n ]}}", [], 0, True),
        ("[", [], 0, False),
        ("[{0},{1}]", "01", 0, True),
        ("[{0},{1}", "01", 0, False),
        ("[{0},{1},", "01", 0, False),
        ("[{0},{1},]", "01", 0, True),
        ("[{0},oops,{1}]", "01", 1, True),
        ("[{0},{{oops}},{1}]", "01", 1, True),
        ('[{0},{{"name":"open}},{1},{2}]', "012", 1, True),
        ('[{0},{{"args":{{"a":1}},{1},{2}]', "012", 1, True),
        ("[{0}{1},{2}]", "012", 0, True),
        ("[{0}#{1},{2}]", "012", 1, True),
        ("[oops{0},{1}]", "01", 1, True),
        ("[{0},{1}],{2}]", "012", 1, True),
        ("[{0},null,{1},3]", "01", 2, False),
        ('[{0},{{"name":oops}}]}}', "0", 1, True),
        ('[{0},{{"name":oops}}], "meta": 1}}', "0", 1, True),
        ('[{0},{{"name":"cu', "0", 1, False),
    ],
)  # fmt: skip
def test_damage_costs_the_elements_it_touches(text, kept, lost, ended):
    got, n_lost, end = names(text.format(*GOOD))
    assert got == [f"n{i}" for i in kept]
    assert n_lost == lost
    assert (end is not None) == ended


def test_an_array_that_closes_says_where():
    text = f'[{GOOD[0]},{GOOD[1]}],"x":[{{}},{{}}]}}'
    _, _, end = names(text)
    assert text[end:] == ',"x":[{},{}]}'


def test_fields_of_the_wrong_type_are_left_out_not_their_event():
    found = salvaged(
        b'[{"ph":"X","ts":[1],"dur":"2","name":3,"pid":true,"args":[],"cat":{"a":1}},{"ph":"X","id":1.5}]', Event
    )
    first, second = found.events
    assert (first.ph, first.ts, first.dur, first.name, first.pid, first.cat) == ("X", None, 2.0, "3", None, None)
    assert second.id == "1.5"
    assert found.n_lost == 0


@given(st.lists(st.sampled_from(GOOD), max_size=5), st.integers(0, 600), st.sampled_from([",", ", ", "\n,\n"]))
def test_all_that_is_whole_before_a_cut_is_saved(events, at, comma):
    text = "[" + comma.join(events) + "]"
    found = salvaged(text[: max(at, 1)].encode(), Event)
    ends = [1 + len(comma.join(events[: i + 1])) for i in range(len(events))]
    assert len(found.events) == sum(end <= at for end in ends)


def test_nothing_but_damage_is_given_up_in_good_time():
    open_ended = b'{"ph":"X","name":"a","args":{"b":[{"c":1},'  # each needs the next ones to be whole
    found = salvaged(b"[" + open_ended * 30_000, Event)
    assert not found.events
    assert found.n_lost >= 29_000


@given(st.lists(st.builds(op, st.text(max_size=9), st.integers(), st.integers()), min_size=1, max_size=5))
def test_the_last_border_is_that_of_the_last_element(events):
    text = packed(events)[15:-1]
    border = last_border(text)
    if len(events) == 1:
        assert border is None
    else:
        assert json.loads(text[:border] + b"]") == json.loads(text)[:-1]


@pytest.mark.parametrize(
    ("rest", "whole"),
    [(b"", True), (b"}", True), (b',"a":1}', True), (b",{", False), (b"{", False), (b"]", False), (b" , [", False)],
)
def test_a_bracket_before_another_element_is_no_end(rest, whole):
    assert closes(b"[]" + rest, 2) is whole


def test_only_complaints_about_what_follows_have_a_place():
    assert trailing_at(ValueError("JSON is malformed: trailing characters (byte 9)")) == 8
    assert trailing_at(ValueError("Input data was truncated")) is None


def test_events_of_any_kind_are_saved():
    text = packed([label("process_name", "p"), x("n", 1, 1), {"ph": "C", "args": {"a": 1}}])[15:-1]
    assert [e.ph for e in salvaged(text, Event).events] == ["M", "X", "C"]
