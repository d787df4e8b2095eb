from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError, WouldOverwrite
from stepscope.store._run import traces_in, write_run


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


@pytest.mark.parametrize("traces", [None, "rank0", [1], ["../elsewhere"], ["a/b"]])
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
