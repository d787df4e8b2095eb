from __future__ import annotations

import pytest

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.store import history_folder


def key(number: int) -> str:
    return f"{number:024x}"


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path) -> str:
    return str(tmp_path / "a" / "store") if request.param == "folder" else f"memory://{tmp_path.name}/store"


def test_runs_come_back_and_count_once(store: str) -> None:
    assert history_folder.heads(store) == []
    assert history_folder.put(store, key(1), b'{"a":1}', b"digest 1")
    assert history_folder.put(store, key(2), b'{"a":2}', b"digest 2")
    assert not history_folder.put(store, key(1), b'{"a":1}', b"digest 1")
    assert [(name, data) for name, _, data in history_folder.heads(store)] == [
        (key(1), b'{"a":1}'), (key(2), b'{"a":2}'),
    ]  # fmt: skip
    assert history_folder.digest(store, key(2)) == b"digest 2"


def test_many_heads_become_one_file_and_none_is_lost(store: str, monkeypatch) -> None:
    monkeypatch.setattr(history_folder, "_MOST_SINGLE", 4)
    for number in range(11):
        assert history_folder.put(store, key(number), b'{"n":%d}' % number, b"x")
    heads = history_folder.heads(store)
    assert sorted((name, data) for name, _, data in heads) == [(key(n), b'{"n":%d}' % n) for n in range(11)]
    assert len({path for _, path, _ in heads}) < 11
    assert not history_folder.put(store, key(0), b'{"n":0}', b"x")


def test_a_head_that_is_in_two_files_counts_once(tmp_path) -> None:
    history_folder.put(str(tmp_path), key(1), b"{}", b"x")
    (tmp_path / "heads-0.jsonl").write_bytes(key(1).encode() + b"\t{}\n")
    assert len(history_folder.heads(str(tmp_path))) == 1


def test_other_files_in_the_folder_are_no_runs(tmp_path) -> None:
    for name in ("rank0.json", "x.head.json", ".hidden.head.json", f"{key(1)}.head.json.part"):
        (tmp_path / name).write_text("{}")
    assert history_folder.heads(str(tmp_path)) == []


def test_a_file_is_no_store(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StepscopeError, match="is a file, and a store of runs is a folder"):
        history_folder.put(str(tmp_path / "file"), key(1), b"{}", b"x")


def test_a_damaged_digest_is_refused(tmp_path) -> None:
    history_folder.put(str(tmp_path), key(1), b"{}", b"x")
    (tmp_path / f"{key(1)}.digest.json.zst").write_bytes(b"nothing of the kind")
    with pytest.raises(CorruptInput, match="cannot be unpacked"):
        history_folder.digest(str(tmp_path), key(1))
    with pytest.raises(StepscopeError):
        history_folder.digest(str(tmp_path), key(2))
