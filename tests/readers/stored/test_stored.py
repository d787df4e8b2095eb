from __future__ import annotations

import json
import shutil

import pytest

import stepscope
from stepscope import readers
from stepscope.core.errors import CorruptInput, StepscopeError, UnsupportedVersion


@pytest.fixture(scope="module")
def run(examples, tmp_path_factory):
    target = tmp_path_factory.mktemp("stored") / "job"
    stepscope.export(examples / "demo-cpu-2ranks", "parquet", output=target)
    return target


def content(report):
    """All that a report says, without its commands, which name its path."""
    findings = [(f.title, f.details, f.value_ns, f.share_ratio) for f in report.findings]
    return report.headline, report.bars, findings, [t.frame.to_dicts() for t in report.tables], report.quality


@pytest.mark.slow
def test_a_stored_run_reports_what_its_files_do(run, examples):
    assert content(stepscope.report(run)) == content(stepscope.report(examples / "demo-cpu-2ranks"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rank1", "rank1/meta.json"])
def test_one_trace_is_opened_by_its_folder_or_its_description(run, name):
    trace = stepscope.load(run / name)
    assert trace.rank == 1
    assert trace.meta.path == str(run / "rank1")
    assert trace.spans.height == 22350


@pytest.mark.slow
def test_folders_stand_for_the_traces_in_them(run, tmp_path):
    both = [str(run / "rank0"), str(run / "rank1")]
    assert readers.expand([str(run)]) == both
    assert readers.expand([str(run / "rank*")]) == both
    assert readers.expand([both[1]]) == both[1:]
    moved = tmp_path / "moved"
    shutil.copytree(run / "rank0", moved / "deep" / "rank0")
    assert readers.expand([str(moved)]) == [str(moved / "deep" / "rank0")]


@pytest.mark.slow
def test_a_run_from_an_object_store_is_the_same(run):
    stepscope.export(run, "parquet", output="memory://stored-test/job")
    assert content(stepscope.report("memory://stored-test/job")) == content(stepscope.report(run))
    assert stepscope.load("memory://stored-test/job/rank1").rank == 1


@pytest.mark.slow
def test_a_run_that_lacks_a_trace_names_it(run, tmp_path):
    shutil.copytree(run, tmp_path / "job")
    shutil.rmtree(tmp_path / "job" / "rank0")
    report = stepscope.report(tmp_path / "job")
    assert any("1 file left out: rank0" in line for line in report.quality)


def test_another_version_is_refused(run, tmp_path):
    folder = tmp_path / "rank0"
    shutil.copytree(run / "rank0", folder)
    document = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**document, "version": 99}))
    with pytest.raises(UnsupportedVersion, match="store of version 99"):
        stepscope.load(folder)


def test_what_does_not_say_what_it_is_is_no_stored_trace(tmp_path):
    (tmp_path / "meta.json").write_text('["stepscope", {"stepscope": "trace"}]')
    with pytest.raises(CorruptInput, match="does not say what it stores"):
        stepscope.load(tmp_path / "meta.json")


def test_a_folder_without_a_description_is_no_trace(tmp_path):
    with pytest.raises(StepscopeError, match="no trace in"):
        stepscope.load(tmp_path)
