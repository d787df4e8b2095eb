from __future__ import annotations

import pickle
import warnings
from pathlib import Path

import cluster_jobs
import pytest

import stepscope
from stepscope.core.errors import StepscopeError
from stepscope.query import workers
from stepscope.query.workers import Plan, mapped
from stepscope.query.workers.dask_pool import on_dask
from stepscope.query.workers.pool import Died
from stepscope.renderers import Screen, json

distributed = pytest.importorskip("distributed", reason="needs the extra `cluster`")
pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's own
TWO = Plan(2, 10**8)


@pytest.fixture(scope="module")
def scheduler():
    """The address of a cluster of two worker processes."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, memory_limit=None
    ) as running:
        yield running.scheduler_address


@pytest.mark.slow
def test_results_are_those_of_this_process(scheduler, tmp_path):
    paths = [str(tmp_path / f"f{i}") for i in range(5)]
    for i, path in enumerate(paths[:4]):
        Path(path).write_bytes(b"x" * i)
    here = mapped(cluster_jobs.length, paths, how=Plan(0, 0))
    there = mapped(cluster_jobs.length, paths, how=TWO, dask=scheduler)
    assert there[:4] == here[:4] == [0, 1, 2, 3]
    assert isinstance(there[4], StepscopeError)
    assert there[4].message == here[4].message


@pytest.mark.slow
def test_a_report_is_the_same_on_a_cluster_of_its_own(examples):
    run = stepscope.load_run([examples / "demo-cpu-2ranks", examples / "demo-cpu-decode"])
    told = []
    here = stepscope.report(run, workers=0)
    there = stepscope.report(run, dask="local", progress=lambda *n: told.append(n))
    render = json.RENDERER.report
    assert render is not None
    assert render(there, Screen()) == render(here, Screen())
    assert told == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_file_that_kills_workers_is_told_and_the_rest_read(tmp_path):
    paths = [str(tmp_path / name) for name in ("one", "bomb", "two")]
    for path in paths:
        Path(path).write_bytes(b"xyz")
    found = mapped(cluster_jobs.fragile, paths, how=TWO, dask=workers.LOCAL)
    assert (found[0], found[2]) == (3, 3)
    assert isinstance(found[1], StepscopeError)
    assert "bomb was killed" in found[1].message


@pytest.mark.slow
def test_a_worker_that_dies_once_changes_nothing(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(b"xyz")
    assert mapped(cluster_jobs.fragile, [str(path)], how=TWO, dask=workers.LOCAL) == [3]


@pytest.mark.slow
@pytest.mark.usefixtures("scheduler")
def test_two_clusters_of_this_machine_do_not_get_in_each_others_way(tmp_path):
    path = tmp_path / "mine"
    path.write_bytes(b"xyz")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert mapped(cluster_jobs.length, [str(path)], how=TWO, dask=workers.LOCAL) == [3]
    assert not [one for one in warned if "already in use" in str(one.message)]


@pytest.mark.slow
def test_a_fault_of_our_own_is_raised(scheduler):
    with pytest.raises(ValueError, match="invalid literal"):
        list(on_dask(pickle.dumps(cluster_jobs.faulty), [(0, "x")], address=scheduler, plan=TWO))


@pytest.mark.slow
def test_nobody_at_an_address_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr("stepscope.query.workers.dask_pool._TIMEOUT_S", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        with pytest.raises(StepscopeError, match=f"no Dask scheduler at {address}"):
            mapped(cluster_jobs.length, ["x"], how=TWO, dask=address)
    with pytest.raises(StepscopeError, match="there is no scheduler's file"):
        mapped(cluster_jobs.length, ["x"], how=TWO, dask=str(tmp_path / "scheduler.json"))


@pytest.mark.slow
def test_a_scheduler_may_be_named_by_its_file(scheduler, tmp_path):
    import json as plain

    file = tmp_path / "scheduler.json"
    file.write_text(plain.dumps({"type": "Scheduler", "id": "x", "address": scheduler}))
    assert mapped(cluster_jobs.length, [str(file)], how=TWO, dask=str(file)) == [file.stat().st_size]
    assert Died(-9).exit_code == -9
