"""`stepscope watch`: says while a job runs when its steps take longer than they should, and why."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._output import complain
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS: dict[str, Any] = {
    "short_help": "Say when steps of a job take longer than they should, and why.",
    # What follows the first word that is no option of ours is the job's.
    "context_settings": {"allow_interspersed_args": False},
}
_RATE = regex(r"(\d+(?:\.\d+)?)\s*/\s*(hour|day|week|month)")
_SECONDS = {"hour": 3600.0, "day": 86_400.0, "week": 604_800.0, "month": 2_592_000.0}
#: How long the watch may take after the job's end, to finish looking for a cause.
_LAST_S = 180.0
_KEEP_S, _MOST_DUMPS = 60.0, 20
#: Half of what `record` reads: a watch runs for days, and takes less than a hundredth of a core.
_HZ = 10.0


def command(
    command_line: Annotated[
        list[str] | None, typer.Argument(metavar="[--] COMMAND…", help="The command to run, with its arguments.")
    ] = None,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Record the command into this new or empty folder.")
    ] = "",
    follow: Annotated[str, typer.Option(metavar="DIR", help="Watch the job of a recording that runs.")] = "",
    pid: Annotated[int | None, typer.Option(min=1, help="Watch the recorded job that this process belongs to.")] = None,
    metrics: Annotated[
        str,
        typer.Option(metavar="URL", help="Watch a server of vLLM or SGLang on this machine by its Prometheus metrics."),
    ] = "",
    false_alarms: Annotated[
        str, typer.Option(metavar="N/hour|day|week|month", help="Choose how many false alarms are acceptable.")
    ] = "1/week",
    least: Annotated[
        str, typer.Option(metavar="PERCENT", help="Leave out slowdowns below this. A single stall needs six times it.")
    ] = "5%",
    state: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Keep what was learnt in this file.",
            show_default="DIR.watch.json or HOST-PORT.watch.json",
        ),
    ] = "",
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append each event to this file, as a line of JSON.")
    ] = None,
    on_alarm: Annotated[
        str | None, typer.Option(metavar="CMD", help="Run this for each alarm and each cause, with its JSON as input.")
    ] = None,
    webhook: Annotated[
        str | None, typer.Option(metavar="URL", help="Post the JSON of each alarm and each cause to this address.")
    ] = None,
    prometheus: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Answer at http://127.0.0.1:PORT/metrics; 0: any."),
    ] = None,
    otel: Annotated[
        bool, typer.Option("--otel", help="Send measures by OTLP, as OpenTelemetry's variables OTEL_… say.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier recording in DIR.")] = False,
) -> None:
    """Say while a job or server runs when its steps or tokens take longer than they should, and why.

    Prints a line a minute.

    A command is recorded as by `stepscope record --keep 60s -o DIR`, and gets its exit code. Steps are known of Python
    jobs with torch, Paddle or JAX, or that call stepscope.step(). The watch ends when the job has ended.

    Of a server the time of an output token is compared with what its batch, context and prompts explain.
    """
    rate, worth = _rate(false_alarms), _share(least)
    if bool(command_line) + bool(follow) + (pid is not None) + bool(metrics) != 1:
        raise typer.BadParameter("give a command to run, --follow DIR, --pid N or --metrics URL", param_hint="COMMAND")
    if command_line and not output:
        raise typer.BadParameter("name a folder for the recording of the command, as in -o run1", param_hint="-o DIR")
    if output and not command_line:
        raise typer.BadParameter("it is for the recording of a command, and there is none", param_hint="-o DIR")
    options = ["--false-alarms", false_alarms, "--least", least]
    named = {"--state": state, "--log": log, "--on-alarm": on_alarm, "--webhook": webhook, "--prometheus": prometheus}
    options += [part for name, value in named.items() if value not in ("", None) for part in (name, str(value))]
    options += ["--otel"] * otel
    outputs = _outputs(log, on_alarm, webhook)
    if command_line:
        _check(prometheus, otel=otel)
        _run(command_line, output, options, force=force)
    with _collected(outputs, prometheus, otel=otel) as (board, say), suppress(KeyboardInterrupt):
        from stepscope.watching.watcher import Watcher

        source, path = _of_server(metrics, say) if metrics else _of_job(follow, pid)
        show = board.show if otel or prometheus is not None else None
        Watcher(source, Path(state) if state else path, rate, say, worth, show).run()


def _run(command_line: list[str], folder: str, options: list[str], *, force: bool) -> None:
    """Record the command here, and watch it from a process of its own, so that the recorder remains small."""
    from stepscope import record

    ring = record.Ring(_KEEP_S, max_dumps=_MOST_DUMPS)
    watch = [sys.executable, "-m", "stepscope", "watch", "--follow", folder, *options]
    # Its own session: the signals of a terminal are for the job, and the watch ends with the recording.
    watcher = subprocess.Popen(watch, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)  # noqa: S603
    ended = threading.Event()

    def look_after() -> None:
        if watcher.wait() and not ended.is_set():
            complain(
                f"note: the watch has ended, and the job goes on; watch it with: stepscope watch --follow {folder}"
            )

    threading.Thread(target=look_after, daemon=True).start()
    try:
        done = record.run(command_line, folder, hz=_HZ, ring=ring, force=force)
        ended.set()
        watcher.wait(_LAST_S)
    except subprocess.TimeoutExpired:
        complain("note: the watch was still looking for a cause when the job had ended")
    finally:
        ended.set()
        watcher.terminate()
        watcher.wait()
    for problem in done.problems:
        complain(f"error: {problem}", colour=typer.colors.RED)
    raise typer.Exit(done.exit_code or 0)


def _outputs(log: Path | None, on_alarm: str | None, webhook: str | None) -> Any:
    from stepscope.core.report import printable
    from stepscope.watching.outputs import Outputs

    def write(line: str) -> None:
        typer.echo(printable(line))

    return Outputs(write, log, on_alarm, webhook)


def _check(port: int | None, *, otel: bool) -> None:
    """Raise what would end the watch at once, before the job is started."""
    from stepscope.watching import collectors

    if port:
        collectors.check_port(port)
    if otel:
        collectors.check_opentelemetry()


@contextmanager
def _collected(outputs: Any, port: int | None, *, otel: bool) -> Iterator[Any]:
    """The board of a watch, whose measures are collected until the watch is over, and what takes its events."""
    from stepscope.watching import collectors
    from stepscope.watching.measures import Board

    board = Board()

    def say(event: dict[str, Any]) -> None:
        board.take(event)
        outputs.send(event)

    with ExitStack() as stack:
        stack.callback(outputs.close)
        if otel:
            stack.callback(collectors.send_opentelemetry(board, partial(outputs.problem, "--otel")))
        if port is not None:
            outputs.write(f"metrics: http://127.0.0.1:{collectors.serve_prometheus(board, port)}/metrics")
        yield board, say


def _of_job(follow: str, pid: int | None) -> tuple[Any, Path]:
    """What is watched of a recorded job, and where the state is kept."""
    from stepscope.record.step_times import RunningJob
    from stepscope.watching.job_source import JobSource

    def tell(left_s: float) -> None:
        complain(f"note: {follow} is not there; a recording may begin in it within {left_s:.0f} s")

    job = RunningJob.open(follow, tell) if pid is None else RunningJob.of_process(pid)
    return JobSource(job), job.folder.parent / f"{job.folder.resolve().name}.watch.json"


def _of_server(metrics: str, say: Any) -> tuple[Any, Path]:
    """What is watched of a server, and where the state is kept."""
    from stepscope.record.metrics import MetricsUrl
    from stepscope.watching.server_source import ServerSource

    url = MetricsUrl.of(metrics)
    return ServerSource(url, say), Path(f"{url.host.replace(':', '.')}-{url.port}.watch.json")


def _rate(text: str) -> float:
    """Chosen false alarms in a second."""
    match = _RATE.fullmatch(text)
    if match is None or not float(match[1]):
        raise typer.BadParameter(f"{text} is no rate, as in 1/week or 2/day", param_hint="--false-alarms")
    return float(match[1]) / _SECONDS[match[2]]


def _share(text: str) -> float:
    """A share such as 5%, from 0 to 100 %."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if match is None or float(match[1]) > 100:
        raise typer.BadParameter(f"{text} is no share, as in 5%", param_hint="--least")
    return float(match[1]) / 100
