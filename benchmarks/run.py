"""What `stepscope` costs on big traces, whole processes with imports included: a markdown page on stdout.

python run.py [--write] [--only KEY,KEY] [--runs N] [--peers] [--cores]     `make bench` runs it

--peers measures other tools too (installed on first use), as does BENCH_PEERS=1 in the environment; --cores how wall
time falls with cores. Environment: BENCH_ALL=1 tries tools also on traces that would take them minutes; BENCH_TIMEOUT
seconds each may take (900); BENCH_CACHE where traces and tools are kept (~/.cache).
"""

from __future__ import annotations

import argparse
import os
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import inputs
import measure
import page
import peers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from measure import Cost
    from page import Row

PAGE = inputs.ROOT / "docs" / "benchmarks.md"
#: Above this, one run says enough.
ONE_RUN_BYTES = 500 * inputs.MB
HELP_CPU_S = 0.25
MEMORY_FOR_PEERS = 0.8


def main() -> int:
    """Measure what was asked for. Exit code 1 if one of our commands failed."""
    given = arguments()
    made = list(make_inputs(given.only))
    rows = [row for one in made for row in of_stepscope(one, given.runs)]
    rows.insert(0, of_help(given.runs))
    blocks = [page.head(python=sys.version.split()[0], packages=versions()), page.stepscope(rows)]
    if given.cores:
        blocks.append(page.cores(list(of_cores(made, given.runs))))
    if given.peers or os.environ.get("BENCH_PEERS") == "1":
        blocks.append(page.peers(peers.PEERS, of_peers(made, rows, given.runs)))
    text = "".join(blocks)
    print(text)
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
        say(f"written to {PAGE}")
    return int(any(row.cost.failure for row in rows))


def arguments() -> argparse.Namespace:
    """The command line."""
    keys = [one.key for one in inputs.all_inputs()]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(inputs.ROOT)} too")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of {','.join(keys)}")
    parser.add_argument("--runs", type=int, default=3, help="the best of so many (traces over 500 MB: one)")
    parser.add_argument("--peers", action="store_true", help="other tools on the same traces")
    parser.add_argument("--cores", action="store_true", help="our report on one core and on two")
    given = parser.parse_args()
    if unknown := set(given.only or ()) - set(keys):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there is {', '.join(keys)}")
    return given


def make_inputs(only: Sequence[str] | None) -> Iterator[inputs.Made]:
    """The wanted traces, made where needed; one that cannot be made is named and left out."""
    cache = inputs.cache_folder()
    for wanted in inputs.all_inputs():
        if only is None or wanted.key in only:
            say(f"making {wanted.title}")
            try:
                yield inputs.make(wanted, cache)
            except inputs.NotMade as error:
                say(f"left out: {error}")


def of_stepscope(made: inputs.Made, runs: int) -> Iterator[Row]:
    """What a report, an analysis and, where there is a target, all views of the TensorBoard plugin cost."""
    asked: list[tuple[tuple[str, ...], inputs.Target | None]] = [
        (("report",), made.input.target), (("show", made.input.show), None),
    ]  # fmt: skip
    if made.input.exported:
        asked.append((("export", "--to", "tensorboard", "-o", os.devnull), made.input.exported))
    for words, goal in asked:
        cost = of_command((*words, str(made.path)), made.n_bytes, runs)
        yield page.Row(made, " ".join(words).partition(" -o")[0], cost, goal)


def of_help(runs: int) -> Row:
    """What it costs to start."""
    return page.Row(None, "--help", of_command(("--help",), 0, max(runs, 5)), inputs.Target(HELP_CPU_S))


def of_cores(made: Sequence[inputs.Made], runs: int) -> Iterator[page.OnCores]:
    """For each trace that is one file what our report costs on one core and on two."""
    for one in made:
        if one.path.is_file():
            costs = [of_command(("report", str(one.path)), one.n_bytes, runs, cores=n) for n in (1, 2)]
            yield page.OnCores(one, *costs)


def of_command(words: Sequence[str], n_bytes: int, runs: int, cores: int | None = None) -> Cost:
    """Run `stepscope` with these words: the installed command, or the module where it is not installed."""
    installed = Path(sys.executable).with_name("stepscope")
    command = [str(installed)] if installed.exists() else [sys.executable, "-m", "stepscope"]
    say(f"stepscope {' '.join(words)}")
    return measure.best([*command, *words], runs=runs_of(n_bytes, runs), timeout_s=timeout_s(), cores=cores)


def of_peers(made: Sequence[inputs.Made], rows: Sequence[Row], runs: int) -> list[page.Beside]:
    """For each trace that is one file: what our report cost, and what each of the other tools did."""
    ours = {row.made.input.key: row.cost for row in rows if row.made and row.what == "report"}
    files = [one for one in made if one.path.is_file()]
    return [page.Beside(one, ours[one.input.key], [of_peer(p, one, runs) for p in peers.PEERS]) for one in files]


def of_peer(peer: peers.Peer, made: inputs.Made, runs: int) -> Cost | None:
    """What the tool costs on the trace, None if the trace is too big to try it unasked."""
    if made.n_bytes > peer.max_input_bytes and os.environ.get("BENCH_ALL") != "1":
        return None
    say(f"{peer.name} on {made.input.title}")
    try:
        command = peers.command(peer, inputs.cache_folder(), made.path)
    except peers.NotInstalled as error:
        return measure.Cost(0, 0, 0, f"not installed: {error}")
    memory = int(MEMORY_FOR_PEERS * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return measure.best(command, runs=runs_of(made.n_bytes, runs), timeout_s=timeout_s(), max_bytes=memory)


def runs_of(n_bytes: int, runs: int) -> int:
    """How often a trace of that size is measured, the same for every tool."""
    return 1 if n_bytes > ONE_RUN_BYTES else runs


def timeout_s() -> float:
    """How long any one command may take."""
    return float(os.environ.get("BENCH_TIMEOUT") or 900)


def versions() -> dict[str, str]:
    """Packages that the numbers depend on."""
    return {name: metadata.version(name) for name in ("polars", "numpy", "msgspec", "isal") if installed(name)}


def installed(name: str) -> bool:
    """Whether a package is there."""
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def say(text: str) -> None:
    """Tell the one who waits what is going on."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
