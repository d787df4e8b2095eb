"""Object stores, as a file system of fsspec's that shows what memory:// does not.

There are no folders, only names with slashes; nothing can be renamed; what is listed may not be readable, and reading
may break off.
"""

from __future__ import annotations

import io
import json

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from stepscope.cli import main

OBJECTS: dict[str, bytes] = {}
FORBIDDEN: set[str] = set()
BROKEN: set[str] = set()


class Broken(io.BytesIO):
    """An object whose connection breaks after a while."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() >= 100_000:
            raise ConnectionResetError(104, "Connection reset by peer")
        return super().read(min(size or 0, 50_000) if size and size > 0 else 50_000)


class Bucket(AbstractFileSystem):
    """Keys and contents. What is between slashes is no object of its own."""

    protocol = "bucket"

    def ls(self, path, detail=True, **_options):
        path = self._strip_protocol(path).strip("/")
        if path in OBJECTS:
            found = {path: self._entry(path)}
        else:
            lead = f"{path}/" if path else ""
            found = {}
            for key in sorted(OBJECTS):
                if key.startswith(lead):
                    name, deeper, _ = key[len(lead) :].partition("/")
                    whole = lead + name
                    found[whole] = {"name": whole, "size": 0, "type": "directory"} if deeper else self._entry(key)
        if not found:
            raise FileNotFoundError(path)
        return list(found.values()) if detail else list(found)

    def _entry(self, key):
        return {"name": key, "size": len(OBJECTS[key]), "type": "file", "ETag": str(hash(OBJECTS[key]))}

    def _open(self, path, **_options):
        key = self._strip_protocol(path).strip("/")
        if key in FORBIDDEN:
            raise PermissionError("Forbidden")
        if key not in OBJECTS:
            raise FileNotFoundError(key)
        return (Broken if key in BROKEN else io.BytesIO)(OBJECTS[key])

    def pipe_file(self, path, value, **_options):
        OBJECTS[self._strip_protocol(path).strip("/")] = value

    def rm(self, path, recursive=False, **_options):
        lead = self._strip_protocol(path).strip("/")
        for key in [key for key in OBJECTS if key == lead or (recursive and key.startswith(f"{lead}/"))]:
            del OBJECTS[key]

    def mv(self, *_paths, **_options):
        raise NotImplementedError("objects cannot be renamed")


class Lazy(Broken):
    """What may be listed and opened, and not read."""

    def read(self, *_size: int | None) -> bytes:
        raise PermissionError("Forbidden")


@pytest.fixture
def bucket(examples):
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    for known in (OBJECTS, FORBIDDEN, BROKEN):
        known.clear()
    Bucket.clear_instance_cache()
    for rank in (0, 1):
        name = f"rank{rank}.pt.trace.json.gz"
        OBJECTS[f"traces/run/{name}"] = (examples / "demo-cpu-2ranks" / name).read_bytes()
    OBJECTS["traces/running/other.txt"] = b"not a trace"
    return "bucket://traces/run"


def run(capsys, *words):
    # Other processes do not know this file system.
    here = ["--workers", "0"] if words[0] in ("report", "show") else []
    code = main([*words, *here])
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.mark.slow
def test_a_prefix_is_a_folder_and_names_that_merely_begin_alike_are_none_of_its_files(capsys, bucket):
    for path in (bucket, f"{bucket}/", f"{bucket}/rank*.gz"):
        code, out, err = run(capsys, "report", path)
        assert (code, err) == (0, "")
        assert out.startswith("PyTorch · CPU only · ranks 0–1")


@pytest.mark.slow
def test_traces_are_exported_without_renaming_and_read_again(capsys, bucket):
    kept = "bucket://traces/kept"
    assert run(capsys, "export", bucket, "--to", "parquet", "-o", kept)[0] == 0
    assert json.loads(OBJECTS["traces/kept/meta.json"])["traces"] == ["rank0", "rank1"]
    code, _, err = run(capsys, "export", bucket, "--to", "parquet", "-o", kept)
    assert (code, err.splitlines()[0]) == (1, f"error: {kept} exists already")
    assert run(capsys, "export", bucket, "--to", "parquet", "-o", kept, "--force")[0] == 0
    query = "SELECT rank, count(*) AS n FROM spans GROUP BY rank ORDER BY rank"
    of_traces = run(capsys, "sql", bucket, query, "--format", "csv")
    assert of_traces == run(capsys, "sql", kept, query, "--format", "csv")
    assert of_traces[1].splitlines() == ["rank,n", "0,22350", "1,22350"]


@pytest.mark.slow
def test_a_report_is_written_there(capsys, bucket):
    assert run(capsys, "report", bucket, "-o", "bucket://traces/out/report.md")[0] == 0
    assert OBJECTS["traces/out/report.md"].startswith(b"# ")


def test_an_object_that_may_not_be_read_is_one_clear_error(capsys, bucket):
    FORBIDDEN.add("traces/run/rank0.pt.trace.json.gz")
    code, _, err = run(capsys, "report", f"{bucket}/rank0.pt.trace.json.gz")
    assert (code, err.splitlines()[0]) == (1, f"error: cannot read {bucket}/rank0.pt.trace.json.gz: Forbidden")
    assert "you are not allowed to read this file" in err


@pytest.mark.parametrize("path", ["", "/rank0.pt.trace.json.gz"], ids=["folder", "file"])
def test_what_is_refused_only_when_it_is_read_is_an_error_too(capsys, bucket, path, monkeypatch):
    monkeypatch.setattr(Bucket, "_open", lambda *_, **_options: Lazy(b""))
    code, _, err = run(capsys, "report", bucket + path)
    assert code == 1
    assert err.startswith("error: cannot read bucket://traces/run/rank0.pt.trace.json.gz: Forbidden\nhint: ")


@pytest.mark.slow
def test_a_connection_that_breaks_leaves_one_rank_out(capsys, bucket):
    BROKEN.add("traces/run/rank1.pt.trace.json.gz")
    code, out, err = run(capsys, "report", bucket)
    assert (code, err) == (0, "")
    assert "1 file left out: rank1.pt.trace.json.gz" in out
    assert "Connection reset by peer" in " ".join(out.split())
    assert run(capsys, "report", bucket, "--strict")[0] == 1


def test_nothing_under_a_prefix_is_told(capsys, bucket):
    code, _, err = run(capsys, "report", bucket.replace("run", "nothing/"))
    assert code == 1
    assert err.startswith("error: cannot read bucket://traces/nothing/: no such file")
