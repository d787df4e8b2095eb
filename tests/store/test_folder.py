from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace

from stepscope.core import files, schema
from stepscope.core.errors import CorruptInput, StepscopeError, UnsupportedVersion, WouldOverwrite
from stepscope.core.result_tables import ATTRIBUTION, CYCLES
from stepscope.core.schema import TABLES
from stepscope.core.table import Column, StoredTables, Table
from stepscope.core.trace import Meta, Result, Results, Trace
from stepscope.store import _folder
from stepscope.store._folder import (
    read_document,
    read_folder,
    schema_fingerprint,
    storable,
    traces_in,
    write_folder,
    write_run,
)


def stored(trace, folder):
    folder.mkdir()
    write_folder(trace, str(folder))
    return folder


def reopened(folder, label="x.json"):
    document = read_document(str(folder), kind="trace")
    assert document is not None
    return read_folder(str(folder), document, label=label)


def rewrite(folder, **changes):
    path = folder / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_is_read_is_what_was_written(full, tmp_path):
    again = reopened(stored(full, tmp_path / "kept"), full.meta.path)
    assert again.meta == full.meta
    assert list(again.tables) == list(full.tables)
    for name, frame in full.tables.items():
        assert again.table(name).equals(frame)
        assert again.table(name).schema == frame.schema


def test_the_size_that_is_returned_is_that_of_the_files(full, tmp_path):
    (tmp_path / "kept").mkdir()
    n_bytes = write_folder(full, str(tmp_path / "kept"))
    assert n_bytes == sum(path.stat().st_size for path in (tmp_path / "kept").iterdir())


def test_tables_are_read_when_they_are_asked_for(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    again = reopened(folder)
    (folder / "ops.parquet").unlink()
    assert again.spans.height == again.heights()["spans"] == 2
    assert again.meta.path == "x.json"
    with pytest.raises(CorruptInput, match=r"ops\.parquet"):
        _ = again.ops


def test_results_come_back_as_results(tmp_path):
    frames = {table.name: Result(table, table.empty()) for table in (CYCLES, ATTRIBUTION)}
    trace = Results(Meta("perf_data.csv", "latencyprism"), {"issues": TABLES["issues"].empty()}, frames)
    again = reopened(stored(trace, tmp_path / "kept"))
    assert isinstance(again, Results)
    assert set(again.results) == {"cycles", "attribution"}
    assert again.result("cycles").equals(CYCLES.empty())


def test_what_no_schema_knows_is_not_stored(full, tmp_path):
    odd = Trace(full.meta, {"novel": full.spans})
    other = Table("cycles", "of another program", (Column("n", pl.Int64(), "a number"),))
    strange = Results(full.meta, {}, {"cycles": Result(other, other.empty())})
    assert [storable(trace) for trace in (full, odd, strange)] == [True, False, False]
    with pytest.raises(StepscopeError, match="cannot be stored"):
        write_folder(odd, str(tmp_path))


def test_frames_in_another_order_are_put_into_that_of_the_schema(full, tmp_path):
    turned = full.with_tables(steps=full.steps.select(reversed(full.steps.columns)))
    assert reopened(stored(turned, tmp_path / "kept")).steps.equals(full.steps)


def test_another_version_is_refused(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    for version in (0, 1, "2", None):
        rewrite(folder, version=version)
        with pytest.raises(UnsupportedVersion, match="of version") as caught:
            reopened(folder)
        assert "export it again" in caught.value.hint


def test_another_schema_is_refused(full, tmp_path, monkeypatch):
    folder = stored(full, tmp_path / "kept")
    before = schema_fingerprint()
    wider = Table("steps", "", (*schema.STEPS.columns, Column("colour", pl.String(), "new")))
    monkeypatch.setattr(_folder, "_KNOWN", {**_folder._KNOWN, "steps": wider})
    schema_fingerprint.cache_clear()
    try:
        assert schema_fingerprint() != before
        with pytest.raises(UnsupportedVersion, match="other columns"):
            reopened(folder)
    finally:
        schema_fingerprint.cache_clear()


def test_categories_of_an_enum_belong_to_the_fingerprint(monkeypatch):
    before = schema_fingerprint()
    columns = [Column(c.name, pl.Enum(["a"]) if c.name == "source" else c.dtype, c.doc) for c in schema.STEPS.columns]
    monkeypatch.setattr(_folder, "_KNOWN", {**_folder._KNOWN, "steps": Table("steps", "", tuple(columns))})
    schema_fingerprint.cache_clear()
    assert schema_fingerprint() != before
    schema_fingerprint.cache_clear()


@pytest.mark.parametrize("cut", [1, 500])
def test_a_file_that_was_cut_is_refused_before_anything_is_read(full, tmp_path, cut):
    folder = stored(full, tmp_path / "kept")
    path = folder / "spans.parquet"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(CorruptInput, match="was truncated or changed"):
        reopened(folder)


def test_a_file_that_is_gone_is_named(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    (folder / "spans.parquet").unlink()
    with pytest.raises(CorruptInput, match="is missing") as caught:
        reopened(folder)
    assert caught.value.path.endswith("spans.parquet")


def test_damage_within_a_file_is_no_traceback(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    path = folder / "spans.parquet"
    path.write_bytes(b"\0" * path.stat().st_size)
    again = reopened(folder)
    with pytest.raises(CorruptInput, match=r"spans\.parquet: it is not what was written"):
        _ = again.spans
    with pytest.raises(CorruptInput, match=r"spans\.parquet: it is not what was written"):
        again.sql("SELECT count(*) FROM spans")


def test_another_table_under_the_name_is_not_taken(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    (folder / "spans.parquet").write_bytes((folder / "ops.parquet").read_bytes())
    document = json.loads((folder / "meta.json").read_text())
    document["tables"]["spans"] = document["tables"]["ops"]
    rewrite(folder, tables=document["tables"])
    with pytest.raises(CorruptInput, match="the column track_id is missing"):
        _ = reopened(folder).spans


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"meta": {"path": "x"}}, "missing required field `format`"),
        ({"tables": {"novel": {"n_rows": 2, "size_bytes": 1, "crc32": 0}}}, "names 'novel', which is no table"),
        ({"tables": {"cycles": {"n_rows": 2, "size_bytes": 1, "crc32": 0}}}, "names 'cycles', which is no table"),
        ({"tables": {"spans": {"n_rows": 2}}}, "missing required field `size_bytes`"),
        ({"tables": {"spans": {"n_rows": -1, "size_bytes": 1}}}, "`int` >= 0"),
        ({"tables": [1]}, "Expected `object`, got `array`"),
        ({"\ud800n_by": 1}, "surrogates not allowed"),
    ],
)
def test_a_description_that_lacks_what_it_should_say_is_damage(full, tmp_path, changes, reason):
    folder = stored(full, tmp_path / "kept")
    rewrite(folder, **changes)
    with pytest.raises(CorruptInput, match=reason) as caught:
        reopened(folder)
    assert caught.value.path.endswith("meta.json")


@pytest.mark.parametrize(
    ("name", "value"),
    [("rank", 2**31), ("rank", -1), ("rank", "3"), ("world_size", 1.5), ("origin_unix_ns", 2**63), ("facts", {"a": 1}),
     ("host", ["node"]), ("decimal_times", 1), ("novel", 1)],
)  # fmt: skip
def test_a_fact_that_no_reader_states_is_damage(full, tmp_path, name, value):
    folder = stored(full, tmp_path / "kept")
    rewrite(folder, meta=json.loads((folder / "meta.json").read_text())["meta"] | {name: value})
    with pytest.raises(CorruptInput, match=name):
        reopened(folder)


def test_a_description_nested_without_end_is_damage(tmp_path):
    (tmp_path / "meta.json").write_text('{"stepscope": "trace", "x": ' + "[" * 100_000)
    with pytest.raises(CorruptInput, match="not valid JSON"):
        read_document(str(tmp_path), kind="trace")


def test_rows_that_no_file_of_that_size_has_are_not_read(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    tables = json.loads((folder / "meta.json").read_text())["tables"]
    tables["spans"]["n_rows"] = 10**9
    rewrite(folder, tables=tables)
    with pytest.raises(CorruptInput, match=r"1,000,000,000 rows cannot be in"):
        reopened(folder)


@pytest.mark.parametrize("n_rows", [1, 3])
def test_another_number_of_rows_than_was_written_is_damage(full, tmp_path, n_rows):
    folder = stored(full, tmp_path / "kept")
    tables = json.loads((folder / "meta.json").read_text())["tables"]
    tables["counters"]["n_rows"] = n_rows
    rewrite(folder, tables=tables)
    with pytest.raises(CorruptInput, match=rf"counters\.parquet: it does not have the {n_rows} rows"):
        _ = reopened(folder).counters


def test_a_value_that_cannot_be_is_refused_with_its_file_column_and_row(full, tmp_path):
    again = stored(full.with_tables(spans=full.spans.with_columns(parent_id=pl.lit(1, pl.UInt32))), tmp_path / "kept")
    with pytest.raises(CorruptInput, match=r"spans\.parquet: parent_id in row 0 is 1: ") as caught:
        _ = reopened(again).spans
    assert "export it again" in caught.value.hint


def test_rows_in_another_order_are_sorted(full, tmp_path):
    mixed = full.with_tables(spans=full.spans.reverse(), ops=full.ops.reverse())
    again = reopened(stored(mixed, tmp_path / "kept"))
    assert again.spans.equals(full.spans)
    assert again.ops.equals(full.ops)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_not_opened(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    for make in (Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (folder / "ops.parquet").unlink(missing_ok=True)
        make(folder / "ops.parquet")
        with pytest.raises(StepscopeError, match=r"ops\.parquet"):
            reopened(folder)
        if (folder / "ops.parquet").is_dir():
            (folder / "ops.parquet").rmdir()
    (folder / "meta.json").unlink()
    os.mkfifo(folder / "meta.json")
    with pytest.raises(StepscopeError, match="a pipe or a device"):
        reopened(folder)


def test_only_our_own_descriptions_count(tmp_path):
    path = tmp_path / "meta.json"
    assert read_document(str(tmp_path), kind="trace") is None
    for text in ("{}", '{"stepscope": "run"}', '["stepscope"]'):
        path.write_text(text)
        assert read_document(str(tmp_path), kind="trace") is None
    path.write_text('{"stepscope": "trace", ')
    with pytest.raises(CorruptInput, match="not valid JSON"):
        read_document(str(tmp_path), kind="trace")
    path.write_text('["stepscope", {"stepscope": "trace"}]')
    assert read_document(str(tmp_path), kind="trace") is None


def test_an_object_store_takes_and_gives_the_same(full):
    url = "memory://folder-test/kept"
    write_folder(full, url)
    again = reopened(url)
    assert isinstance(again.tables, StoredTables)
    assert again.spans.equals(full.spans)
    assert again.tables.file("spans") == f"{url}/spans.parquet"


def test_meta_json_comes_last_and_whole(full, tmp_path):
    folder = stored(full, tmp_path / "kept")
    assert not list(Path(folder).glob("*.part"))
    newest = max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert newest.name == "meta.json"


def named(full, n=2):
    return [(f"rank{i}", replace(full, meta=replace(full.meta, rank=i))) for i in range(n)]


def test_a_run_is_a_folder_for_each_trace(full, tmp_path):
    target = tmp_path / "kept"
    assert write_run(named(full), str(target)) == 2
    assert sorted(path.name for path in target.iterdir()) == ["meta.json", "rank0", "rank1"]
    assert traces_in(str(target)) == [str(target / "rank0"), str(target / "rank1")]
    assert traces_in(str(target / "rank0")) == [str(target / "rank0")]
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_other_folders_hold_no_stored_traces(tmp_path):
    assert traces_in(str(tmp_path)) == []
    (tmp_path / "meta.json").write_text('{"name": "of another program"}')
    assert traces_in(str(tmp_path)) == []


@pytest.mark.parametrize("traces", [None, "rank0", [1], ["../elsewhere"], ["a/b"], [".."], [""]])
def test_a_run_may_only_name_folders_in_it(tmp_path, traces):
    (tmp_path / "meta.json").write_text(json.dumps({"stepscope": "run", "traces": traces}))
    with pytest.raises(CorruptInput, match="does not name its traces"):
        traces_in(str(tmp_path))


def test_what_is_there_is_replaced_only_if_told_and_if_it_is_a_store(full, tmp_path):
    target = tmp_path / "kept"
    write_run(named(full, 3), str(target))
    with pytest.raises(WouldOverwrite):
        write_run(named(full), str(target))
    write_run(named(full), str(target), force=True)
    assert len(traces_in(str(target))) == 2
    other = tmp_path / "precious"
    other.mkdir()
    (other / "thesis.tex").touch()
    with pytest.raises(StepscopeError, match="is not replaced"):
        write_run(named(full), str(other), force=True)
    assert (other / "thesis.tex").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "precious"]


def test_what_fails_in_the_middle_leaves_nothing(full, tmp_path):
    def failing():
        yield from named(full, 1)
        raise StepscopeError("no more")

    with pytest.raises(StepscopeError, match="no more"):
        write_run(failing(), str(tmp_path / "kept"))
    assert list(tmp_path.iterdir()) == []


def test_a_replaced_folder_survives_a_failure(full, tmp_path):
    write_run(named(full), str(tmp_path / "kept"))

    def failing():
        raise StepscopeError("none")
        yield

    with pytest.raises(StepscopeError, match="none"):
        write_run(failing(), str(tmp_path / "kept"), force=True)
    assert len(traces_in(str(tmp_path / "kept"))) == 2


def test_a_place_that_cannot_be_written_to_is_told(full, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StepscopeError, match="cannot write"):
        write_run(named(full), str(tmp_path / "file" / "kept"))


def test_below_a_url_the_description_comes_last(full):
    url = "memory://run-test/kept"
    written = []
    assert write_run(((name, written.append(name) or trace) for name, trace in named(full)), url) == 2
    assert traces_in(url) == [f"{url}/rank0", f"{url}/rank1"]
    with pytest.raises(WouldOverwrite):
        write_run(named(full), url)
    write_run(named(full, 1), url, force=True)
    assert traces_in(url) == [f"{url}/rank0"]
    assert not files.exists(f"{url}/rank1")


EXPORT = """
import sys
from stepscope.store import read_document, read_folder, write_run
trace = read_folder(sys.argv[1], read_document(sys.argv[1], kind="trace"), label="x")
def slowly():
    for i in range(200):
        if i == 3:
            print("writing", flush=True)
        yield f"rank{i}", trace
write_run(slowly(), sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_export_leaves_nothing_under_its_name(full, tmp_path):
    write_run(named(full, 1), str(tmp_path / "source"))
    target = tmp_path / "kept"
    command = [sys.executable, "-c", EXPORT, str(tmp_path / "source" / "rank0"), str(target)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    time.sleep(0.05)
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    assert not target.exists()
