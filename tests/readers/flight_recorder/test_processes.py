from __future__ import annotations

import json

import pytest
from dumps import call, dump, write

import stepscope
from stepscope.core.errors import CorruptInput
from stepscope.readers import expand, open_trace

LOADING = [("clock_nanosleep", "libc.so.6", 0), ("load", "/job/train.py", 8), ("<module>", "/job/train.py", 15)]
REDUCING = [
    ("0x7f21966a3f16", "libc.so.6", 0), ("pthread_cond_wait", "libc.so.6", 0),
    ("c10d::Reducer::finalize_backward", "libtorch_cpu.so", 0),
    ("backward", "/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", 395),
    ("<module>", "/job/train.py", 16),
]  # fmt: skip
SYNCHRONISING = [("cudaStreamSynchronize", "libcudart.so.12", 0), ("<module>", "/job/train.py", 17)]


def process(rank, frames, **more):
    """A process as `stepscope hang` writes it."""
    frames = [{"name": name, "filename": file, "line": line} for name, file, line in frames]
    pid = 100 + (rank or 0)
    threads = [{"thread_name": "pt_nccl", "os_thread_id": 7, "frames": []},
               {"thread_name": "MainThread", "os_thread_id": pid, "frames": frames}]  # fmt: skip
    facts = {"pid": pid, "rank": rank, "world_size": 3, "command": "python train.py", "state": "S",
             "wait_channel": "futex_wait", "cores_used": 0.0, "threads": threads, "problem": None}  # fmt: skip
    return {**facts, **more}


def written(folder, *processes):
    """The file in a folder. Returns its path."""
    document = {"schema": "stepscope.processes/1", "host": "node7", "taken_unix_ns": 10**18, "processes": processes}
    path = folder / "processes.json"
    path.write_text(json.dumps(document, indent=1))
    return str(path)


@pytest.fixture
def path(tmp_path):
    return written(tmp_path, process(0, REDUCING), process(1, LOADING, state="R", cores_used=0.5),
                   process(2, SYNCHRONISING))  # fmt: skip


def test_each_process_has_its_state_and_what_its_main_thread_stands_in(path):
    trace = open_trace(path)
    rows = trace.processes.to_dicts()
    assert [(row["rank"], row["state"], row["awaits"], row["cores_used"]) for row in rows] == [
        (0, "sleeping", "collective", 0.0), (1, "running", None, 0.5), (2, "sleeping", "device", 0.0),
    ]  # fmt: skip
    assert [row["function"] for row in rows] == [
        "c10d::Reducer::finalize_backward", "clock_nanosleep", "cudaStreamSynchronize",
    ]  # fmt: skip
    assert [row["line"] for row in rows] == [
        "<module> (/job/train.py:16)", "load (/job/train.py:8)", "<module> (/job/train.py:17)",
    ]  # fmt: skip
    assert trace.stacks["frames"][1].to_list()[0] == "<module> (/job/train.py:15)"
    assert trace.meta.format == "processes"


def test_a_call_into_the_distributed_package_is_a_collective(tmp_path):
    frames = [("wait", "/x/torch/distributed/distributed_c10d.py", 3), ("step", "/job/train.py", 4)]
    assert open_trace(written(tmp_path, process(0, frames))).processes["awaits"].to_list() == ["collective"]


def test_beside_dumps_they_are_one_trace(tmp_path, path):
    dump = {"version": "2.10", "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
            "pg_status": {}, "entries": []}  # fmt: skip
    for rank in range(3):
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    assert len(stepscope.load_run(tmp_path).paths) == len(expand([path, str(tmp_path / "nccl_trace_rank_0")])) == 1
    trace = open_trace(str(tmp_path / "nccl_trace_rank_0"))
    assert trace.group_status.height == trace.processes.height == 3
    assert trace.stacks.height == 3
    assert trace.processes["stack_id"].to_list() == trace.stacks["stack_id"].to_list()


def test_beside_dumps_a_broken_file_is_counted(tmp_path):
    (tmp_path / "processes.json").write_text('{"schema": "stepscope.processes/1", "processes": 5}')
    dump = {"pg_config": {"0": {"name": "0", "desc": "", "ranks": "[0]"}}, "pg_status": {}, "entries": []}
    (tmp_path / "nccl_trace_rank_0").write_text(json.dumps(dump))
    assert "unreadable_processes" in open_trace(str(tmp_path / "nccl_trace_rank_0")).issues["code"].to_list()


@pytest.mark.parametrize("more", ['"processes": 5}', '"processes": [{}]}', '"processes": ['])
def test_anything_else_is_refused_with_what_to_do(tmp_path, more):
    path = tmp_path / "processes.json"
    path.write_text('{"schema": "stepscope.processes/1", ' + more)
    with pytest.raises(CorruptInput, match="no processes of a job") as caught:
        open_trace(str(path))
    assert "stepscope hang" in caught.value.hint


def test_numbers_that_cannot_be_are_unknown(tmp_path):
    odd = process(None, [], world_size=-1, cores_used=1e300, state="?", pid=-5)
    (row,) = open_trace(written(tmp_path, odd)).processes.to_dicts()
    assert [row[name] for name in ("rank", "world_size", "cores_used", "state", "stack_id")] == [None] * 5


def test_the_report_names_the_rank_that_is_elsewhere(path):
    report = stepscope.report(path)
    assert report.headline.startswith("Hung: rank 1 to blame · 3 processes asked · 3 of 3 ranks")
    (finding,) = report.findings
    assert finding.title == "Rank 1 never arrived (80 % sure)"
    assert "it was in clock_nanosleep at load (/job/train.py:8)" in finding.details[1]
    assert report.more["hang"]["culprits"][0]["stack"][-1] == "clock_nanosleep (libc.so.6:0)"
    assert report.more["hang"]["innocent"] == [0, 2]


def test_without_ranks_the_report_lists_what_each_process_does(tmp_path):
    report = stepscope.report(written(tmp_path, process(None, LOADING), process(None, [], problem="py-spy failed")))
    assert report.headline == "Nobody to blame: no process stands in a collective · 2 processes asked"
    assert report.quality[0] == "No process has a rank, so nobody can be named; the stacks say what each one does."
    assert report.quality[1] == "The stacks of 1 process are not known: py-spy failed."
    assert report.tables[0].frame.height == 2


PY_SPY = """Process 4242: python train.py --lr 1
Python v3.11.7 (/usr/bin/python3.11)

Thread 4242 (idle): "MainThread"
    read (ssl.py:1166)
        Arguments:
            self: <SSLSocket at 0x7f>
    load (/job/data.py:31)
    <module> (/job/train.py:15)
Thread 0x7F14E5 (active): "pt_autograd_0"
    run (threading.py:953)
"""


def test_outputs_of_py_spy_among_the_dumps_say_what_ranks_do(tmp_path):
    write(tmp_path, {rank: dump([call(1)], {"0": [0, 1]}) for rank in (0, 1)})
    (tmp_path / "py-spy-rank-1.txt").write_text(PY_SPY)
    frames = [{"name": "step", "filename": "/job/train.py", "line": 9}]
    (tmp_path / "stack_0.json").write_text(json.dumps([{"pid": 7, "os_thread_id": 7, "frames": frames}]))
    (tmp_path / "stacks-2.txt").write_text("nothing")
    trace = stepscope.load(tmp_path)
    assert trace.processes.select("rank", "pid", "line", "function").rows() == [
        (1, 4242, "load (/job/data.py:31)", "read"), (0, 7, "step (/job/train.py:9)", "step"),
    ]  # fmt: skip
    assert trace.issues["code"].to_list() == ["unreadable_processes"]
