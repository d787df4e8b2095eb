from __future__ import annotations

import _thread
import gzip
import os
import threading

import pytest

from stepscope.record.startup import _stepscope_profile
from stepscope.record.startup._stepscope_profile import Profile, Settings
from stepscope.record.startup._stepscope_step_messages import Wish


class HookLog:
    def __init__(self) -> None:
        self.issues: dict[str, str] = {}
        self.facts: dict[str, object] = {}

    def issue(self, code: str, example: str, severity: str = "warning") -> None:
        self.issues[code] = f"{severity}: {example}"

    def add(self, **fields: object) -> None:
        self.facts.update(fields)


class Profiler:
    """Notes what it is told; fails where it is told to."""

    errors = (RuntimeError,)

    def __init__(self, *, any_thread: bool = False) -> None:
        self.any_thread = any_thread
        self.calls: list[object] = []
        self.fails: str | None = None
        self.safe = True
        self.against: str | None = None

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails == name:
            raise RuntimeError(f"no {name}\nmore")

    def is_safe(self) -> bool:
        return self.safe

    def obstacle(self) -> str | None:
        return self.against

    def mark(self, n: int | None) -> None:
        self.calls.append(n)

    def __getattr__(self, name: str):
        if name not in {"prepare", "start", "stop", "write"}:
            raise AttributeError(name)
        return lambda: self._call(name)


@pytest.fixture
def profiler() -> Profiler:
    return Profiler()


@pytest.fixture
def log() -> HookLog:
    return HookLog()


@pytest.fixture
def steps(profiler, log) -> Profile:
    return Profile(profiler, log, Settings(first=3, last=5))


@pytest.fixture
def clock(monkeypatch):
    """Time as the test sets it, in ns."""

    class Clock:
        now = 0

    monkeypatch.setattr(_stepscope_profile.time, "monotonic_ns", lambda: Clock.now)
    return Clock


SECOND = 1_000_000_000


@pytest.fixture
def window(profiler, log, clock) -> Profile:
    clock.now = 0
    return Profile(profiler, log, Settings(start_ns=10 * SECOND, end_ns=20 * SECOND))


WHOLE = ["prepare", "start", 3, 4, None, "stop", "write"]


def test_what_is_wanted_comes_from_the_environment():
    assert Settings.of("3:7", "") == Settings(first=3, last=7)
    assert Settings.of("3:7", "10:20") == Settings(start_ns=10, end_ns=20)
    assert Settings.of("", "") is None
    assert not Settings(first=3, last=7).is_window


def test_steps_from_the_first_up_to_the_last(steps, profiler):
    for n in range(8):
        steps.step_begins(n)
        assert steps.is_near == (2 <= n < 5)
    assert profiler.calls == WHOLE
    assert steps.is_over


class Ends:
    """Wants a profile of ten steps from step 3 on."""

    def __init__(self) -> None:
        self.wish: Wish | None = Wish(1, 3, 10, "dump-0001")
        self.profiled: list[str] = []

    def ended(self, _n: int) -> Wish | None:
        wish, self.wish = self.wish, None
        return wish

    def skip(self) -> None:
        pass

    def tell(self, *, profiled: str) -> None:
        self.profiled.append(profiled)


@pytest.mark.parametrize(("mib_a_step", "last"), [(10, 13), (50, 6), (1000, 5)])
def test_a_profile_for_a_dump_ends_early_if_it_would_hold_up_the_job(profiler, log, monkeypatch, mib_a_step, last):
    log.folder, ends = "job", Ends()
    profile, resident = Profile(profiler, log, Settings(), ends), iter(range(0, 1 << 50, mib_a_step << 20))
    monkeypatch.setattr(_stepscope_profile, "resident_bytes", lambda: next(resident))
    for n in range(1, 15):
        # Memory is looked at when two steps are whole: by then it has that of both.
        if n == 4:
            next(resident)
        profile.step_begins(n)
    assert profiler.calls == ["prepare", "start", *range(3, last), None, "stop", "write"]
    assert ends.profiled == ["dump-0001"]
    assert ("profile_short" in log.issues) == (last < 13)


def test_memory_of_this_process_is_known():
    assert _stepscope_profile.resident_bytes() > 1 << 20


def test_the_profiler_warms_up_in_the_step_before(steps, profiler):
    for n in range(3):
        steps.step_begins(n)
    assert profiler.calls == ["prepare"]


def test_a_step_that_begins_where_nothing_can_be_done_is_owed(steps, profiler):
    for n in range(8):
        profiler.safe = False
        steps.step_begins(n)
        assert not steps.is_content()
        profiler.safe = True
        steps.safe_point()
    assert profiler.calls == WHOLE
    assert steps.is_content()


def test_steps_on_other_threads_are_owed(steps, profiler):
    for n in range(8):
        if n == 2:
            steps.step_begins(n)
        else:
            thread = threading.Thread(target=steps.step_begins, args=(n,))
            thread.start()
            thread.join()
            steps.safe_point()
    assert profiler.calls == WHOLE


def test_an_interrupted_call_is_not_entered_again(steps, profiler):
    profiler.mark = lambda n: (steps.step_begins(4), profiler.calls.append(n))
    for n in range(3, 6):
        steps.step_begins(n)
    assert [call for call in profiler.calls if call == "stop"] == ["stop"]


def test_the_jobs_own_marks_stand_for_ours(steps, profiler):
    steps.has_own_marks = True
    for n in range(8):
        steps.step_begins(n)
    assert profiler.calls == ["prepare", "start", "stop", "write"]


@pytest.mark.parametrize("what", ["prepare", "start", "stop", "write"])
def test_a_profiler_that_fails_is_told(steps, profiler, log, what):
    profiler.fails = what
    for n in range(8):
        steps.step_begins(n)
    assert steps.is_over
    assert profiler.calls.count(what) == 1
    assert log.issues["profile_failed"].endswith(f": no {what}")
    steps.at_exit()
    assert profiler.calls.count("stop") <= 1


def test_an_error_without_words_is_told_by_its_name(steps, profiler, log):
    profiler.errors = (OSError,)

    def prepare() -> None:
        raise OSError

    profiler.prepare = prepare
    steps.step_begins(3)
    assert "OSError" in log.issues["profile_failed"]


@pytest.mark.parametrize(("against", "told"), [("the job does", True), ("", False)])
def test_what_is_against_a_profile_is_told_if_it_has_words(steps, profiler, log, against, told):
    profiler.against = against
    steps.step_begins(3)
    assert (steps.is_over, profiler.calls, bool(log.issues)) == (True, [], told)


def test_the_job_comes_first(steps, profiler, log):
    steps.make_way("the job profiles")
    steps.make_way("the job profiles")
    steps.step_begins(3)
    assert (profiler.calls, log.issues) == (
        [],
        {"profile_left_out": "info: the job profiles, so no profile was recorded"},
    )


def test_the_job_comes_first_in_the_middle_too(steps, profiler, log):
    for n in range(5):
        steps.step_begins(n)
    steps.make_way("the job profiles")
    assert profiler.calls == WHOLE
    assert "profile ends at step 4" in log.issues["profile_cut"]


def test_our_own_start_is_not_the_jobs(steps, profiler, log):
    profiler.start = lambda: steps.make_way("the job profiles")
    steps.step_begins(3)
    assert (steps.is_over, log.issues) == (False, {})


def test_the_end_of_the_job_ends_the_profile(steps, profiler, log):
    for n in range(5):
        steps.step_begins(n)
    steps.at_exit()
    steps.at_exit()
    assert profiler.calls == WHOLE
    assert "at step 4, before step 5" in log.issues["profile_short"]
    assert log.facts == {"steps": 4}


@pytest.mark.parametrize(("n", "calls"), [(2, ["prepare"]), (3, ["prepare", "start", 3, None, "stop"])])
def test_less_than_a_step_is_not_written(steps, profiler, log, n, calls):
    steps.step_begins(n)
    steps.at_exit()
    assert (profiler.calls, log.issues) == (calls, {})


def test_a_forked_child_leaves_its_parents_profile_alone(steps, profiler, monkeypatch):
    steps.step_begins(3)
    monkeypatch.setattr(_stepscope_profile.os, "getpid", lambda: -1)
    steps.at_exit()
    assert profiler.calls == ["prepare", "start", 3]
    steps.in_child()
    assert steps.is_over
    steps.at_exit()
    assert profiler.calls == ["prepare", "start", 3]


def test_a_forked_child_may_have_a_profile_of_its_own(steps, profiler):
    steps.step_begins(0)
    steps.in_child()
    for n in range(1, 8):
        steps.step_begins(n)
    assert profiler.calls == WHOLE


def in_thread(call) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_the_end_of_the_thread_ends_the_profile(steps, profiler, log):
    in_thread(lambda: [steps.step_begins(n) for n in range(5)])
    assert profiler.calls == WHOLE
    assert "thread that was profiled ended" in log.issues["profile_short"]
    steps.at_exit()
    assert profiler.calls == WHOLE


def test_a_thread_that_goes_on_when_the_job_ends_is_told(steps, profiler, log):
    ended = threading.Event()
    began = threading.Event()

    def loop() -> None:
        steps.step_begins(3)
        steps.step_begins(4)
        began.set()
        ended.wait(60)

    thread = threading.Thread(target=loop)
    thread.start()
    began.wait(60)
    steps.at_exit()
    assert profiler.calls == ["prepare", "start", 3, 4, "stop"]
    assert "reached no point" in log.issues["profile_failed"]
    ended.set()
    thread.join()


def test_a_window_ends_where_a_step_does(window, profiler, clock):
    for second in range(30):
        clock.now = second * SECOND
        window.step_begins(second // 3)
        window.safe_point()
    assert profiler.calls[:3] == ["prepare", "start", 10 // 3]
    assert profiler.calls[-3:] == [None, "stop", "write"]
    assert window.is_over


def test_a_step_is_not_cut_in_two_by_a_windows_end(window, profiler, clock):
    for now, n in ((8, 1), (12, 2), (16, 3)):
        clock.now = now * SECOND
        window.step_begins(n)
    clock.now = 20 * SECOND
    window.safe_point()
    assert not window.is_over
    assert not window.waits()  # a step takes 4 s
    window.ask()
    assert not window.is_over
    clock.now = 21 * SECOND
    window.step_begins(4)
    assert profiler.calls == ["prepare", "start", 2, 3, None, "stop", "write"]


def test_a_step_that_does_not_end_is_cut(window, profiler, clock):
    for now, n in ((8, 1), (12, 2), (16, 3)):
        clock.now = now * SECOND
        window.step_begins(n)
    clock.now = 40 * SECOND
    assert window.waits()
    window.ask()
    assert profiler.calls == ["prepare", "start", 2, 3, None, "stop", "write"]


def test_a_window_without_steps_waits_to_be_asked(window, profiler, clock):
    clock.now = 9 * SECOND
    assert not window.waits()
    clock.now = 11 * SECOND
    assert window.waits()
    window.ask()
    assert not window.waits()
    clock.now = 21 * SECOND
    window.ask()
    assert profiler.calls == ["prepare", "start", "stop", "write"]
    window.ask()
    window.safe_point()
    assert window.is_over


def test_calls_of_a_model_begin_and_end_a_window(window, profiler, clock):
    for tenth in range(95, 230):
        clock.now = tenth * SECOND // 10
        assert not window.waits()
        window.safe_point()
    assert profiler.calls == ["prepare", "start", "stop", "write"]


def test_a_thread_of_a_moment_begins_no_window(window, profiler, clock):
    clock.now = 11 * SECOND
    window.safe_point(may_begin=False)
    assert profiler.calls == []


def test_a_window_that_has_passed_is_over(window, profiler, clock):
    clock.now = 30 * SECOND
    window.safe_point()
    assert (window.is_over, profiler.calls) == (True, [])


def test_a_window_that_cannot_begin_is_over(window, profiler, clock):
    profiler.fails = "prepare"
    clock.now = 11 * SECOND
    window.safe_point()
    assert (window.is_over, profiler.calls) == (True, ["prepare"])


@pytest.mark.parametrize(("now", "codes"), [(15, {"profile_short"}), (21, set())])
def test_a_job_that_ends_in_the_window_leaves_what_it_had(window, profiler, log, clock, now, codes):
    clock.now = 11 * SECOND
    window.safe_point()
    clock.now = now * SECOND
    window.at_exit()
    assert profiler.calls == ["prepare", "start", "stop", "write"]
    assert log.issues.keys() == codes


def test_a_profiler_of_all_threads_may_be_ended_by_another(log, clock):
    profiler = Profiler(any_thread=True)
    profile = Profile(profiler, log, Settings(start_ns=10, end_ns=20))
    clock.now = 15
    profile.ask()
    clock.now = 25
    in_thread(profile.ask)
    assert profiler.calls == ["prepare", "start", "stop", "write"]


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "3"}, 3),
        ({"RANK": "all"}, None),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4"}, 2),
        ({"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINERS_NUM": "1"}, None),
        ({"SLURM_PROCID": "0"}, None),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, 5),
        ({"PMI_RANK": "1", "PMI_SIZE": ""}, None),
    ],
)
def test_the_launcher_tells_the_rank(environment, rank):
    assert _stepscope_profile.rank_of(environment) == rank


def test_files_are_named_by_rank_or_pid_and_packed(tmp_path):
    files = _stepscope_profile
    path = files.target(str(tmp_path), 3, ".json.gz")
    assert path == str(tmp_path / "rank3.json.gz")
    plain = tmp_path / "plain"
    plain.write_bytes(b"ab" * (1 << 20))
    files.pack(files.pieces(str(plain)), str(tmp_path), path)
    with gzip.open(path) as file:
        assert file.read() == plain.read_bytes()
    assert files.target(str(tmp_path), 3, ".json.gz").endswith(f"rank3.pid{os.getpid()}.json.gz")
    assert files.target(str(tmp_path), None, ".json.gz").endswith(f"/pid{os.getpid()}.json.gz")
    assert not list(tmp_path.glob(".*"))


def test_what_is_not_finished_is_removed(tmp_path):
    def fails():
        yield b"a"
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        _stepscope_profile.pack(fails(), str(tmp_path), str(tmp_path / "x.gz"))
    assert not list(tmp_path.iterdir())
    (tmp_path / "folder" / "below").mkdir(parents=True)
    _stepscope_profile.remove(str(tmp_path / "folder"))
    assert not (tmp_path / "folder").exists()


def test_a_lock_of_the_parents_does_not_hold_a_child(steps):
    assert steps._lock.acquire(blocking=False)
    steps.in_child()
    assert isinstance(steps._lock, _thread.LockType)
    assert not steps._lock.locked()


def test_a_profile_that_has_not_begun_moves_to_the_thread_whose_steps_go_on(steps, profiler):
    steps.step_begins(2)  # prepared
    assert (steps.is_near, steps.runs_here) == (True, True)
    begun = []

    def goes_on() -> None:
        begun.append(steps.runs_here)
        steps.moves_here()
        begun.append(steps.runs_here)
        for n in (3, 4, 5):
            steps.step_begins(n)

    in_thread(goes_on)
    assert begun == [False, True]
    assert "start" in str(profiler.calls)
    assert "write" in str(profiler.calls)


def test_a_profile_that_runs_on_a_thread_without_steps_is_not_written(steps, profiler, log):
    for n in (2, 3, 4):
        steps.step_begins(n)
    in_thread(steps.moves_here)
    steps.at_exit()
    assert "write" not in str(profiler.calls)
    assert "calls the model no more" in log.issues["profile_left_out"]
    assert "profile_short" not in log.issues
