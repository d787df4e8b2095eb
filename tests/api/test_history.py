from __future__ import annotations

import shutil

import pytest

from stepscope import load_run
from stepscope.api import history as asked
from stepscope.core.errors import StepscopeError


@pytest.fixture
def loader(examples):
    return examples / "demo-slow-loader"


def test_the_traces_of_a_run_are_one_digest(examples, tmp_path) -> None:
    head, is_new = asked.add_to_history(load_run(examples / "demo-cpu-2ranks"), str(tmp_path / "s"), commit="abc")
    assert (head.n_ranks, head.commit, is_new) == (2, "abc", True)
    assert len(head.paths) == 2
    series = asked.history(str(tmp_path / "s"), on_damage=pytest.fail)
    assert [each.key for each in series.heads] == [head.key]


@pytest.mark.slow
def test_recordings_on_both_sides_of_the_last_change_are_compared(loader, tmp_path) -> None:
    for name in ("normal0", "abnormal"):
        shutil.copytree(loader / name, tmp_path / name)
        asked.add_to_history(load_run(tmp_path / name), str(tmp_path / "s"))
    series = asked.history(str(tmp_path / "s"), on_damage=pytest.fail)
    assert asked.compare_last_change(series) is None
    one, two = sorted(series.heads, key=lambda head: head.step_ns)
    change = asked.series_of([one, two], lambda _: None)
    changed = type(series)((one, two), change.levels_ns, (_regression(),))
    comparison = asked.compare_last_change(changed)
    assert comparison is not None
    assert comparison.causes[0].category == "data_loading"
    shutil.rmtree(tmp_path / "abnormal")
    assert asked.compare_last_change(changed) is None


def _regression():
    from stepscope.comparison.history.series import Change

    return Change(1, "regression", 58e6, 88e6, 0.001)


def test_a_digest_that_cannot_be_read_is_said_and_left_out(examples, tmp_path) -> None:
    asked.add_to_history(load_run(examples / "demo-cpu-2ranks"), str(tmp_path / "s"))
    asked.add_to_history(load_run(examples / "demo-cpu-decode"), str(tmp_path / "s"))
    min((tmp_path / "s").glob("*.head.json")).write_text("{}")
    errors: list[StepscopeError] = []
    assert len(asked.history(str(tmp_path / "s"), on_damage=errors.append).heads) == 1
    assert len(errors) == 1


def test_an_empty_store_says_how_to_add_a_run(tmp_path) -> None:
    with pytest.raises(StepscopeError, match="there is no run in") as caught:
        asked.history(str(tmp_path), on_damage=pytest.fail)
    assert "stepscope history add RUN --to" in caught.value.hint
