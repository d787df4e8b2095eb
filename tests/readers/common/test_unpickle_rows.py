"""Records that are read at once: the same as those that are read one by one."""

from __future__ import annotations

import pickle
import random

import pytest
from dumps import call, dump, pickled

from stepscope.core.errors import CorruptInput
from stepscope.readers.common import unpickle
from stepscope.readers.common.record_columns import Rows
from stepscope.readers.common.unpickle import unpickled


def flat(value):
    """The value with the records in place of `Rows`."""
    if isinstance(value, dict):
        return {key: flat(one) for key, one in value.items()}
    if isinstance(value, list):
        return [flat(one) for item in value for one in (item if isinstance(item, Rows) else [item])]
    return value


def test_records_that_are_alike_are_read_as_python_reads_them():
    kinds = [{"group": "7", "sizes": [[3, 4], [5]]}, {"ended": False}, {"dtype": "Half", "frames": [{"line": 3}]}]
    document = dump([call(70_000 + 99 * i, **dict(kinds[i % 7 % 3])) for i in range(300)])
    value, torn = unpickled(pickled(document))
    assert flat(value) == document == pickle.loads(pickled(document))
    assert any(isinstance(one, Rows) and len(one) > 200 for one in value["entries"])
    assert not torn


def test_records_may_differ_in_their_fields():
    document = {"entries": [{"a": i} if i % 2 else {"a": i, "b": 0} for i in range(300)]}
    value, _ = unpickled(pickled(document))
    assert flat(value) == document
    assert any(isinstance(one, Rows) and one[3] in document["entries"] for one in value["entries"])


def some_value(rng: random.Random, shared: list, depth: int = 0):
    """A value of any kind; sometimes one that an earlier record has too."""
    kind = rng.randrange(14 if depth < 3 else 8)
    if kind == 0 and shared:
        return rng.choice(shared)
    size = rng.randrange(4)
    made = {
        1: lambda: rng.choice([None, True, False]),
        2: lambda: rng.randrange(-300, 300),
        3: lambda: rng.randrange(-(2 ** rng.choice([15, 31, 40, 63, 64, 80])), 2**63),
        4: lambda: rng.choice([0.5, -1e300, float(rng.random())]),
        5: lambda: "ü" * rng.randrange(300) + str(rng.randrange(5)),
        6: lambda: f"u}}(h{rng.randrange(9)}",
        9: lambda: [some_value(rng, shared, depth + 1) for _ in range(size)],
        10: lambda: tuple(some_value(rng, shared, depth + 1) for _ in range(size)),
        11: lambda: {f"k{i}": some_value(rng, shared, depth + 1) for i in range(size)},
        12: lambda: [[rng.randrange(70_000)], [rng.randrange(3)]],
    }.get(kind, lambda: rng.randrange(2**17))()
    if rng.random() < 0.2:
        shared.append(made)
    return made


def some_records(seed: int) -> list:
    """Records whose fields have mostly one kind of value."""
    rng = random.Random(seed)
    shared: list = []
    rare = rng.choice([0, 0.001, 0.01, 0.05])
    usual = {f"field{i}": random.Random(rng.random()).getstate() for i in range(rng.randrange(1, 9))}
    records = []
    for _ in range(rng.randrange(90, 250)):
        record = {}
        for name, state in usual.items():
            own = random.Random()
            own.setstate(state)
            record[name] = some_value(rng if rng.random() < rare else own, shared)
        if rng.random() < 0.02:
            record["odd"] = rng.random()
        records.append(record)
    return records


@pytest.mark.parametrize("seed", range(25))
def test_records_of_any_kind_are_read_as_python_reads_them(seed):
    document = {"head": [{"a": "b"}], "entries": some_records(seed), "again": [{"c": 1}]}
    document["again"].append(document["entries"][70])
    for protocol in (2, 4):
        data = pickle.dumps(document, protocol)
        value, _ = unpickled(data)
        assert flat(value) == pickle.loads(data)


@pytest.mark.parametrize("seed", range(40))
def test_damage_has_the_same_effect_on_records_read_at_once(seed, monkeypatch):
    rng = random.Random(seed)
    calls = [call(i, desc=f"d{i % 3}", frames=[{"line": i % 5}]) for i in range(150)]
    data = bytearray(pickled(dump(calls)) if seed % 2 else pickle.dumps(dump(calls), 2))
    for _ in range(rng.choice([1, 1, 3])):
        data[rng.randrange(len(data))] = rng.choice([rng.randrange(256), *b"u}(hqKMJ]e."])
    if seed % 3 == 0:
        del data[rng.randrange(len(data)) :]

    def outcome():
        try:
            value, torn = unpickled(bytes(data))
        except CorruptInput as error:
            return str(error)
        return repr(flat(value)), torn

    at_once = outcome()
    monkeypatch.setattr(unpickle, "_MOST_MARKS", 0)
    assert at_once == outcome()


def test_a_text_that_resembles_the_start_of_a_record_changes_nothing():
    document = dump([call(i, desc="u}(X\x06\0\0\0frames" + "u}(h\x05" * (i % 3)) for i in range(200)])
    assert flat(unpickled(pickled(document))[0]) == document


def test_a_text_that_comes_first_in_the_middle_is_known_to_later_records():
    document = dump([call(i, name=f"op{i // 60}", desc=f"d{i // 90}") for i in range(400)])
    value, _ = unpickled(pickled(document))
    assert flat(value) == document
    assert sum(len(one) for one in value["entries"] if isinstance(one, Rows)) > 300
