"""The tracer of this machine where it may be used, and a folder that looks like it where the tests need another one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

import pytest

from stepscope.record.system import tracefs
from stepscope.record.system.tracefs import Tracefs, remove_leftovers, why_not

FORMAT = """name: sched_wakeup
ID: 374
format:
	field:unsigned short common_type;	offset:0;	size:2;	signed:0;

	field:char comm[16];	offset:8;	size:16;	signed:0;
	field:pid_t pid;	offset:24;	size:4;	signed:1;
	field:__data_loc char[] text;	offset:28;	size:4;	signed:0;

print fmt: "comm=%s", REC->comm
"""


@pytest.fixture
def tracer():
    why = why_not()
    if why is not None:
        pytest.skip(f"the kernel's tracer cannot be used here: {why}")
    found = Tracefs()
    yield found
    if found.folder.exists():
        found.close()


def test_fields_of_events_are_read_from_their_format():
    fields = {"common_type": [0, 2], "comm": [8, 16], "pid": [24, 4], "text": [28, 4]}
    assert tracefs._fields(FORMAT) == {"id": 374, "fields": fields}
    assert tracefs._fields("") == {"id": None, "fields": {}}


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("\tfield: u64 timestamp;\toffset:0;\tsize:8;\n\tfield: char data;\toffset:16;\tsize:65520;", 65536),
     ("", os.sysconf("SC_PAGE_SIZE"))],
)  # fmt: skip
def test_the_size_of_pages_is_the_kernels(tmp_path, text, n_bytes):
    (tmp_path / "events").mkdir()
    (tmp_path / "events/header_page").write_text(text)
    assert tracefs._page_of(tmp_path / "instance", tmp_path) == n_bytes


def test_why_it_cannot_be_used_is_said_with_the_remedy(tmp_path, monkeypatch):
    place = tmp_path / "tracing"
    assert "sudo" in why_not((place,))
    place.mkdir()
    assert f"sudo mount -t tracefs nodev {place}" in why_not((place,))
    (place / "instances").mkdir()
    assert why_not((tmp_path / "nowhere", place)) is None
    access = os.access
    monkeypatch.setattr(tracefs.os, "access", lambda path, mode: mode != os.W_OK and access(path, mode))
    monkeypatch.setattr(tracefs.os, "geteuid", lambda: 1000)
    assert "run with sudo" in why_not((place,))
    monkeypatch.setattr(tracefs.os, "geteuid", lambda: 0)
    assert "--cap-add SYS_ADMIN" in why_not((place,))
    monkeypatch.setattr(tracefs, "_namespace", lambda: "pid:[4026532999]")
    assert "--pid=host" in why_not((place,))


def test_instances_of_processes_that_are_gone_are_removed_and_no_others(tmp_path):
    with subprocess.Popen(["true"]) as gone:
        pass
    mine = f"stepscope-{os.getpid()}-{tracefs._began(os.getpid())}"
    held = f"stepscope-{gone.pid}-2"
    names = {f"stepscope-{gone.pid}-1", held, f"stepscope-{os.getpid()}-1", mine, "somebody-else"}
    for name in names:
        (tmp_path / "instances" / name).mkdir(parents=True)
    (tmp_path / "instances" / held / "file").write_text("")  # as if somebody looked into it
    assert remove_leftovers((tmp_path,)) == 2
    assert {path.name for path in (tmp_path / "instances").iterdir()} == {held, mine, "somebody-else"}
    assert remove_leftovers((tmp_path / "nowhere",)) == 0


def test_a_folder_that_may_not_be_listed_has_no_leftovers(tmp_path):
    (tmp_path / "instances").write_text("")
    assert remove_leftovers((tmp_path,)) == 0


def test_where_there_is_none_it_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Tracefs((tmp_path,))


def test_what_the_system_refuses_leaves_nothing(tmp_path):
    (tmp_path / "instances").mkdir()
    with pytest.raises(FileNotFoundError):  # a plain folder has none of the tracer's files
        Tracefs((tmp_path,))
    assert not list((tmp_path / "instances").iterdir())


def test_events_of_a_process_and_its_children_arrive(tracer):
    code = "import subprocess, time, sys\nsys.stdin.read(1)\nfor _ in range(30): time.sleep(0.001)\n"
    code += "subprocess.run(['sleep', '0.01'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as job:
        poll = select.poll()
        tracer.register(poll)
        assert tracer.follow(job.pid) == [(job.pid, job.pid)]
        job.communicate(b"x")
    tracer.unregister(poll)
    tracer.stop()
    pages = tracer.read()
    assert sum(len(content) for _, content in pages) >= 4096
    assert {len(content) % tracer.facts()["page_bytes"] for _, content in pages} == {0}
    assert all(event["id"] for event in tracer.facts()["events"].values())
    threads = dict(tracer.new_threads(job.pid))
    assert threads.get(job.pid) == job.pid or not threads
    assert tracer.new_threads(job.pid) == [] or threads  # the second time those that ran since
    assert (tracer.lost(), tracer.unread()) == (dict.fromkeys(tracer.facts()["cores"], 0), 0)
    tracer.close()
    assert not tracer.folder.exists()


def test_buffers_that_are_not_read_count_what_they_lose(tracer):
    tracer._write("buffer_size_kb", "4")
    code = "import time\ntime.sleep(0.3)\nfor _ in range(2000): time.sleep(0)"
    with subprocess.Popen([sys.executable, "-c", code]) as job:
        tracer.follow(job.pid)
    time.sleep(0.05)
    tracer.stop()
    assert sum(tracer.lost().values()) > 0
    assert tracer.unread() >= sum(tracer.lost().values())
