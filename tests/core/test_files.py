from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from stepscope.core import files
from stepscope.core.errors import MissingExtra, StepscopeError

URL = "memory://files-test"


@pytest.fixture(autouse=True)
def objects():
    for name in ("a.json", "b.txt", "deep/c.json"):
        files.write(f"{URL}/{name}", name.encode())


@pytest.mark.parametrize("path", ["s3://b/x", "gs://b/x", "memory://x", "zip::s3://b/x.zip", "a+b://x"])
def test_a_url_has_a_scheme(path):
    assert files.is_url(path)


@pytest.mark.parametrize("path", ["x.json", "/a/b", "C://x", r"C:\x", "a/b://c", "://x", ""])
def test_everything_else_is_a_file_here(path):
    assert not files.is_url(path)


@pytest.mark.parametrize(
    ("folder", "path"), [("s3://b/x", "s3://b/x/y"), ("s3://b/x/", "s3://b/x/y"), ("x", str(Path("x", "y")))]
)
def test_names_are_joined_and_split_again(folder, path):
    assert files.joined(folder, "y") == path
    assert files.split(path) == (folder.rstrip("/"), "y")


def test_paths_from_the_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert files.absolute("a/../x.json") == str(tmp_path / "x.json")
    assert files.absolute("s3://b/x") == "s3://b/x"


def test_objects_are_asked_in_the_words_of_files(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a.json", "b.txt", "deep/c.json"):
        (tmp_path / name).write_text(name)
    for root in (str(tmp_path), URL):
        assert files.exists(files.joined(root, "a.json"))
        assert not files.exists(files.joined(root, "z.json"))
        assert files.is_folder(root)
        assert not files.is_folder(files.joined(root, "a.json"))
        assert files.size_of(files.joined(root, "a.json")) == 6
        with files.opened(files.joined(root, "b.txt")) as file:
            assert file.read() == b"b.txt"
        shallow = [files.joined(root, name) for name in ("a.json", "b.txt")]
        assert files.files_in(root, deep=False) == shallow
        assert files.files_in(root, deep=True) == [*shallow, files.joined(files.joined(root, "deep"), "c.json")]
        assert files.matching(files.joined(root, "*.json")) == shallow[:1]
        assert files.matching(files.joined(root, "nothing*")) == []


def test_what_is_not_there_is_an_error_with_a_hint(tmp_path):
    for path in (str(tmp_path / "x.json"), f"{URL}/x.json"):
        for ask in (files.opened, files.size_of, files.state_of):
            with pytest.raises(StepscopeError, match=r"cannot read .*x\.json: [Nn]o such file") as caught:
                ask(path)
            assert "check the path" in caught.value.hint
    with pytest.raises(StepscopeError, match="cannot read"):
        files.files_in(str(tmp_path / "nothing"), deep=False)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_a_pipe_has_no_size(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StepscopeError, match="it is a pipe or a device"):
        files.size_of(str(tmp_path / "pipe"))


def test_the_state_of_a_file_changes_with_its_content(tmp_path):
    path = tmp_path / "x.json"
    path.write_text("one")
    before = files.state_of(str(path))
    assert before == files.state_of(str(path))
    path.write_text("three")
    assert files.state_of(str(path)) != before
    assert files.state_of(f"{URL}/a.json") is None


def test_the_state_of_an_object_is_its_tag(monkeypatch):
    class Store:
        def invalidate_cache(self):
            pass

        def info(self, path):
            return {"name": path, "size": 3, "ETag": '"abc"', "LastModified": None}

    monkeypatch.setattr(files, "_system", lambda url: (Store(), url))
    assert files.state_of("s3://b/x") == (3, '"abc"')


def test_folders_of_objects_are_removed_whole():
    files.remove_folder(URL)
    assert not files.exists(f"{URL}/deep/c.json")


def test_a_store_whose_package_lacks_says_what_to_install(monkeypatch):
    def missing(_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(files, "_system", missing)
    for scheme in ("s3", "gs", "az"):
        with pytest.raises(MissingExtra) as caught:
            files.exists(f"{scheme}://b/x")
        assert caught.value.hint == "install the extra cloud: pip install '.[cloud]' in a checkout of stepscope"
    with pytest.raises(StepscopeError, match="Install s3fs") as other:
        files.is_folder("ftp://b/x")
    assert "fsspec" in other.value.hint


def test_an_unknown_scheme_is_an_error():
    with pytest.raises(StepscopeError, match="cannot read nowhere://x: Protocol not known"):
        files.exists("nowhere://x")


def test_what_a_cloud_refuses_is_an_error_too(monkeypatch):
    class ClientError(Exception):
        pass

    def refuse(_):
        raise ClientError("403 Forbidden")

    module = types.ModuleType("botocore.exceptions")
    module.ClientError = module.BotoCoreError = ClientError
    monkeypatch.setitem(sys.modules, "botocore.exceptions", module)
    monkeypatch.setattr(files, "_system", refuse)
    with pytest.raises(StepscopeError, match=r"cannot write s3://b/x: 403 Forbidden") as caught:
        files.write("s3://b/x", b"")
    assert "credentials" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("run/rank3/trace.json", 3),
        ("rank-12.json", 12),
        ("rank1/rank_2.json", 2),
        ("RANK[0].json", None),
        ("drank7.json", None),
        ("trace.json", None),
        ("rank99999999999.json", None),
        ("rank2147483648.json", None),
    ],
)
def test_the_last_rank_in_a_path_counts(path, rank):
    assert files.rank_in(path) == rank


@pytest.mark.parametrize(
    ("paths", "labels"),
    [
        (["x/a.pt.trace.json.gz", "y/b.json"], ["a", "b"]),
        (["r/0/trace.json", "r/1/trace.json"], ["0/trace", "1/trace"]),
        (["a.json", "a.json.gz"], ["a.json", "a.json.gz"]),
        ([".json", "b"], [".json", "b"]),
        (["0/t.json", "t.json"], ["0/t", "t"]),
    ],
)
def test_files_are_labelled_as_short_as_tells_them_apart(paths, labels):
    assert files.labels_of(paths) == labels


def test_what_a_trace_unpacks_to_is_guessed_by_its_packing(tmp_path):
    for name in ("plain.json", "packed.json.gz", "stored/spans.parquet", "stored/meta.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 1_000)
    names = ("plain.json", "packed.json.gz", "stored", "missing.json")
    assert [files.unpacked_bytes(str(tmp_path / name)) for name in names] == [1_000, 12_000, 26_000, 0]
    assert files.unpacked_bytes("s3://bucket/rank0.json") > 10**6
