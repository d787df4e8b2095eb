"""Recordings that keep only the last seconds (`Ring`), and the dumps that they write when something happens.

Each dump is a folder that is a recording of its own. The start-up hook in the job (slow steps) and users ask for dumps
through a named pipe, the `Channel`; through a shared file the hook is asked for a profile of the next steps.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
import struct
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stepscope.core.errors import StepscopeError
from stepscope.record.counters.writer import NAME, CounterFile
from stepscope.record.system import meta
from stepscope.record.system.proc import is_alive

_PIPE, _WISH, _ANSWER = "asked", "wish", "answer-"
#: As startup/_stepscope_steps.py reads them.
_STEP = struct.Struct("<qqqq")
_WISHED = struct.Struct("<qqq72s")
_BLOCK = 1 << 16
#: Without a profile to wait for, a dump goes on for this long after the event.
_AFTER_S = 1.0
_REASONS = ("slow-step", "signal", "request")
#: How long a dump waits for a profile, or as long as the ring if that is longer.
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Ring:
    """Keep the last `keep_s` seconds. Dump them if a step takes `trigger` times the median (None: do not)."""

    keep_s: float = 60.0
    trigger: float | None = None
    max_dumps: int = 10

    def wanted(self, steps: tuple[int, int] | None) -> dict[str, Any]:
        """What the sampler needs to know. A dump profiles as many steps as the recording does."""
        return {**asdict(self), "n_steps": steps[1] - steps[0] if steps else 0}

    def environment(self) -> dict[str, str]:
        """What the start-up hook needs to know."""
        return {"STEPSCOPE_RECORD_TRIGGER": f"{self.trigger or 0:g}"}


class Channel:
    """The sampler's end of the pipe and of the shared file. Raises OSError (a file system without named pipes)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / meta.FOLDER
        pipe = self._folder / _PIPE
        os.mkfifo(pipe, 0o600)
        # Opened for writing too, so that it never reaches its end when another writer closes it.
        self.handle = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._wish = os.open(self._folder / _WISH, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(self._wish, bytes(_WISHED.size), 0)
        self._rest = b""

    def messages(self) -> list[dict[str, Any]]:
        """New messages since the last call. Other lines are ignored."""
        try:
            while more := os.read(self.handle, _BLOCK):
                self._rest += more
        except BlockingIOError:
            pass
        *lines, self._rest = self._rest.split(b"\n")
        messages = []
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                messages.append(message)
        return messages

    def steps(self) -> dict[int, int]:
        """By pid, the number of steps so far of each process that has made one."""
        steps = {}
        for path in self._folder.glob("steps-*"):
            pid, text = path.name.partition("-")[2], path.read_bytes()
            if pid.isdecimal() and len(text) == _STEP.size and (made := _STEP.unpack(text)[0]):
                steps[int(pid)] = made
        return steps

    def wish(self, number: int, first: int, n_steps: int, name: str) -> None:
        """Ask the job's processes to profile steps into a folder of the recording. Raises OSError."""
        wished = _WISHED.pack(number, first, n_steps, name.encode())
        # The number is written last: a reader that sees it sees the rest.
        os.pwrite(self._wish, wished[8:], 8)
        os.pwrite(self._wish, wished[:8], 0)

    def answer(self, token: object, **fields: Any) -> None:
        """Reply to a user's request, if the message was one. Raises OSError."""
        if isinstance(token, str) and token.isalnum():
            part = self._folder / f".{token}"
            part.write_text(json.dumps(fields), encoding="utf-8")
            part.replace(self._folder / f"{_ANSWER}{token}")

    def close(self) -> None:
        """Close both."""
        os.close(self.handle)
        os.close(self._wish)


def request(folder: str | os.PathLike[str], timeout_s: float = 10.0) -> Path:
    """Ask the recording that runs in a folder to write a dump. Returns the dump's folder.

    Raises StepscopeError (no recording with a ring runs there, it accepts no more dumps, it does not answer).
    """
    folder = Path(folder)
    hint = "name the folder of a running recording that was started with --keep"
    job, token = folder / meta.FOLDER, secrets.token_hex(8)
    try:
        handle = os.open(job / _PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        gone = error.errno in {errno.ENOENT, errno.ENOTDIR}
        why = "no recording with --keep is running there" if gone else error.strerror or str(error)
        if error.errno == errno.ENXIO:
            why = "its recorder has ended, or could not write any more (a full disk)"
        raise StepscopeError(f"no dump of {folder}: {why}", hint) from None
    with os.fdopen(handle, "wb", 0) as pipe:
        if not stat.S_ISFIFO(os.fstat(pipe.fileno()).st_mode):
            raise StepscopeError(f"no dump of {folder}: it is not a recording", hint)
        pipe.write((json.dumps({"ask": "request", "token": token}) + "\n").encode())
    answer, deadline = job / f"{_ANSWER}{token}", time.monotonic() + timeout_s
    while not answer.exists():
        if time.monotonic() > deadline:
            raise StepscopeError(
                f"no dump of {folder}: its recorder does not answer", "check whether it is still running"
            )
        time.sleep(0.02)
    reply = json.loads(answer.read_text(encoding="utf-8"))
    answer.unlink(missing_ok=True)
    if "refused" in reply:
        raise StepscopeError(f"no dump of {folder}: {reply['refused']}", reply["hint"])
    return folder / str(reply["dump"])


@dataclass(slots=True)
class _Open:
    """A dump that is not complete: counters are still added, and some processes may write their profile."""

    path: Path
    file: CounterFile
    facts: dict[str, Any]
    began: float
    waits_for: set[int]
    n_skipped: int = 0


@dataclass(slots=True)
class Dumps:
    """Writes dumps, one at a time, up to the number allowed."""

    folder: Path
    file: CounterFile
    channel: Channel | None
    keep_s: float
    most: int
    #: How many steps the job's processes are to profile then; 0 without a profiler.
    n_steps: int
    made: list[dict[str, Any]] = field(default_factory=list)
    _open: _Open | None = None
    _n_left_out: int = 0
    _failures: list[str] = field(default_factory=list)

    def heard(self) -> list[dict[str, Any]]:
        """New requests for a dump. Messages that a profile has been written are handled here."""
        asking = []
        for message in [] if self.channel is None else self.channel.messages():
            if _is_request(message):
                asking.append(message)
            elif message.get("profiled") == "" and self.file.tail is not None:
                self.file.tail.pin(time.time_ns())
            elif self._open is not None and message.get("profiled") == self._open.path.name:
                self._open.waits_for -= {pid for pid in self._open.waits_for if pid == message.get("pid")}
        return asking

    def take(self, message: dict[str, Any], issues: list[dict[str, Any]]) -> None:
        """After a flush, make the dump that a message asks for, with the issues so far, or refuse it."""
        token = message.get("token")
        refused, hint = None, "try again in a few seconds"
        if self._open is not None:
            self._open.n_skipped += 1
            refused = f"{self._open.path.name} is being written"
        elif len(self.made) >= self.most:
            self._n_left_out += 1
            refused = f"{self.most} dumps were made, which is the limit"
            hint = "start the recording with a larger --max-dumps"
        else:
            try:
                self._begin(message, issues)
            except OSError as error:
                refused = f"cannot write it: {error.strerror or error}"
                self._failures.append(refused)
                hint = "check whether the disk is full"
        if self.channel is not None:
            reply = {"refused": refused, "hint": hint} if refused else {"dump": self.made[-1]["folder"]}
            try:
                self.channel.answer(token, **reply)
            except OSError as error:
                self._failures.append(f"no answer to --dump: {error.strerror or error}")

    def flushed(self, packed: bytes) -> None:
        """Add counters that were just written to the open dump too, and complete it when its time is over."""
        if self._open is None:
            return
        try:
            self._open.file.append(packed)
        except OSError as error:
            self._failures.append(f"{self._open.path.name} is cut: {error.strerror or error}")
            self.complete()
            return
        passed = time.monotonic() - self._open.began
        self._open.waits_for = {pid for pid in self._open.waits_for if is_alive(pid)}
        patience = max(self.keep_s, _PATIENCE_S)
        if passed >= (patience if self._open.waits_for else _AFTER_S):
            self.complete()

    def complete(self) -> None:
        """Complete the open dump, if there is one."""
        dump, self._open = self._open, None
        if dump is None:
            return
        issues = []
        if dump.waits_for and not any(dump.path.glob("*.pt.trace.json.gz")):
            patience = max(self.keep_s, _PATIENCE_S)
            what = f"no process made {self.n_steps} steps within {patience:.0f} s after it, or before the job ended"
            issues.append(meta.issue("profile_missing", what, severity="info"))
        if dump.n_skipped:
            what = f"{dump.path.name} was being written: no dump of their own for what happened meanwhile"
            issues.append(meta.issue("dumps_left_out", what, severity="info", count=dump.n_skipped))
        try:
            dump.file.close()
            processes, _ = meta.hook_messages(self.folder)
            ends = {"end_unix_ns": time.time_ns(), "clocks_at_end": meta.clocks()}
            meta.merge(dump.path, issues, processes=processes, **ends)
        except OSError as error:
            self._failures.append(f"{dump.path.name} is cut: {error.strerror or error}")

    def issues(self) -> list[dict[str, Any]]:
        """What could not be dumped."""
        rows = [meta.issue("dump_failed", failure) for failure in self._failures]
        if self.made:
            what = f"folders in this one to report on and compare: {', '.join(dump['folder'] for dump in self.made)}"
            rows.append(meta.issue("dumps", what, severity="info", count=len(self.made)))
        if self._n_left_out:
            what = f"{self.most} dumps were made, which is the limit (--max-dumps)"
            rows.append(meta.issue("dumps_left_out", what, severity="info", count=self._n_left_out))
        return rows

    def _begin(self, message: dict[str, Any], issues: list[dict[str, Any]]) -> None:
        reason = str(message["ask"])
        number = len(self.made) + 1
        name = f"dump-{number:04d}-{reason}"
        steps = self._steps() if self.n_steps else {}
        # By the time they read this, the processes are some steps further.
        first = max([*steps.values(), 0]) + 2 if steps else 0
        known = {key: message[key] for key in ("pid", "rank", "step", "step_ns", "median_ns") if key in message}
        facts: dict[str, Any] = {"reason": reason, "unix_ns": time.time_ns()}
        facts |= {key: value for key, value in known.items() if value is not None}
        part = self.folder / f".{name}{meta.PART}"
        shutil.rmtree(part, ignore_errors=True)
        try:
            part.mkdir()
            file = self._counters(part / NAME)
            self._describe(part, facts, [*issues, _issue_of(facts)])
            part.rename(self.folder / name)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            raise
        self._open = _Open(self.folder / name, file, facts, time.monotonic(), set(steps))
        self.made.append({"folder": name, **facts})
        if self.channel is not None and steps:
            self.channel.wish(number, first, self.n_steps, name)

    def _counters(self, path: Path) -> CounterFile:
        """A new file of counters that begins with the ring's. Raises OSError."""
        file = CounterFile(path)
        try:
            file.append(b"" if self.file.tail is None else self.file.tail.packed())
        except OSError:
            file.close()
            raise
        return file

    def _describe(self, part: Path, facts: dict[str, Any], issues: list[dict[str, Any]]) -> None:
        document = json.loads((self.folder / meta.NAME).read_text(encoding="utf-8"))
        start_ns = None if self.file.tail is None else self.file.tail.start_ns
        document |= {
            "mode": "dump",
            "dump": facts,
            "start_unix_ns": start_ns or document["start_unix_ns"],
            "end_unix_ns": None,
            "clocks": meta.clocks(),
            "issues": [*document["issues"], *issues],
        }
        meta.write(part, document)

    def _steps(self) -> dict[int, int]:
        made = {} if self.channel is None else self.channel.steps()
        return {pid: n for pid, n in made.items() if is_alive(pid)}


def _is_request(message: dict[str, Any]) -> bool:
    """Whether a message is a complete request for a dump: anyone can write into the pipe."""
    reason = message.get("ask")
    needed = ("pid", "step", "step_ns", "median_ns") if reason == "slow-step" else ()
    return reason in _REASONS and all(isinstance(message.get(name), int) and message[name] > 0 for name in needed)


def _issue_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Why the dump was made."""
    if facts["reason"] == "slow-step":
        times = facts["step_ns"] / facts["median_ns"]
        who = f"rank {facts['rank']}" if facts.get("rank") is not None else f"process {facts['pid']}"
        took, usual = facts["step_ns"] / 1e6, facts["median_ns"] / 1e6
        what = (
            f"step {facts['step']} of {who} took {took:,.1f} ms, {times:.1f} times the {usual:,.1f} ms usual until then"
        )
        return meta.issue("slow_step", what)
    how = "a signal" if facts["reason"] == "signal" else "stepscope record --dump"
    return meta.issue("dump", f"the last seconds were dumped on request, by {how}", severity="info")


def opened(folder: Path, file: CounterFile, wanted: dict[str, Any] | None) -> tuple[Dumps | None, list[dict[str, Any]]]:
    """The writer of dumps for a recording with a ring, and issues: without pipes only a signal can ask for a dump."""
    if wanted is None:
        return None, []
    channel, issues = None, []
    try:
        channel = Channel(folder)
    except OSError as error:
        what = f"no dumps of slow steps or by --dump, only by signal: no pipe in {folder}: {error.strerror or error}"
        issues.append(meta.issue("no_triggers", what))
    return Dumps(folder, file, channel, wanted["keep_s"], wanted["max_dumps"], wanted["n_steps"]), issues
