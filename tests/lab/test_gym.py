"""The gymnasium's faults and its scores."""

from __future__ import annotations

import argparse
import gc
import json
import random
from dataclasses import replace
from pathlib import Path

import gym
import gym_faults
import gym_jobs
import gym_pack
import gym_scores
import pytest
from gym import Run
from gym_scores import Answer

from stepscope.comparison.model import CATEGORIES


def answer(fault, change, *causes, job="image"):
    return Answer(Run(job, fault, 2), "n0 n1", "different", change, 1e6, tuple((name, 5e5) for name in causes))


def test_every_fault_is_one_of_its_jobs():
    assert set(gym.FAULTS) <= set(gym_faults.HARD)
    assert set(gym.STEPS) == set(gym_jobs.JOBS)


def test_severities_are_in_order():
    assert all(a < b < c or a > b > c for a, b, c in gym_faults.HARD.values())


@pytest.mark.parametrize(
    ("found", "named", "among_two"),
    [
        (answer("fsync", 0.5, "disk_io", "slow_tail"), True, True),
        (answer("fsync", 0.5, "slow_tail", "disk_io"), False, True),
        (answer("fsync", 0.5), False, False),
    ],
)
def test_the_first_cause_counts_and_the_first_two(found, named, among_two):
    assert (found.is_named(), found.is_named(2)) == (named, among_two)


def test_contention_is_the_right_answer_only_under_load():
    assert not answer("load", 0.2, "cpu_contention").is_accused
    assert answer("load", 0.2, "slow_tail").is_accused
    assert answer("none", 0.2, "cpu_contention").is_accused


def test_a_healthy_run_is_loaded_if_the_kernel_says_that_tasks_wait_for_cores_more():
    calm = answer("none", 0.2, "cpu_contention")
    assert replace(calm, pressure=0.05).is_accused
    assert not replace(calm, pressure=0.3).is_accused
    assert replace(answer("none", 0.2, "host_overhead"), pressure=0.3).is_accused


def test_what_is_missing_takes_as_long_as_what_is_there(tmp_path):
    (tmp_path / "pool.none.0.took_s").write_text("7.0")
    runs = [Run("pool", "none", 1), Run("pool", "fsync", 2), Run("jax", "none", 0)]
    assert gym.seconds_of(tmp_path, runs) == 2 * 7.0 + gym.USUAL_S["jax"]


def test_recording_goes_on_with_what_is_not_there(tmp_path):
    given = argparse.Namespace(out=tmp_path, severities=[2], seed=0, only=["pool"])
    n = len(gym.missing(given))
    (tmp_path / "pool.none.0").mkdir()
    (tmp_path / "pool.none.0" / "meta.json").write_text('{"exit_code": 0}')
    assert len(gym.missing(given)) == n - 1


def test_the_tables_count_by_size_and_list_what_is_not_right():
    rows = [
        answer("fsync", 0.5, "disk_io"),
        answer("garbage", 0.2, "slow_tail"),
        answer("lock", 0.05),
        answer("layout", 0.01),  # costs nothing, and is no miss
        answer("none", 0.0),
    ]
    text = gym_scores.page(rows).splitlines()
    assert "| image | 4 | 1 of 2 (50 %) | 1 of 2 (50 %) | 0 of 1 (0 %) | 0 of 1 (0 %) | 0 of 0 |" in text
    assert "| fsync | disk_io | 1 | 1 of 1 (100 %) | 1 of 1 (100 %) | 0 of 0 |" in text
    assert "| image: garbage | 2 | +20% | python_gc | slow_tail |" in text
    assert text[-1] == "| image: lock | 2 | +5% | lock_contention | different |"


def test_of_two_faults_both_must_be_named_and_each_with_about_what_it_takes():
    rows = [
        answer("fsync", 0.5, "disk_io"),
        answer("layout", 2.0, "layout_copies"),
        answer("layout+fsync", 2.5, "layout_copies", "disk_io"),
        answer("lock+layout", 2.5, "layout_copies"),
        answer("sleep", 0.01),
        answer("sleep+fsync", 0.5, "disk_io"),
    ]
    text = gym_scores.page(rows)
    assert "| image: layout+fsync | +250% | 0.5 of 2.0 ms | 0.5 of 0.5 ms | layout_copies, disk_io |" in text
    # What a lock adds alone is unknown, and the sleep alone adds next to nothing.
    assert "| image: lock+layout * |" in text
    assert "Both named: 1 of 1 (100 %) where each takes 3% or more, 0 of 2 (0 %) of others (*)." in text
    assert "Parts within a third: 1 of 2 (50 %) and 1 of 3 (33 %)." in text


def test_the_part_of_a_fault_is_set_beside_what_it_took_by_the_clock_of_the_job():
    alone = answer("fsync", 2.0, "disk_io")
    both = replace(answer("layout+fsync", 0.9, "disk_io", "layout_copies"), costs=(("fsync", 4e5), ("layout", 9e5)))
    text = gym_scores.page([alone, both])
    assert "| image: layout+fsync | +90% | 0.5 of 0.9 ms | 0.5 of 0.4 ms |" in text
    assert "Parts within a third: 1 of 2 (50 %)" in text


def test_a_fault_has_no_more_effect_than_it_took_nor_than_the_step_changed():
    slow_machine = replace(answer("fsync", 0.3), costs=(("fsync", 4e4),))
    hidden = replace(answer("fsync", 0.02), costs=(("fsync", 4e5),))
    assert (slow_machine.effect, hidden.effect, answer("fsync", 0.3).effect) == (0.04, 0.02, 0.3)
    text = gym_scores.page([slow_machine])
    assert "| image | 1 | 0 of 0 | 0 of 0 | 0 of 1 (0 %) |" in text
    assert "| image: fsync | 2 | +30% (+4%) | disk_io | different |" in text


def test_a_job_times_its_faults_and_counts_collections_for_garbage_alone():
    trouble = gym_faults.Trouble(["garbage", "logging", "slow_tail"], 1, 0)
    trouble.file.close()
    trouble.text.close()
    for _ in range(30):
        with trouble.timed("logging"):
            gc.collect()
        trouble.after_step()
    gc.callbacks.remove(trouble._collects)
    costs = trouble.costs()
    assert costs["garbage"] * 30 >= trouble.collected_ns > 0
    assert 0 < costs["logging"] < costs["garbage"]


def test_the_first_recordings_have_all_jobs_and_a_severity_is_whole_before_the_next_begins():
    order = gym.in_order([2, 1], 0)
    assert {run.job for run in order[: len(gym.STEPS)]} == set(gym.STEPS)
    assert sorted(order, key=lambda run: run.name) == sorted(
        [*gym.healthy(), *gym.faulty([2, 1]), *gym.mixed()], key=lambda run: run.name
    )
    severities = [run.number for run in order if not run.is_healthy]
    assert severities == sorted(severities, reverse=True)


def test_a_trace_survives_packing_but_for_what_nothing_reads():
    chance = random.Random(0)
    spans = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{i % 3}", "pid": 7, "tid": 7, "ts": 5e12 + 10.0 * i,
         "dur": round(chance.uniform(0.1, 9.0), 1), "args": {"Input Dims": [[i % 2]], "External id": i}}
        for i in range(20)
    ]  # fmt: skip
    other = {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}}
    arrow = {"ph": "s", "cat": "fwdbwd", "name": "fwdbwd", "pid": 7, "tid": 7, "ts": 1.0, "id": 1}
    text = json.dumps({"baseTimeNanoseconds": 3, "traceEvents": [other, arrow, *spans]}).encode()
    back = json.loads(gym_pack.unpacked_trace(gym_pack.packed_trace(text)))
    for span in spans:
        del span["args"]["External id"]
    assert back == {"baseTimeNanoseconds": 3, "traceEvents": [other, *spans]}


def test_paths_keep_what_follows_the_libraries_folder_and_lose_the_rest():
    text = "F\t/home/me/v/lib/python3.11/site-packages/torch/nn.py /home/me/lab/gym_jobs.py /proc/1/io 1/2/3"
    assert (
        gym_pack.without_places(text)
        == "F\t/lib/python3.11/site-packages/torch/nn.py /job/gym_jobs.py /proc/1/io 1/2/3"
    )


def test_recordings_come_back_from_one_file(tmp_path):
    folder = tmp_path / "made" / "image.none.0"
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text('{"exit_code": 0}')
    (folder / "pid7.steps").write_bytes(b"STEPEND1")
    gym.costs_of(folder.parent, folder.name).write_text('{"fsync": 5.0}')
    gym_pack.pack([folder], tmp_path / "image.tar.xz")
    out = gym.unpacked(tmp_path)
    assert gym.costs_of(out, "image.none.0").read_text() == '{"fsync": 5.0}'
    assert {path.relative_to(out) for path in out.rglob("*.*") if path.is_file()} == {
        Path("image.none.0/meta.json"), Path("image.none.0/pid7.steps"), Path("image.none.0.costs")
    }  # fmt: skip


@pytest.mark.parametrize("fault", gym.FAULTS)
def test_each_fault_has_a_name_that_compare_can_say(fault):
    assert any(cause in CATEGORIES for cause in gym.FAULTS[fault].causes)


def test_recordings_that_cannot_be_compared_are_no_healthy_ones():
    refused = Answer(Run("server", "none", 1), "n0", "failed: cycles are calls of another range", 0.0, 0.0, ())
    assert "| server | 0 | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 | 0 of 0 |" in gym_scores.page([refused]).splitlines()
