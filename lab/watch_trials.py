"""Tries `stepscope watch` on a real job: faults switched on and off, healthy hours, kills, and what it costs.

    python lab/watch_trials.py faults OUT --python PYTHON_WITH_TORCH [--faults slow_loader fsync] [--false-alarms 1/day]
    python lab/watch_trials.py healthy OUT --python PYTHON_WITH_TORCH --seconds 7200 [--pause 0.15]
    python lab/watch_trials.py faults OUT --plain --faults garbage fsync larger_batch
    python lab/watch_trials.py kills OUT [--times 50]
    python lab/watch_trials.py memory OUT [--hours 24]

`faults`: the job of `switched_job.py` is watched, or with `--plain` that of `switched_loop.py`, which has no profiler.
After a healthy stretch each fault is on for a while, and off again. A line for each says how long after the end of the
third slow step the alarm came, and which cause was named first.
`healthy`: nothing is switched on; every alarm is printed. `kills`: of a small job, the watch, the job or both are
killed at random times; each time the state must load, and nothing may be left behind. `memory`: a job of ten steps a
second is simulated for so many hours, as fast as the watch reads it; a line an hour says how much memory it takes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faults import FAULTS

from stepscope.watching import watcher
from stepscope.watching.job_source import JobSource
from stepscope.watching.streams import Cycles
from stepscope.watching.watcher import load_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.watching.streams import Stream

JOB, PLAIN = (Path(__file__).with_name(name) for name in ("switched_job.py", "switched_loop.py"))
#: Without a profile nothing says how large the work is, but samples of stacks say where it is done.
PLAIN_CAUSES = {"larger_batch": ("host_overhead",)}
SWITCHED = ("slow_loader", "fsync", "tiny_syncs", "garbage", "float64", "gil_hog", "core_contention", "larger_batch")
#: How soon what belongs to a recording that was killed must have ended.
GONE_S = 5.0
#: How soon a watch must read steps, on a machine with other work.
STARTS_S = 60.0
#: A step is slow if it takes so much longer than the median of those before the fault.
SLOW = 1.1
_STEPS_AN_HOUR = 36_000
STEPS = """
import time, stepscope
for i in range(100000):
    stepscope.step()
    time.sleep(0.005)
"""


def events(log: Path) -> list[dict[str, Any]]:
    """What the watch said so far."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def steps(path: Path) -> list[tuple[float, float, str]]:
    """The steps as the job itself saw them: end, duration, fault."""
    rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return [(float(row[0]), float(row[1]), row[2]) for row in rows if len(row) == 3]


def watched(out: Path, given: argparse.Namespace, seconds: float) -> subprocess.Popen[bytes]:
    """Start the job under the watch, healthy."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "fault").write_text("none", encoding="utf-8")
    command = [sys.executable, "-m", "stepscope", "watch", "-o", str(out / "run"), "--force"]
    command += ["--log", str(out / "log.jsonl"), "--false-alarms", given.false_alarms, "--"]
    job = [
        given.python,
        str(PLAIN if given.plain else JOB),
        str(out / "fault"),
        str(out / "steps"),
        "--seconds",
        str(seconds),
        "--pause",
        str(given.pause),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *job], cwd=out, env=environment, start_new_session=True)


def try_faults(given: argparse.Namespace) -> None:
    """Switch faults on and off, and print a line for each."""
    out: Path = given.out.resolve()
    for name in ("steps", "log.jsonl"):
        (out / name).unlink(missing_ok=True)
    names = given.faults or list(SWITCHED)
    job = watched(out, given, given.warm + len(names) * (given.on + given.off) + 30)
    time.sleep(given.warm)
    rows = []
    try:
        for name in names:
            on = time.time()
            (out / "fault").write_text(name, encoding="utf-8")
            time.sleep(given.on)
            (out / "fault").write_text("none", encoding="utf-8")
            off = time.time()
            time.sleep(given.off)
            rows.append(trial(out, name, on, off, off + given.off, is_plain=given.plain))
            print(rows[-1], flush=True)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGINT)
        job.wait()
    print(f"{sum(' right' in row for row in rows)} of {len(rows)} causes right")


def trial(out: Path, name: str, on: float, off: float, end: float, *, is_plain: bool) -> str:
    """What was said of a fault that was on between two times."""
    said = [one for one in events(out / "log.jsonl") if on <= one["unix_s"] <= end]
    alarms = [one for one in said if one["event"] == "alarm" and one["unix_s"] <= off + 2]
    causes = [one for one in said if one["event"] == "cause"]
    own = steps(out / "steps")
    before = sorted(time_s for end, time_s, _ in own if on - 30 < end < on)
    usual = before[len(before) // 2]
    slow = [end for end, time_s, fault in own if fault == name and end >= on and time_s > SLOW * usual]
    during = sorted(time_s for _, time_s, fault in own if fault == name)
    ratio = during[len(during) // 2] / usual if during else float("nan")
    delay = f"{alarms[0]['unix_s'] - slow[2]:+.1f} s ({alarms[0]['kind']})" if alarms and len(slow) > 2 else "no alarm"
    first = next((one["causes"][0]["category"] for one in causes if one["causes"]), "none")
    expected = PLAIN_CAUSES.get(name, FAULTS[name].causes) if is_plain else FAULTS[name].causes
    verdict = "right" if first in expected else "WRONG"
    return f"{name:>16} {usual * 1e3:6.1f} ms x {ratio:4.2f}  told after {delay:<18} cause {first} {verdict}"


def be_healthy(given: argparse.Namespace) -> None:
    """Watch a healthy job, and print every alarm and the cost of the watch."""
    out: Path = given.out.resolve()
    (out / "log.jsonl").unlink(missing_ok=True)
    job = watched(out, given, given.seconds)
    job.wait()
    said = events(out / "log.jsonl")
    for one in said:
        if one["event"] != "minute":
            print(one["text"])
    n_alarms = sum(one["event"] == "alarm" for one in said)
    n_steps = sum(one.get("steps", 0) for one in said)
    print(f"{n_alarms} alarms in {given.seconds:.0f} s and {n_steps} steps")


class Simulated(JobSource):
    """A job of so many hours that makes ten steps a second, ten each time that it is asked; says what memory it has."""

    every_s = 0.0

    def __init__(self, hours: int) -> None:
        self._n, self._hours, self._chance = 0, hours, random.Random(0)
        self._marks = {}

    def is_over(self) -> bool:
        """Whether all steps were made."""
        return self._n >= _STEPS_AN_HOUR * self._hours

    def read(self, streams: Mapping[str, Stream]) -> list[Cycles]:  # noqa: ARG002  they were all read
        """Ten more steps."""
        self._n += 10
        times = tuple(round(1e8 * self._chance.lognormvariate(0, 0.02)) for _ in range(10))
        new = Cycles("process 1", 1, self._n, times, (1,) * 10)
        if self._n % _STEPS_AN_HOUR == 0:
            rss = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
            print(f"hour {self._n // _STEPS_AN_HOUR:>3}: {rss / 1e6:.1f} MB", flush=True)
        return [new]

    def status(self) -> str:
        """Nothing."""
        return ""


def hold_memory(given: argparse.Namespace) -> None:
    """Watch a simulated job for hours, and print what memory the watch has after each, and its alarms."""
    given.out.mkdir(parents=True, exist_ok=True)
    watcher._MINUTE_S = 0.1  # time runs faster
    kinds: Counter[str] = Counter()
    say = lambda event: kinds.update([event["event"]])  # noqa: E731
    watcher.Watcher(Simulated(given.hours), given.out / "state", 1 / 604_800, say, 0.05).run()
    print(dict(kinds))


def kill(given: argparse.Namespace) -> None:
    """Kill the watch, the job or both, again and again."""
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chance, n_known = random.Random(0), 0
    run, state = out / "run", out / "run.watch.json"
    for i in range(given.times):
        what = ("watch", "job", "both")[i % 3]
        command = [sys.executable, "-m", "stepscope", "record", "--keep", "5s", "--force", "-o", str(run), "--"]
        record = subprocess.Popen([*command, sys.executable, "-c", STEPS], start_new_session=True)
        while not (run / "meta.json").exists() and record.poll() is None:
            time.sleep(0.05)
        follow = [sys.executable, "-m", "stepscope", "watch", "--follow", str(run), "--prometheus", "0"]
        watch = subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for_steps(watch)
        time.sleep(3 * chance.random())
        if what != "job":
            watch.kill()
        if what != "watch":
            os.killpg(record.pid, signal.SIGKILL)
        else:
            os.killpg(record.pid, signal.SIGTERM)
        record.wait()
        try:
            _, text = watch.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            sys.exit(f"{i}: the watch goes on after its job was killed")
        streams = load_state(state)
        n_known += bool(streams)
        deadline = time.monotonic() + GONE_S
        while alive_of(str(run)) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [path.name for path in out.iterdir() if path.name not in {"run", state.name}]
        alive = alive_of(str(run))
        if left or alive or (what == "job" and watch.returncode):
            sys.exit(f"{i}: {what} killed: left {left}, alive {alive}, exit {watch.returncode}: {text.decode()}")
    print(f"{given.times} kills: the state loaded each time, {n_known} times with steps; nothing left behind after 5 s")


def wait_for_steps(watch: subprocess.Popen[bytes]) -> None:
    """Wait until a watch has read steps, as its measures tell."""
    assert watch.stdout is not None
    url = watch.stdout.readline().decode().split()[-1]
    deadline = time.monotonic() + STARTS_S
    while b"stepscope_steps_total{" not in urllib.request.urlopen(url, timeout=STARTS_S).read():
        if time.monotonic() > deadline:
            sys.exit("the watch reads no steps")
        time.sleep(0.2)


def alive_of(word: str) -> list[str]:
    """Command lines of processes that name this word, other than this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            if word in text and path.parent.name != str(os.getpid()):
                found.append(text)
    return found


def main() -> None:
    """Run one of the trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trial", choices=["faults", "healthy", "kills", "memory"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--faults", nargs="*", choices=SWITCHED, help="in this order; a fault may come again")
    parser.add_argument("--plain", action="store_true", help="watch a loop without a framework")
    parser.add_argument("--false-alarms", default="1/week")
    parser.add_argument("--warm", type=float, default=90, help="seconds until the first fault")
    parser.add_argument("--on", type=float, default=30, help="seconds with a fault")
    parser.add_argument("--off", type=float, default=40, help="seconds after a fault")
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--pause", type=float, default=0, help="seconds that each batch takes to arrive")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--hours", type=int, default=24)
    given = parser.parse_args()
    {"faults": try_faults, "healthy": be_healthy, "kills": kill, "memory": hold_memory}[given.trial](given)


if __name__ == "__main__":
    main()
