from __future__ import annotations

import cluster_jobs
import pytest

from stepscope.core.errors import CorruptInput, MissingExtra, StepscopeError, UnknownFormat, UnknownName
from stepscope.query import workers
from stepscope.query.workers import Plan, mapped

HERE, TWO = Plan(0, 10**8), Plan(2, 10**8)
each_way = pytest.mark.parametrize("how", [HERE, TWO], ids=["in this process", "in two"])


@pytest.fixture
def paths(tmp_path):
    made = []
    for i in range(7):
        (tmp_path / f"f{i}").write_bytes(b"x" * i)
        made.append(str(tmp_path / f"f{i}"))
    return made


def add(tmp_path, name):
    (tmp_path / name).write_bytes(b"xyz")
    return str(tmp_path / name)


@pytest.mark.slow
@each_way
def test_results_are_in_the_order_of_the_files(paths, how):
    told = []
    found = mapped(cluster_jobs.length, paths[::-1], how=how, on_done=lambda *n: told.append(n))
    assert found == [6, 5, 4, 3, 2, 1, 0]
    assert told == [(i, 7) for i in range(1, 8)]


@pytest.mark.slow
@each_way
def test_errors_stand_where_results_would(paths, how):
    found = mapped(cluster_jobs.length, [paths[1], "/nothing", paths[2]], how=how)
    assert (found[0], found[2]) == (1, 2)
    assert isinstance(found[1], StepscopeError)
    assert found[1].message == "cannot read /nothing: No such file or directory"


@each_way
def test_no_files_give_no_results(how):
    assert mapped(cluster_jobs.length, [], how=how) == []


@pytest.mark.slow
@each_way
def test_errors_come_back_as_what_they_were(how):
    (found,) = mapped(cluster_jobs.refused, ["span"], how=how)
    assert isinstance(found, UnknownName)
    assert (found.message, found.name, found.exit_code) == ("no table named 'span'", "span", 2)
    assert found.hint == "known: spans, steps"


@pytest.mark.slow
@each_way
def test_what_failed_is_tried_once_more_when_that_can_help(paths, tmp_path, how):
    names = ["busy", "broken", "odd"]
    busy, broken, odd = mapped(cluster_jobs.moody, [add(tmp_path, name) for name in names], how=how)
    assert busy == 3
    assert isinstance(broken, CorruptInput)
    assert isinstance(odd, UnknownFormat)
    assert paths


@pytest.mark.slow
def test_a_worker_that_dies_takes_one_file_with_it_which_is_read_again(paths, tmp_path):
    found = mapped(cluster_jobs.fragile, [*paths[:3], add(tmp_path, "mine"), *paths[3:]], how=TWO)
    assert found == [0, 1, 2, 3, 3, 4, 5, 6]


@pytest.mark.slow
def test_a_file_that_kills_every_worker_is_told_and_the_rest_read(paths, tmp_path):
    bomb = add(tmp_path, "bomb")
    found = mapped(cluster_jobs.fragile, [paths[1], bomb, *paths[2:]], how=TWO)
    assert [found[0], *found[2:]] == [1, 2, 3, 4, 5, 6]
    assert isinstance(found[1], StepscopeError)
    assert found[1].message == (
        f"the process that read {bomb} was killed (signal 9), as the system does when memory runs out, twice"
    )
    assert "--workers 1" in found[1].hint


@pytest.mark.slow
def test_a_fault_of_our_own_is_told_with_its_traceback_above(capfd):
    (found,) = mapped(cluster_jobs.faulty, ["x"], how=TWO)
    assert isinstance(found, StepscopeError)
    assert "ended with exit code 1; its messages are above, twice" in found.message
    assert capfd.readouterr().err.count("ValueError: invalid literal for int()") == 2


@pytest.mark.slow
def test_what_a_function_prints_is_no_result(paths, capfd):
    assert mapped(cluster_jobs.chatty, paths[:2], how=TWO) == [0, 1]
    assert "hello" in capfd.readouterr().err


def test_what_cannot_be_sent_is_done_here(paths):
    seen = []

    def local(path):
        seen.append(path)
        return len(path)

    assert mapped(local, paths, how=TWO) == [len(path) for path in paths]
    assert seen == paths


def test_dask_needs_its_package(paths, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr("stepscope.query.workers.dask_pool.import_module", missing)
    with pytest.raises(MissingExtra) as caught:
        mapped(cluster_jobs.length, paths, how=TWO, dask=workers.LOCAL)
    assert caught.value.hint == "install the extra cluster: pip install '.[cluster]' in a checkout of stepscope"
