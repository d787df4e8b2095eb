from __future__ import annotations

import json
from contextlib import ExitStack
from unittest import mock

import pytest
from chrome_traces import column, issues, label, op, packed, read, x
from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.core.errors import CorruptInput, UnknownFormat
from stepscope.readers.chrome import json as _json
from stepscope.readers.common import source as _source

# Text that looks like a border between elements, like brackets, quotes, escapes; and any text at all.
nasty = st.sampled_from(
    ['},{"ph":"X"', "},{", '"}, {"', "}\n,\n{", "]}", '\\"},{', "[{", "\\", '"', "\u2028", "é", "𝄞", "\t\n", "\x7f", ""]
)
texts = st.one_of(
    st.lists(nasty, max_size=3).map("".join), st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)
#: Arguments that no reader looks at, so that they may be anything.
extras = st.dictionaries(texts.map(lambda t: f"x{t}"), values, max_size=3)
numbers = st.integers(0, 10**6)
times = st.one_of(numbers, st.floats(0, 10**6).map(lambda v: round(v, 3)))
spans = st.builds(
    lambda name, ts, dur, tid, args: x(name, ts, dur, "cpu_op", tid=tid) | {"args": args},
    texts,
    times,
    times,
    st.integers(1, 3),
    extras,
)
others = st.one_of(
    st.builds(lambda text: label("thread_name", text, tid=1), texts),
    st.builds(
        lambda ts, value: {"ph": "C", "name": "use", "pid": 1, "ts": ts, "args": {"value": value}}, numbers, numbers
    ),
)
events = st.lists(st.one_of(spans, spans, others), max_size=12)
layouts = st.sampled_from([
    {"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 0}, {"separators": (" ,\n ", " : ")},
    {"ensure_ascii": False}
])  # fmt: skip
metas = st.dictionaries(texts.map(lambda t: f"m{t}"), values, max_size=3)


def cut_at(size: int) -> ExitStack:
    """Blocks of so many bytes, read in steps of as many."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(_json, "BLOCK", size))
    stack.enter_context(mock.patch.object(_json, "PROBE", size))
    stack.enter_context(mock.patch.object(_source, "CHUNK", max(size // 2, 1)))
    return stack


def tables(trace):
    return {name: frame.rows() for name, frame in trace.tables.items()}


@pytest.mark.slow
@given(events, metas, metas, layouts, st.integers(1, 400), st.booleans())
@example([x("},{" * 30, 1, 2), op("next", 5, 1)], {}, {}, {"indent": 2}, 7, False)
@example([op("a", 1, 2) | {"args": {"x": [{"y": [{}, {}, {}]}] * 9}}, op("b", 5, 1)], {}, {}, {}, 40, True)
def test_any_size_of_block_gives_the_same_tables(found, before, after, layout, size, bare):
    document = json.dumps(found if bare else {**before, "traceEvents": found, **after}, **layout).encode()
    whole = read(document)
    with cut_at(size):
        cut = read(document)
    assert tables(cut) == tables(whole)
    assert cut.meta.facts == whole.meta.facts
    assert cut.meta.n_events == len(found)
    # The same from a plain reading of the document.
    plain = [e for e in found if e["ph"] == "X"]
    expected = sorted((e["name"], e["tid"], round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in plain)
    origin = min((row[2] for row in expected), default=0)
    tid = cut.tracks["tid"].to_list()
    got = sorted(
        (n, tid[t], s + origin, d) for n, t, s, d in cut.spans.select("name", "track_id", "ts_ns", "dur_ns").rows()
    )
    assert got == expected
    counted = [e for e in found if e["ph"] == "C"]
    assert cut.counters.height == len(counted)
    assert issues(cut) == ({} if plain else {"no_spans": 1})
    facts = {**before, **after} if not bare else {}
    assert dict(cut.meta.facts) == {
        k: str(v) for k, v in facts.items() if isinstance(v, int | str) and not isinstance(v, bool)
    }


@pytest.mark.slow
@given(events.filter(len), st.integers(1, 200), st.sampled_from([b"", b"\n", b",", b" ,\n"]))
def test_a_bare_array_may_end_after_any_event(found, size, ending):
    with cut_at(size):
        cut = read(packed(found)[15:-2] + ending)
    assert cut.meta.n_events == len(found)
    assert "damaged_events" not in issues(cut)
    assert "truncated" not in issues(cut)


def test_a_block_may_hold_more_false_borders_than_true_ones():
    many = [op(f"n{i}", i, 1) | {"args": {"x": [{"y": j} for j in range(200)]}} for i in range(20)]
    with cut_at(4_000):
        trace = read(many)
    assert column(trace.spans, "name") == [f"n{i}" for i in range(20)]
    assert trace.issues.is_empty()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 64, 1000])
def test_the_array_is_found_however_the_head_is_cut(size):
    head = {
        "a": '"traceEvents": [',
        "b": {"traceEvents": [1, {"c": 2}]},
        "list": [{"traceEvents": []}],
        "e": "\\",
        "é": 1,
        "g": "}{][",
    }
    document = json.dumps({**head, "traceEvents": [op("n", 1, 1)], "last": {"x": [{}, {}]}, "h": 7}).encode()
    with cut_at(size):
        trace = read(document)
    assert column(trace.spans, "name") == ["n"]
    assert dict(trace.meta.facts) == {"a": '"traceEvents": [', "e": "\\", "é": "1", "g": "}{][", "h": "7"}


def test_fields_after_the_array_prevail_over_those_before():
    assert read(b'{"a":1,"traceEvents":[{"ph":"X","ts":1,"dur":1}],"a":2}').meta.facts == {"a": "2"}


@pytest.mark.parametrize("blanks", [10, 4_000, 60_000])
def test_blanks_before_the_document_are_passed_over(blanks):
    with cut_at(1_000):
        trace = read(b" \n" * (blanks // 2) + packed([op("n", 1, 1)]))
    assert column(trace.spans, "name") == ["n"]


def test_unreadable_fields_beside_the_events_are_noted_and_the_events_kept():
    good = packed([op("n", 1, 1)])
    for document in (b'{"a":oops,' + good[1:], good[:-1] + b',"a":oops}', good + b"trailing}"):
        trace = read(document)
        assert column(trace.spans, "name") == ["n"]
        assert issues(trace) == {"metadata_unreadable": 1}


def test_lone_surrogates_in_metadata_become_replacement_characters():
    trace = read(
        packed([op("n", 1, 1)])[:-1] + rb',"host_name":"a\ud800b","deviceProperties":[{"id":0,"name":"\udc00"}]}'
    )
    assert trace.meta.host == "a\ufffdb"
    assert issues(trace) == {"bad_escapes": 2}


def test_not_json_at_all():
    for document in (b"hello {", b"<html>", b'"text"', b"12"):
        with pytest.raises(UnknownFormat):
            read(document)
        with pytest.raises(UnknownFormat, match="is not JSON"):
            list(_json.Document(_written(document), None).blocks())


def test_blanks_alone_are_nothing():
    for document, what in ((b" \n" * 9_000, "nothing but blanks"), (b"", "the file is empty")):
        with pytest.raises(CorruptInput, match=what) as caught:
            list(_json.Document(_written(document), None).blocks())
        assert caught.value.offset == 0


def _written(data: bytes):
    source = mock.Mock(spec=_source.Source, label="x.json", damage=None, n_bytes=len(data))
    source.chunks.return_value = iter([data] if data else [])
    return source


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        (b'{"ts": 1712345678901234.567}', True),
        (b'{"ts":"12"}', True),
        (b'{"ts": -1712345678901234.5}', True),
        (b'{"ts": 0},{"ts": 1712345678901234.5}', True),
        (b'{"ts": 1712345678901234.000}', False),
        (b'{"ts": 1712345678901234}', False),
        (b'{"ts": 345678901234.567}', False),
        (b'{"dur": "x"}', False),
    ],
)
def test_exact_decimals_are_used_where_doubles_would_lose_nanoseconds(text, exact):
    assert _json.needs_exact(text) is exact


def test_an_element_longer_than_any_is_given_up_and_what_follows_is_read():
    long = op("long", 5, 1) | {"args": {"x": "y" * 9_000}}
    data = packed([op("a", 1, 1), long, *(op(f"b{i}", 10 + i, 1) for i in range(40))])
    with cut_at(200), mock.patch.object(_json, "LONGEST", 2_000):
        trace = read(data)
    names = column(trace.spans, "name")
    assert names[0] == "a"
    assert names[-39:] == [f"b{i}" for i in range(1, 40)]
    assert 1 <= issues(trace)["damaged_events"] <= 9_000 // 2_000 + 3


def test_no_more_than_so_much_is_searched_for_the_events():
    data = b'{"x":[' + b"1," * 5_000 + b'1],"traceEvents":[{"ph":"X","ts":1,"dur":1}]}'
    with cut_at(200):
        assert read(data).spans.height == 1
        with mock.patch.object(_json, "LONGEST", 2_000), pytest.raises(UnknownFormat, match="no traceEvents"):
            read(data)


def test_no_more_than_so_much_metadata_is_kept_after_the_events():
    data = packed([op("a", 1, 1)])[:-1] + b',"a":1,"x":"' + b"y" * 9_000 + b'"}'
    with cut_at(200), mock.patch.object(_json, "LONGEST", 2_000):
        trace = read(data)
    assert trace.spans.height == 1
    assert dict(trace.meta.facts) == {"a": "1"}


@pytest.mark.parametrize("size", [1, 7, 40, 100, 400])
@pytest.mark.parametrize("indent", [None, 2])
def test_borders_inside_of_long_texts_are_no_borders(size, indent):
    # So long that the buffer holds none of the true borders, or only a few of the false ones.
    many = [op('},{"ph":"X"}' * (7 * i % 90) + "," * (13 * i % 3_000), i, 1) for i in range(40)]
    with cut_at(size):
        trace = read(json.dumps({"traceEvents": many}, indent=indent).encode())
    assert (trace.meta.n_events, issues(trace)) == (40, {})
