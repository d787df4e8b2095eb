from __future__ import annotations

import pytest

from stepscope.exports.tensorboard._workers import Worker, by_span, workers_of


def named(*paths: str, ranks: tuple[int | None, ...] | None = None) -> list[tuple[str, str]]:
    known = ranks or (None,) * len(paths)
    return [(w.worker, w.span) for w in workers_of(list(zip(paths, known, strict=True)))]


def test_a_name_of_the_recorder_says_worker_and_span():
    assert named(
        "run/host_12.1623143566756.pt.trace.json",
        "run/host_12.1623143089861.pt.trace.json.gz",
        "run/host_13.1623143089861.pt.trace.json.gz",
        "run/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    ) == [("host_12", "2"), ("host_12", "1"), ("host_13", "1"), ("rank-34.Jul_15_10_52_41", "1")]


def test_times_are_sorted_as_text():
    assert named("w.9.pt.trace.json", "w.10.pt.trace.json", "w.1.pt.trace.json") == [("w", "3"), ("w", "2"), ("w", "1")]


def test_without_a_time_the_span_is_the_default():
    assert named("w.pt.trace.json", "w.5.pt.trace.json.gz") == [("w", "default"), ("w", "1")]


def test_what_the_recorder_calls_a_worker_is_not_overridden_by_its_rank():
    assert named("a_0.pt.trace.json", "a_1.pt.trace.json", ranks=(3, 4)) == [("a_0", "default"), ("a_1", "default")]


def test_other_files_are_called_by_their_rank_or_else_by_their_name():
    assert named("x/sampled_rank-0.json.gz", "x/sampled_rank-1.json.gz", ranks=(0, 1)) == [
        ("rank_0", "default"), ("rank_1", "default"),
    ]  # fmt: skip
    assert named("x/eager_trace.json.gz", r"x\train.json", "y/step.zip", "z/plain") == [
        ("eager", "default"), ("train", "default"), ("step", "default"), ("plain", "default"),
    ]  # fmt: skip


@pytest.mark.parametrize("path", [".json.gz", "a/trace.json", "trace"])
def test_there_is_always_a_name(path):
    assert all(worker for worker, _ in named(path))


def test_ranks_that_are_not_unique_give_way_to_names():
    assert named("rank_0_epoch_1.json", "rank_0_epoch_2.json", "rank_1.json", ranks=(0, 0, 1)) == [
        ("rank_0_epoch_1", "default"), ("rank_0_epoch_2", "default"), ("rank_1", "default"),
    ]  # fmt: skip


def test_folders_tell_apart_what_would_be_the_same():
    assert named("jobs/a/w.1.pt.trace.json", "jobs/a/w.2.pt.trace.json", "jobs/b/w.1.pt.trace.json") == [
        ("a/w", "1"), ("a/w", "2"), ("b/w", "1"),
    ]  # fmt: skip
    assert named("1/a/trace.json", "2/a/trace.json", "2/b/trace.json") == [
        ("1/a/trace", "default"), ("2/a/trace", "default"), ("b/trace", "default"),
    ]  # fmt: skip


def test_a_file_that_is_given_twice_is_two_workers():
    assert named("a/w.1.pt.trace.json", "a/w.1.pt.trace.json") == [("a/w", "1"), ("a/w (2)", "1")]


def test_workers_of_one_span_are_together_in_order_of_their_names():
    workers = [Worker("b", "2"), Worker("b", "1"), Worker("a", "1"), Worker("c", "default")]
    assert by_span(workers) == {"1": [2, 1], "2": [0], "default": [3]}
    assert workers_of([]) == []
