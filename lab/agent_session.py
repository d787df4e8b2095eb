"""A long session of an agent that asks for one big trace: how much memory the server keeps, how long answers are.

python agent_session.py TRACE [--calls 500] [--seed 0]

Asks the server in this process through the SDK's client: reports, evidence, tables with conditions, SQL, predictions,
and one wrong call in ten. Exit code 1 if an answer is longer than 8 kB, or if the process has grown by more than
100 MB since each tool was asked once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from mcp.client.client import Client

from stepscope.agents.answers import MOST_BYTES
from stepscope.agents.roots import Runs
from stepscope.agents.server import server
from stepscope.query import tables

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_GROWTH_MB = 100
TABLES = [name for name, _ in tables.names()]
QUERIES = (
    "SELECT category, count(*), sum(dur_ns) FROM spans GROUP BY 1",
    "SELECT name, sum(total_ns) AS ns FROM kernels GROUP BY 1 ORDER BY ns DESC",
    "SELECT * FROM spans WHERE dur_ns > {n} ORDER BY dur_ns DESC LIMIT 1000",
    "SELECT step, window_ns FROM steps",
    "SELECT * FROM information_schema.columns",
    "SELECT track_id, max(ts_ns + dur_ns) - min(ts_ns) FROM spans GROUP BY 1 LIMIT {n}",
)
CHANGES = ("class gemm: 2x", "launch: free", "loader: hidden", "copies: free", "comm: free", "host: free", "gpu: B200")
WRONG = (
    ("show", {"table": "no-such-table"}),
    ("show", {"table": "kernels", "where": "("}),
    ("sql", {"query": "SELECT name, sum(dur_ns) FROM kernels GROUP BY 1"}),
    ("sql", {"query": "DROP TABLE spans"}),
    ("sql", {"query": "SELECT * FROM read_csv('/etc/passwd')"}),
    ("explain", {"finding": 900}),
    ("predict", {"changes": ["everything: 2x"]}),
    ("report", {"run": "run-000000000000"}),
)


def one_of_each(run: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A call of each tool that asks for one run."""
    yield "report", {"run": run}
    yield "explain", {"run": run, "finding": 1}
    yield "show", {"run": run, "table": "kernels"}
    yield "sql", {"run": run, "query": QUERIES[0]}
    yield "predict", {"run": run}
    yield "predict", {"run": run, "changes": [CHANGES[0]]}


def random_call(run: str, random: Random) -> tuple[str, dict[str, Any]]:
    """Any call, as an agent that looks for something makes it."""
    if random.random() < 0.1:
        tool, arguments = random.choice(WRONG)
        return tool, {"run": run, **arguments}
    match random.choices(("show", "sql", "explain", "predict", "report"), (5, 3, 2, 1, 1))[0]:
        case "show":
            return "show", {"run": run, "table": random.choice(TABLES), "limit": random.choice((5, 20, 1000))}
        case "sql":
            return "sql", {"run": run, "query": random.choice(QUERIES).replace("{n}", str(random.randrange(1, 10**6)))}
        case "explain":
            return "explain", {"run": run, "finding": random.randrange(1, 6)}
        case "predict":
            return "predict", {"run": run, "changes": random.sample(CHANGES, random.choice((1, 2)))}
    return "report", {"run": run}


async def session(trace: Path, n_calls: int, seed: int) -> int:
    """Ask and print what became of it. Returns the exit code."""
    random, became, longest, slowest = Random(seed), Counter[str](), 0, (0.0, "")
    began = time.monotonic()
    async with Client(server(Runs((trace.parent,)))) as client:
        opened = await client.call_tool("open", {"paths": [trace.name]})
        run = opened.structured_content["run"]
        calls = [*one_of_each(run), *(random_call(run, random) for _ in range(n_calls))]
        first_mb = 0.0
        for i, (tool, arguments) in enumerate(calls):
            if i == len(calls) - n_calls:
                first_mb = resident_mb()
            asked = time.monotonic()
            answer = await client.call_tool(tool, arguments)
            slowest = max(slowest, (time.monotonic() - asked, f"{tool} {arguments}"))
            longest = max(longest, len(answer.model_dump_json(by_alias=True).encode()))
            became[f"{tool}: {'refused' if answer.is_error else 'answered'}"] += 1
            if i % 50 == 0:
                print(f"{i:5} calls, {resident_mb():,.0f} MB", file=sys.stderr, flush=True)
    growth_mb = resident_mb() - first_mb
    for what, n in sorted(became.items()):
        print(f"{what:20} {n:5}")
    print(f"{len(calls)} calls in {time.monotonic() - began:,.0f} s, the slowest {slowest[0]:.1f} s: {slowest[1]}")
    print(f"longest answer {longest:,} bytes of {MOST_BYTES:,}")
    print(f"{first_mb:,.0f} MB after one call of each tool, {growth_mb:+,.0f} MB in {n_calls} more")
    return int(longest > MOST_BYTES or growth_mb > MOST_GROWTH_MB)


def resident_mb() -> float:
    """What this process holds of the memory, without pages of files that it maps."""
    gc.collect()
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return float(lines["RssAnon"].split()[0]) / 1000


def main() -> int:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    return asyncio.run(session(given.trace.resolve(), given.calls, given.seed))


if __name__ == "__main__":
    sys.exit(main())
