"""`stepscope record`: run a job, or join a running one, and record what it and its machine did."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._output import complain
from stepscope.cli._run import seconds_of
from stepscope.core.errors import StepscopeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.record import Recorded, Ring

SETTINGS: dict[str, Any] = {
    "short_help": "Run a job, or join a running one, and record it.",
    # What follows the first word that is no option of ours is the job's.
    "context_settings": {"allow_interspersed_args": False},
}
_STACKS_HZ = 100


def command(
    command_line: Annotated[
        list[str] | None, typer.Argument(metavar="[--] COMMAND…", help="The command to run, with its arguments.")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Record into this folder, which must be new or empty.")
    ] = "",
    pid: Annotated[int | None, typer.Option(min=1, help="Join this running process instead of starting one.")] = None,
    duration: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="With --pid: record for this time (30s, 5m). Default: until the process ends."
        ),
    ] = None,
    hz: Annotated[float, typer.Option(min=0.1, max=200, help="Sample counters so many times a second.")] = 20.0,
    steps: Annotated[
        str, typer.Option(metavar="A:B", help="Profile the steps from A up to B (without B) with torch, Paddle or JAX.")
    ] = "5:15",
    window: Annotated[
        str, typer.Option(metavar="A:B", help="Profile a window of time after the start instead of steps (20s:30s).")
    ] = "",
    memory: Annotated[bool, typer.Option("--memory", help="Record the memory of tensors too (PyTorch).")] = False,
    memory_snapshot: Annotated[
        bool,
        typer.Option(
            "--memory-snapshot",
            help="Write the history of device memory at the end, on SIGUSR1, and out of memory (PyTorch, CUDA).",
        ),
    ] = False,
    no_profiler: Annotated[
        bool, typer.Option("--no-profiler", help="Record no profile, only counters (and stacks).")
    ] = False,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Record Python stacks of all threads too, with py-spy.")
    ] = False,
    stacks_hz: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="With --stacks: sample stacks so many times a second.  [default: 100]"),
    ] = None,
    sched: Annotated[
        bool, typer.Option("--sched", help="Record when threads had a core or waited for one too (may need rights).")
    ] = False,
    keep: Annotated[
        str | None, typer.Option(metavar="TIME", help="Keep only the last TIME (60s), and dump it on SIGUSR1.")
    ] = None,
    trigger: Annotated[
        str | None,
        typer.Option(metavar="Nx", help="Dump when a step takes N times as long as usual (2x). Implies --keep 60s."),
    ] = None,
    trigger_hang: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="When no step ends for TIME (60s), ask all ranks what they do, and go on."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Scrape a server's metrics on this machine: http://localhost:8000/metrics."),
    ] = None,
    max_dumps: Annotated[int, typer.Option(min=1, max=9999, help="With --keep: write at most so many dumps.")] = 10,
    dump: Annotated[
        str | None, typer.Option(metavar="DIR", help="Make the running recording with --keep into DIR dump now.")
    ] = None,
    repeat: Annotated[
        int, typer.Option(min=1, max=99, help="Record the command so many times, into folders of -o DIR.")
    ] = 1,
    against: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Record the command of this recording too, in turns: compare -o DIR then."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier recording in DIR.")] = False,
) -> None:
    """Run a job, or join a running one, and record it into a folder. Read it with stepscope report DIR.

    The job is not changed. It keeps its standard input, output and error, and receives the signals that this command
    receives. The exit code is that of the job, or 128 + N if signal N ended it.
    """
    from stepscope import record

    if dump is not None:
        _dump(dump, is_only_option=not (output or command_line or pid))
        return
    if not output:
        raise typer.BadParameter("name a folder for the recording", param_hint="-o DIR")
    in_turns = repeat > 1 or against is not None
    _check(is_command=bool(command_line), is_joined=pid is not None, duration=duration, trigger=trigger)
    _check_start(pid, trigger_hang=trigger_hang, memory_snapshot=memory_snapshot, turns=in_turns)
    hang_s = None if trigger_hang is None else _seconds(trigger_hang, "--trigger-hang")
    if memory and (pid is not None or no_profiler):
        raise typer.BadParameter("needs a profile, and only a job that `record` starts has one", param_hint="--memory")
    more: dict[str, Any] = {
        "hz": hz,
        "sched": sched,
        "stacks_hz": stacks_hz or (_STACKS_HZ if stacks else None),
        "ring": _ring(keep, trigger, max_dumps),
        "metrics": metrics,
        "force": force,
    }
    if pid is not None:
        seconds = None if duration is None else _seconds(duration, "--duration")
        done = record.attach(pid, output, seconds=seconds, **more)
        _tell(done, output)
    else:
        wanted = None if no_profiler else _steps(steps)
        times = _window(window) if window and not no_profiler else None
        more |= {"memory": memory, "memory_snapshots": memory_snapshot, "hang_s": hang_s}
        more |= {"steps": wanted, "window": times}
        if in_turns:
            done = _in_turns(more, list(command_line or ()), output, repeat, against)
        else:
            done = record.run(list(command_line or ()), output, **more)
            _tell(done, output)
    if done.exit_code is not None:
        raise typer.Exit(done.exit_code)
    if done.problems:
        raise typer.Exit(StepscopeError.exit_code)


def _check(*, is_command: bool, is_joined: bool, duration: str | None, trigger: str | None) -> None:
    if is_command == is_joined:
        raise typer.BadParameter("give a command to run, or --pid N to join a process", param_hint="COMMAND")
    if duration is not None and not is_joined:
        raise typer.BadParameter("works with --pid; a command is recorded until it ends", param_hint="--duration")
    if trigger is not None and is_joined:
        why = "needs a command that `record` starts, because the steps of a running process are not known"
        raise typer.BadParameter(why, param_hint="--trigger")


def _check_start(pid: int | None, *, trigger_hang: str | None, memory_snapshot: bool, turns: bool) -> None:
    """Options that need a command which `record` starts, and no running process."""
    if pid is None:
        return
    if trigger_hang is not None:
        why = f"needs a command that `record` starts; of a running job ask: stepscope hang --pid {pid}"
        raise typer.BadParameter(why, param_hint="--trigger-hang")
    if memory_snapshot:
        raise typer.BadParameter("needs a job that `record` starts", param_hint="--memory-snapshot")
    if turns:
        raise typer.BadParameter("needs a command that `record` starts", param_hint="--repeat, --against")


def _in_turns(options: dict[str, Any], command_line: list[str], output: str, n: int, against: str | None) -> Recorded:
    """Record the command several times, in turns with that of an earlier recording; the last recording."""
    from stepscope import record
    from stepscope.record import repeats

    def one(command: Sequence[str], folder: Path) -> Recorded:
        return record.run(command, folder, **options)

    earlier = None if against is None else repeats.Earlier.of(Path(against), command_line)
    for path, done in repeats.repeated(one, command_line, Path(output), n, earlier):
        _tell(done, str(path))
        last = done
    if sys.stderr.isatty() and earlier is not None:
        complain(f"compare the two: stepscope compare {output}")
    return last


def _dump(folder: str, *, is_only_option: bool) -> None:
    from stepscope import record

    if not is_only_option:
        raise typer.BadParameter("takes no command, --pid or -o: name only the recording", param_hint="--dump")
    typer.echo(str(record.dump(Path(folder))))


def _ring(keep: str | None, trigger: str | None, max_dumps: int) -> Ring | None:
    from stepscope import record

    if keep is None and trigger is None:
        return None
    times = None if trigger is None else re.fullmatch(r"(\d+(?:\.\d+)?)\s*[x×]?", trigger)
    if trigger is not None and (times is None or float(times[1]) <= 1):
        raise typer.BadParameter(f"{trigger} is not a multiple of the usual time, as in 2x", param_hint="--trigger")
    keep_s = {} if keep is None else {"keep_s": _seconds(keep, "--keep")}
    return record.Ring(trigger=None if times is None else float(times[1]), max_dumps=max_dumps, **keep_s)


def _tell(done: Recorded, output: str) -> None:
    """Report problems and, on a terminal only, how to read the recording."""
    for problem in done.problems:
        complain(f"error: {problem}", colour=typer.colors.RED)
    for remark in done.remarks:
        complain(f"note: {remark}")
    if sys.stderr.isatty():
        traces = f", {len(done.traces)} profile{'s' * (len(done.traces) != 1)}" if done.traces else ""
        complain(f"recorded {done.seconds:.1f} s into {output}{traces}; read it with: stepscope report {output}")


def _seconds(text: str, option: str) -> float:
    seconds = seconds_of(text, option=option, default_unit="s")
    if not seconds:
        raise typer.BadParameter(f"{text} is no time; name a time above 0, as in 30s or 5m", param_hint=option)
    return seconds


def _window(text: str) -> tuple[float, float]:
    times = [seconds_of(part, option="--window", default_unit="s") for part in text.split(":")]
    if len(times) == 2 and times[0] < times[1]:
        return times[0], times[1]
    raise typer.BadParameter(f"{text} is not two times in ascending order, as in 20s:30s", param_hint="--window")


def _steps(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match or not 1 <= int(match[1]) < int(match[2]):
        raise typer.BadParameter(f"{text} is not A:B with 1 ≤ A < B, as in 5:15", param_hint="--steps")
    return int(match[1]), int(match[2])
