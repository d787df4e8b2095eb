from __future__ import annotations

import gzip
import io
import os
import zipfile

import paddle_profiles
import pytest
from chrome_traces import column, op, packed

from stepscope import readers
from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError, UnknownFormat
from stepscope.readers import expand, open_trace, reader_for
from stepscope.readers.formats import FORMATS

TRACE = packed([op("n", 1, 1)])
EVENT = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]}'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.json").write_bytes(TRACE)
    (tmp_path / "b.pt.trace.json.gz").write_bytes(gzip.compress(TRACE))
    (tmp_path / "labels.json").write_bytes(b'{"answer":42}')
    (tmp_path / "counters.csv.gz").write_bytes(gzip.compress(b"ts_ns,metric\n1,x\n"))
    (tmp_path / "notes.txt").write_bytes(TRACE)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "c.JSON").write_bytes(TRACE)
    return tmp_path


def names(paths: list[str], root) -> list[str]:
    return [os.path.relpath(path, root) for path in paths]


def test_readers_are_our_own_then_those_of_other_packages():
    assert readers.readers()[: len(FORMATS)] == FORMATS


@pytest.mark.parametrize(("head", "what"), [(b"", "is empty"), (b"\x89PNG\r\n", r"begins with b'\x89PNG")])
def test_a_file_that_no_reader_knows_is_named_with_its_first_bytes(head, what):
    with pytest.raises(UnknownFormat) as caught:
        reader_for("some.file", head)
    assert caught.value.message.startswith("some.file ")
    assert what in caught.value.message
    assert ("stepscope formats" if head else "record the trace again") in caught.value.hint


def test_a_file_stands_for_itself_and_a_folder_for_the_traces_in_it(folder):
    assert names(expand([str(folder / "labels.json")]), folder) == ["labels.json"]
    assert names(expand([str(folder)]), folder) == ["a.json", "b.pt.trace.json.gz"]
    assert names(expand([str(folder / "below"), str(folder)]), folder) == [
        "below/c.JSON",
        "a.json",
        "b.pt.trace.json.gz",
    ]


def test_a_folder_without_traces_stands_for_those_below_it(folder):
    for name in ("a.json", "b.pt.trace.json.gz"):
        (folder / name).unlink()
    assert names(expand([str(folder)]), folder) == ["below/c.JSON"]


def test_nothing_is_read_twice(folder):
    one = str(folder / "a.json")
    assert names(expand([one, str(folder), one]), folder) == ["a.json", "b.pt.trace.json.gz"]


def test_patterns_are_resolved(folder):
    assert names(expand([str(folder / "*.json*")]), folder) == ["a.json", "b.pt.trace.json.gz", "labels.json"]
    with pytest.raises(StepscopeError, match="nothing matches") as caught:
        expand([str(folder / "*.none")])
    assert caught.value.hint


def test_a_name_with_the_signs_of_a_pattern_is_a_name(tmp_path):
    path = tmp_path / "run[1].json"
    path.write_bytes(TRACE)
    assert expand([str(path)]) == [str(path)]


def test_a_zip_of_several_traces_stands_for_each(tmp_path):
    path = tmp_path / "all!.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for rank in (0, 1):
            archive.writestr(f"rank{rank}.json", packed([op(f"n{rank}", 1, 1)], distributedInfo={"rank": rank}))
    found = expand([str(path)])
    assert found == [f"{path}!rank0.json", f"{path}!rank1.json"]
    traces = [open_trace(p) for p in found]
    assert [t.rank for t in traces] == [0, 1]
    assert [t.meta.path for t in traces] == found
    assert expand(found) == found


def test_a_zip_of_one_trace_is_that_trace(tmp_path):
    path = tmp_path / "one.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/", b"")
        archive.writestr("folder/trace.json", TRACE)
    assert expand([str(path)]) == [str(path)]
    assert column(open_trace(str(path)).spans, "name") == ["n"]
    with pytest.raises(CorruptInput, match="zip archive damaged"):
        open_trace(f"{path}!none.json")


def test_of_a_recording_exported_both_ways_the_exact_one_is_read(tmp_path):
    profile = paddle_profiles.training()
    for name in ("a.pb", "b.pb.gz", "c.pb"):
        (tmp_path / name).write_bytes(gzip.compress(profile) if name.endswith("gz") else profile)
    for name in ("a.json.gz", "b.json", "d.json"):
        (tmp_path / name).write_bytes(paddle_profiles.json_training())
    assert names(expand([str(tmp_path)]), tmp_path) == ["a.pb", "b.pb.gz", "c.pb", "d.json"]
    assert names(expand([str(tmp_path / "a.json.gz")]), tmp_path) == ["a.json.gz"]


def test_what_is_not_there_says_so(tmp_path):
    for ask in (lambda path: expand([path]), open_trace):
        for name in ("none.json", "none.zip!a.json"):
            with pytest.raises(StepscopeError, match="cannot read") as caught:
                ask(str(tmp_path / name))
            assert caught.value.hint


def test_an_empty_folder_says_what_was_looked_for(tmp_path):
    (tmp_path / "labels.json").write_bytes(b"{}")
    with pytest.raises(StepscopeError, match="no trace in") as caught:
        expand([str(tmp_path)])
    assert ".json" in caught.value.hint


def test_a_damaged_file_in_a_folder_is_not_passed_over(folder):
    (folder / "d.json.gz").write_bytes(b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\xff" * 9)
    assert names(expand([str(folder)]), folder)[-1] == "d.json.gz"


def test_a_file_that_is_called_like_the_traces_is_one_of_them_whatever_it_holds(tmp_path):
    for name, content in (("rank0.json", TRACE), ("rank17.json", b"\x8f\x01 junk"), ("notes1.json", b"[]")):
        (tmp_path / name).write_bytes(content)
    assert names(expand([str(tmp_path)]), tmp_path) == ["rank0.json", "rank17.json"]


def test_profiles_of_ranks_that_list_their_groups_are_a_file_each(tmp_path):
    head = b'{"distributedInfo": {"backend": "nccl", "pg_config": [{"pg_name": "0"}]}, ' + EVENT[1:]
    for rank in range(2):
        (tmp_path / f"rank{rank}.json").write_bytes(head)
    assert names(expand([str(tmp_path)]), tmp_path) == ["rank0.json", "rank1.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_says_so(folder):
    folder.chmod(0)
    try:
        with pytest.raises(StepscopeError, match="cannot read"):
            expand([str(folder)])
    finally:
        folder.chmod(0o755)


def test_an_empty_folder_is_no_trace(tmp_path):
    with pytest.raises(StepscopeError, match="no trace in") as caught:
        open_trace(str(tmp_path))
    assert ".json" in caught.value.hint


def test_a_name_longer_than_any_file_has_is_not_there():
    for ask in (lambda path: expand([path]), open_trace):
        with pytest.raises(StepscopeError, match="cannot read") as caught:
            ask("x" * 5000 + ".json")
        assert caught.value.hint


@pytest.fixture
def objects():
    root = "memory://readers-test"
    if files.exists(root):
        files.remove_folder(root)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for rank in (5, 6):
            archive.writestr(f"rank{rank}.json", EVENT)
    for name, content in (
        ("rank0.json", EVENT),
        ("rank1.json.gz", gzip.compress(EVENT)),
        ("notes.txt", b"hello"),
        ("deep/rank7.json", EVENT),
        ("deep/both.zip", packed.getvalue()),
    ):
        files.write(f"{root}/{name}", content)
    return root


def test_object_stores_have_folders_patterns_and_archives(objects):
    assert expand([objects]) == [f"{objects}/rank0.json", f"{objects}/rank1.json.gz"]
    assert expand([f"{objects}/rank*.json"]) == [f"{objects}/rank0.json"]
    members = [f"{objects}/deep/both.zip!rank{rank}.json" for rank in (5, 6)]
    assert expand([f"{objects}/deep"]) == [*members, f"{objects}/deep/rank7.json"]
    with pytest.raises(StepscopeError, match="nothing matches"):
        expand([f"{objects}/*.pb"])
    with pytest.raises(StepscopeError, match=r"cannot read memory://readers-test/none\.json: no such file"):
        expand([f"{objects}/none.json"])


def test_objects_are_read_like_files(objects):
    told = []
    for path in expand([objects, f"{objects}/deep"]):
        trace = open_trace(path, progress=told.append)
        assert trace.meta.path == path
        assert trace.spans["name"].to_list() == ["aten::mm"]
    assert len(told) == 5


def test_counters_beside_an_object_are_found(objects):
    files.write(f"{objects}/counters.csv", b"ts_ns,metric,unit,device,value\n1,m,%,host,5\n")
    assert open_trace(f"{objects}/rank0.json").issues["code"].to_list() == ["counters_unplaced"]


def test_a_place_that_cannot_be_listed_has_no_counters(objects, monkeypatch):
    def refuse(folder, *, deep):
        raise StepscopeError(f"cannot list {folder} {deep}")

    monkeypatch.setattr(files, "files_in", refuse)
    assert open_trace(f"{objects}/rank0.json").issues.is_empty()


def test_a_connection_that_breaks_in_the_middle_is_an_error(objects, monkeypatch):
    class Broken(io.BytesIO):
        def read(self, n=-1):
            if self.tell() > 10:
                raise ConnectionResetError(104, "Connection reset by peer")
            return super().read(min(n, 16) if n > 0 else n)

    monkeypatch.setattr(files, "opened", lambda _: Broken(EVENT))
    with pytest.raises(StepscopeError, match=r"cannot read .*: Connection reset by peer"):
        open_trace(f"{objects}/rank0.json")
