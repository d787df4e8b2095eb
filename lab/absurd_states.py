"""What a watch and a history keep and read, made absurd: each must be taken, left out with a word, or refused.

python absurd_states.py [--cases 3000] [--first 0]

A case changes the state file of a watch, the metrics of a server that is watched, the times of steps of a job, or a
store of runs, and goes on. Exit code 1 if anything but a StepscopeError came of it, or it took too long.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard
from absurd_changes import OF_VALUES, reshaped

from stepscope.api.history import compare_last_change, history
from stepscope.comparison.history.digest import Digest, Function, Head, Size, encode
from stepscope.comparison.history.series import rows_of
from stepscope.core.errors import StepscopeError
from stepscope.record.metrics import MetricsUrl
from stepscope.store import history_folder
from stepscope.watching.measures import Board, exposition
from stepscope.watching.server_source import ServerSource
from stepscope.watching.streams import Cycles, Stream, follow, load_state, save_state
from stepscope.watching.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 10
_ODD = (0.0, -1.0, 1e-300, 1e300, 1.7e308, math.nan, math.inf, -math.inf, 2.0**62, 2.0**63, 2.0**64)


def learnt(n_cycles: int = 1500, *, has_work: bool = False) -> dict[str, Stream]:
    """What a watch knows of a stream after so many cycles."""
    random = np.random.default_rng(7)
    stream = Stream()
    for start in range(0, n_cycles, 100):
        times = tuple(int(one) for one in random.lognormal(16, 0.05, 100))
        work = tuple((8.0, 100.0, float(i % 3)) for i in range(100)) if has_work else None
        stream, _, _ = follow(stream, Cycles("a", 1, start + 100, times, (1,) * 100, work), 1e-6)
    return {"rank 0": stream}


_KNOWN: list[dict[str, Stream]] = []


def _of_state(folder: Path, random: Random) -> None:
    """A changed state is refused, or the watch goes on with it."""
    if not _KNOWN:
        _KNOWN.extend((learnt(), learnt(200), learnt(has_work=True)))
    path = folder / "state.json"
    save_state(path, random.choice(_KNOWN))
    document = json.loads(path.read_text())
    path.write_text(json.dumps(_changed(document, random)))
    streams = load_state(path)
    for known in list(streams.values())[:3]:
        stream = known
        for n in (1, 100):
            times = tuple(random.choice((0, 1, 10**7, 2**62)) for _ in range(n))
            work = ((8.0, 100.0, 1.0),) * n if random.random() < 0.5 else None
            stream, _, _ = follow(
                stream, Cycles("rank 0", random.choice((1, 2)), stream.n + n, times, (1,) * n, work, 1.0), 1e-6
            )
    save_state(path, streams)


def _changed(document: Any, random: Random) -> Any:
    """The document with one or two of its values, or its shape, changed."""
    for _ in range(random.choice((1, 1, 2, 5))):
        rows: list[dict[str, Any]] = []
        lists: list[list[Any]] = []
        _collect(document, rows, lists)
        way = random.random()
        if way < 0.3 and rows:
            reshaped(rows, lists, random)
        elif way < 0.7 and rows:
            row = random.choice(rows)
            if row:
                key = random.choice(list(row))
                row[key] = random.choice(OF_VALUES[random.choice(list(OF_VALUES))])(
                    row[key], random.randrange(9), random
                )
        elif lists and (some := random.choice(lists)):
            some[random.randrange(len(some))] = random.choice((*_ODD, None, "x", [], True, 10**400))
    return document


def _collect(value: Any, rows: list[dict[str, Any]], lists: list[list[Any]]) -> None:
    if isinstance(value, dict):
        rows.append(value)
    elif isinstance(value, list):
        lists.append(value)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        if isinstance(inner, dict | list):
            _collect(inner, rows, lists)


_METRICS = (
    "inter_token_latency_seconds_sum", "inter_token_latency_seconds_count", "iteration_tokens_total_count",
    "time_to_first_token_seconds_sum", "time_to_first_token_seconds_count", "prompt_tokens_total",
    "prefix_cache_hits_total", "spec_decode_num_drafts_total", "spec_decode_num_accepted_tokens_total",
    "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
    "inter_token_latency_seconds_created",
)  # fmt: skip


def _of_metrics(folder: Path, random: Random) -> None:
    """A server that says anything is watched on."""
    odd, n = random.random() * 0.3, [0]

    def scrape(_: MetricsUrl) -> str:
        n[0] += 1
        lines = [f"process_start_time_seconds {random.choice(_ODD) if random.random() < odd / 4 else 1.7e9}"]
        for engine in range(random.choice((1, 1, 2, 70))):
            for metric in _METRICS:
                value: object = n[0] * 20 if metric.endswith(("_count", "_total")) else n[0] * 0.4
                value = repr(random.choice((*_ODD, -7, "x", "", "+Inf", "1e400"))) if random.random() < odd else value
                label = (
                    random.choice((str(engine), "\x1b[2J", "x" * 5000, 'a\\"b'))
                    if random.random() < odd / 9
                    else engine
                )
                lines.append(f'vllm:{metric}{{engine="{label}",model_name="m"}} {str(value).strip(chr(39))}')
            blocks = random.choice(("100", "inf", "nan", "1e308", "-1")) if random.random() < odd else "100"
            lines.append(f'vllm:cache_config_info{{engine="{engine}",num_gpu_blocks="{blocks}",block_size="16"}} 1')
        return "\n".join(lines)

    now = [100.0]
    events: list[dict[str, Any]] = []
    board = Board()
    source = ServerSource(MetricsUrl("127.0.0.1", 1, "/metrics", "url"), events.append, scrape, lambda: now[0])
    watcher = Watcher(source, folder / "state.json", 1e-6, events.append, 0.05, board.show)
    for _ in range(60):
        now[0] += random.choice((1.0, 1.0, 1.0, 0.0, -5.0, 1e9))
        watcher.tick()
    for alarm in [
        event for event in events if event["event"] == "alarm" and event.get("kind") in ("stall", "slow", "creep")
    ]:
        source.cause(alarm)
    watcher._report_minute()
    exposition(board.measures())
    watcher.save()
    json.dumps(events, allow_nan=False)
    load_state(folder / "state.json")


def _run_of(number: int, random: Random) -> Digest:
    step = 1e7 * (1 + 0.2 * (number > 10)) * random.uniform(0.99, 1.01)
    head = Head(
        f"{number:024x}", 10**18 + number, 10**18, f"run {number}", "abc", ("/a",), 2, 50, "steps", step, 1e4, 0.01
    )
    functions = tuple(Function("host", f"f{i}", 2.0, step / 9) for i in range(4))
    sizes = tuple(Size(f"f{i}", "[[2, 3]]", 2.0, step / 9) for i in range(4))
    return Digest(
        head, {"computation": step / 2}, functions, sizes, (("gpu0", "power", 5.0),), (("device", "name", "A"),)
    )


def _of_history(folder: Path, random: Random) -> None:
    """A store in which runs were changed."""
    for number in range(random.choice((1, 2, 20))):
        digest = _run_of(number, random)
        history_folder.put(str(folder), digest.head.key, encode(digest.head), encode(digest))
        if random.random() < 0.3:
            path = folder / f"{digest.head.key}{random.choice(('.head.json', '.digest.json.zst'))}"
            data = path.read_bytes()
            document = json.loads(zstandard.decompress(data) if path.suffix == ".zst" else data)
            text = json.dumps(_changed(document, random)).encode("utf-8", "surrogatepass")
            path.write_bytes(zstandard.compress(text) if path.suffix == ".zst" else text)
    said: list[StepscopeError] = []
    series = history(str(folder), on_damage=said.append)
    rows = rows_of(series)
    if rows["step_ns"].is_nan().any() or rows["level_ns"].is_nan().any():
        raise AssertionError("a step that is no number")
    compare_last_change(series)
    [str(change.ratio) for change in series.changes]


KINDS: tuple[Callable[[Path, Random], None], ...] = (_of_state, _of_metrics, _of_history)


def main() -> int:
    """Run the cases, print what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _alarm)
    outcomes: Counter[str] = Counter()
    failures: dict[str, list[int]] = {}
    traces: dict[str, str] = {}
    for case in range(given.first, given.first + given.cases):
        random = Random(case)
        kind = KINDS[case % len(KINDS)]
        with tempfile.TemporaryDirectory() as folder:
            signal.setitimer(signal.ITIMER_REAL, 6 * SECONDS)
            try:
                kind(Path(folder), random)
                outcomes[f"{kind.__name__}: taken"] += 1
            except StepscopeError as error:
                outcomes[f"{kind.__name__}: {type(error).__name__}"] += 1
            except (Exception, _TookTooLongError) as error:  # noqa: BLE001  whatever a bug raises
                place = traceback.extract_tb(error.__traceback__)[-1]
                key = f"{kind.__name__}: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
                failures.setdefault(key, []).append(case)
                traces.setdefault(key, "".join(traceback.format_exception(error)[-6:]))
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    for what, n in sorted(outcomes.items()):
        print(f"{what}: {n:,}")
    for key, cases in failures.items():
        print(f"FAILED {len(cases):,} × {key}\n  cases {cases[:12]}\n{traces[key]}")
    print("no failures" if not failures else "")
    return 1 if failures else 0


class _TookTooLongError(BaseException):
    """No Exception, so that nothing on the way can take it for one of its own."""


def _alarm(_signal: int, _frame: object) -> None:
    raise _TookTooLongError


if __name__ == "__main__":
    sys.exit(main())
