"""Values out of pickles: what Python reads, and nothing that runs."""

from __future__ import annotations

import os
import pickle

import pytest
from dumps import call, dump, pickled

from stepscope.core.errors import CorruptInput
from stepscope.readers.common.record_columns import Rows
from stepscope.readers.common.unpickle import unpickled

VALUES = {"a": [1, 300, -5, 2**40, None, True, False, 1.5, "ä"], "b": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4))}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_read_as_python_reads_them(protocol):
    assert unpickled(pickle.dumps(VALUES, protocol)) == (VALUES, "")


@pytest.mark.parametrize("end", range(60, 4000, 371))
def test_a_pickle_that_ends_early_gives_its_whole_records(end):
    document = dump([call(i) for i in range(200)])
    value, torn = unpickled(pickled(document)[:end])
    assert torn == "pickle ends early"
    whole = [one for item in value.get("entries", []) for one in (item if isinstance(item, Rows) else [item])]
    assert whole == document["entries"][: len(whole)]


class Evil:
    def __reduce__(self):
        return os.system, ("false",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil(), 2),
        pickle.dumps([{"a": Evil()}], 4),
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02P1\n.",
        b"\x80\x02h\x05.",
        b"\x80\x02e.",
        b"\x80\x02(u.",
        b"\x80\x02\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02](]e]](u.",
        b"",
        b"\x80\x02.",
    ],
)
def test_what_imports_calls_or_makes_no_sense_is_refused(data):
    with pytest.raises(CorruptInput):
        unpickled(data)


def test_values_that_refer_to_each_other_take_no_more_memory_than_their_file():
    nested = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(60))
    value, _ = unpickled(b"\x80\x02" + nested + b"0" * 60 + b".")
    assert value == []
