from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protobuf_writer import content, double, number, single, varint

from stepscope.readers.common import protobuf
from stepscope.readers.common.columns import ABSENT
from stepscope.readers.common.protobuf import BYTES, DOUBLE, FLOAT, INT, Wire

NUMBERS = st.integers(1, 20)
VALUES = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 127, 128, 2**56 - 1, 2**56, 2**63, 2**64 - 1])


FIELDS = st.one_of(
    st.builds(number, NUMBERS, VALUES),
    st.builds(content, NUMBERS, st.binary(max_size=200)),
    st.builds(single, NUMBERS, st.floats(width=32)),
    st.builds(double, NUMBERS, st.floats()),
)
MESSAGES = st.lists(st.lists(FIELDS, max_size=5).map(b"".join), max_size=8)


def laid_out(messages, copies=1):
    """A document of the messages one after the other, and where each begins and ends."""
    sizes = np.array([len(m) for m in messages] * copies, np.int64)
    ends = np.cumsum(sizes)
    return Wire([b"".join(messages) * copies]), (ends - sizes, ends)


def listed(fields):
    """The fields of each message in order."""
    order = np.argsort(fields.owner, kind="stable")
    columns = (fields.owner, fields.number, fields.wire, fields.value, fields.end)
    return list(zip(*(column[order].tolist() for column in columns), strict=True))


def one_by_one(messages, monkeypatch):
    monkeypatch.setattr(protobuf, "_FEW", 10**9)
    wire, places = laid_out(messages)
    return listed(wire.fields(places)), wire.damage


@pytest.mark.slow
@given(MESSAGES, st.binary(max_size=30))
def test_in_lockstep_the_same_is_found_as_one_by_one(messages, rubbish):
    messages = [*messages, rubbish]
    with pytest.MonkeyPatch.context() as patch:
        expected, damage = one_by_one(messages, patch)
        patch.setattr(protobuf, "_FEW", 1)
        wire, places = laid_out(messages)
        assert listed(wire.fields(places)) == expected
        assert wire.damage == damage
        patch.setattr(protobuf, "_BLOCK", 3)
        wire, places = laid_out(messages)
        assert listed(wire.fields(places)) == expected


@pytest.mark.slow
@given(st.lists(VALUES, min_size=1, max_size=60))
def test_numbers_of_all_lengths_are_read(values):
    wire, places = laid_out([number(3, value) for value in values], copies=60)
    signed = [value - 2**64 if value >= 2**63 else value for value in values]
    assert wire.columns(places, {3: ("n", INT)})["n"].tolist() == signed * 60
    assert wire.damage.n_messages == 0


def test_columns_hold_what_is_there_and_absent_stands_for_the_rest():
    messages = [
        number(1, 5) + content(2, b"ab") + single(3, 0.5) + double(4, 2.5) + number(9, 7),
        number(1, 6) + number(1, -1) + content(5, b"x") + content(5, b"yz"),
        b"",
    ]
    wire, places = laid_out(messages)
    found = wire.columns(
        places, {1: ("n", INT), 2: ("text", BYTES), 3: ("f", FLOAT), 4: ("d", DOUBLE), 5: ("many", BYTES + "*")}
    )
    assert found["n"].tolist() == [5, -1, ABSENT]  # of several the last
    assert wire.slices(found["text"]) == [b"ab", b"", b""]
    assert found["f"].tolist()[:1] == [0.5]
    assert found["d"].tolist()[:1] == [2.5]
    assert np.isnan(found["f"][1:]).all()
    owner, starts, ends = found["many"]
    assert owner.tolist() == [1, 1]
    assert wire.slices((starts, ends)) == [b"x", b"yz"]


def test_repeated_numbers_keep_their_order():
    wire, places = laid_out([number(1, 3) + number(1, 1), number(1, 2)])
    owner, values = wire.columns(places, {1: ("n", INT + "*")})["n"]
    assert (owner.tolist(), values.tolist()) == ([0, 0, 1], [3, 1, 2])


@pytest.mark.parametrize(
    "bad",
    [
        varint(2 << 3 | 2) + varint(100) + b"short",  # ends behind its message
        varint(2 << 3 | 2) + varint(2**63),
        varint(2 << 3 | 3) + b"group",
        varint(2 << 3 | 6),
        varint(0 << 3 | 0) + b"\x01",  # number 0
        varint(2**32 << 3) + b"\x01",
        b"\x08" + b"\xff" * 11,  # a varint without end
        b"\xff" * 11,
        b"\x08",  # no value
        varint(2 << 3 | 5) + b"\x01\x02",
        varint(2 << 3 | 1) + b"\x01\x02\x03",
    ],
)
@pytest.mark.parametrize("copies", [1, 100])
def test_what_is_no_field_ends_its_message_only(bad, copies):
    wire, places = laid_out([number(1, 7) + bad, number(1, 8)], copies)
    assert wire.columns(places, {1: ("n", INT)})["n"].tolist() == [7, 8] * copies
    assert wire.damage.n_messages == copies
    assert wire.damage.first_at == 2


def test_content_that_is_cut_off_may_be_taken_as_far_as_it_goes():
    text = number(1, 7) + content(2, b"abcdef")
    wire = Wire([text[:-2]])
    assert wire.columns(wire.whole(), {2: ("text", BYTES)})["text"][0].tolist() == [-1]
    found = wire.columns(wire.whole(), {2: ("text", BYTES)}, clip=True)["text"]
    assert wire.slices(found) == [b"abcd"]
    assert wire.damage.n_messages == 2


def test_fields_of_another_wire_type_are_left_out_and_counted():
    wire, places = laid_out([content(1, b"x"), number(1, 4)])
    assert wire.columns(places, {1: ("n", INT)})["n"].tolist() == [ABSENT, 4]
    assert wire.damage.n_wire_types == 1


def test_the_document_may_come_in_pieces_or_be_empty():
    assert Wire([b"ab", b"", b"cd"]).slices((np.array([0]), np.array([4]))) == [b"abcd"]
    empty = Wire([])
    assert empty.n_bytes == 0
    assert empty.columns(empty.whole(), {1: ("n", INT)})["n"].tolist() == [ABSENT]


def test_no_messages_have_no_fields():
    wire = Wire([b"x"])
    none = np.empty(0, np.int64)
    found = wire.columns((none, none), {1: ("n", INT), 2: ("t", BYTES + "*")})
    assert found["n"].size == found["t"][0].size == 0


@given(st.lists(st.tuples(st.sampled_from([1, 1, 1, 2, 17]), st.binary(max_size=300)), max_size=40), st.integers(0, 60))
def test_messages_of_a_field_are_walked_in_blocks_and_the_last_ends_with_the_document(fields, n_lost):
    data = b"".join(content(*field) for field in fields)
    data = data[: len(data) - n_lost] if n_lost else data
    wire = Wire([data])
    walked = [text for block in wire.messages(1) for text in wire.slices(block)]
    owner, starts, ends = Wire([data]).columns(wire.whole(), {1: ("text", "bytes*")}, clip=True)["text"]
    assert walked == [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    assert owner.size == len(walked)


@pytest.mark.parametrize(
    "damage", [varint(1 << 3 | 2) + varint(2**63), b"\n", b"\x08\x01", varint(1 << 3 | 2) + b"\xff"]
)
def test_damage_between_messages_ends_the_walk_and_is_counted(damage):
    wire = Wire([content(1, b"a") + damage])
    walked = [text for block in wire.messages(1) for text in wire.slices(block)]
    assert walked[0] == b"a"
    assert wire.damage.n_messages + wire.damage.n_wire_types == 1


@given(
    st.lists(st.builds(content, st.sampled_from([4, 4, 4, 4, 9]), st.binary(max_size=9)) | FIELDS, max_size=60),
    st.integers(0, 400),
    st.integers(0, 255),
    st.booleans(),
)
def test_a_long_message_has_the_fields_that_it_has_one_by_one(fields, place, byte, clip):
    data = b"".join(fields)
    damaged = data[:place] + bytes([byte]) + data[place + 1 :] if place < len(data) else data
    both = []
    for long in (1, 2**30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(protobuf, "_LONG", long)
            patch.setattr(protobuf, "_PIECE", 24)
            patch.setattr(protobuf, "_SAMPLE", 4)
            patch.setattr(protobuf, "_FEW", 2)
            wire = Wire([damaged])
            both.append((listed(wire.fields(wire.whole(), clip=clip)), wire.damage))
    assert both[0] == both[1]
