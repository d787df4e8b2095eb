from __future__ import annotations

import os
import threading

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.record.counters.channel import Channel, request


@pytest.fixture
def channel(tmp_path):
    (tmp_path / ".job").mkdir()
    found = Channel(tmp_path)
    yield found
    found.close()


def say(folder, text: bytes) -> None:
    handle = os.open(folder / ".job" / "asked", os.O_WRONLY | os.O_NONBLOCK)
    os.write(handle, text)
    os.close(handle)


def test_messages_are_lines_and_a_cut_one_is_waited_for(channel, tmp_path):
    assert channel.messages() == []
    say(tmp_path, b'{"a": 1}\nnonsense\n[1]\n{"b"')
    assert channel.messages() == [{"a": 1}]
    say(tmp_path, b": 2}\n")
    assert channel.messages() == [{"b": 2}]


def test_a_file_of_steps_that_is_cut_is_left_out(channel, tmp_path):
    (tmp_path / ".job" / "steps-7").write_bytes(b"short")
    (tmp_path / ".job" / "steps-8").write_bytes(bytes(32))
    (tmp_path / ".job" / "steps-mine").write_bytes((5).to_bytes(8, "little") + bytes(24))
    (tmp_path / ".job" / "steps-9").write_bytes((5).to_bytes(8, "little") + bytes(24))
    assert channel.steps() == {9: 5}


def answering(channel, **fields) -> threading.Thread:
    def run() -> None:
        while not (messages := channel.messages()):
            pass
        channel.answer(messages[0]["token"], **fields)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_request_is_answered_with_the_folder(channel, tmp_path):
    thread = answering(channel, dump="dump-0001-request")
    assert request(tmp_path) == tmp_path / "dump-0001-request"
    thread.join()
    assert not list((tmp_path / ".job").glob("answer-*"))


def test_a_request_that_is_refused_says_why(channel, tmp_path):
    thread = answering(channel, refused="10 dumps were made", hint="more of them")
    with pytest.raises(StepscopeError, match="10 dumps were made") as error:
        request(tmp_path)
    thread.join()
    assert error.value.hint == "more of them"


@pytest.mark.usefixtures("channel")
def test_a_recorder_that_does_not_answer_is_told(tmp_path):
    with pytest.raises(StepscopeError, match="does not answer"):
        request(tmp_path, timeout_s=0.1)


def test_a_token_that_is_none_of_ours_is_not_answered(channel, tmp_path):
    for token in (None, "../evil", 5):
        channel.answer(token, dump="x")
    assert sorted(path.name for path in (tmp_path / ".job").iterdir()) == ["asked", "wish"]


def test_a_folder_in_which_nothing_is_recorded_is_told(tmp_path):
    with pytest.raises(StepscopeError, match="no recording that keeps"):
        request(tmp_path)
    (tmp_path / ".job").mkdir()
    os.mkfifo(tmp_path / ".job" / "asked")  # whose recorder was killed
    with pytest.raises(StepscopeError, match="no recording that keeps"):
        request(tmp_path)
    (tmp_path / ".job" / "asked").unlink()
    (tmp_path / ".job" / "asked").write_text("a file")
    with pytest.raises(StepscopeError, match="it is no recording"):
        request(tmp_path)
    (tmp_path / ".job" / "asked").unlink()
    (tmp_path / ".job" / "asked").mkdir()
    with pytest.raises(StepscopeError, match="Is a directory"):
        request(tmp_path)
