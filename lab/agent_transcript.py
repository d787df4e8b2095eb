"""Faults of the lab, diagnosed by an agent that knows nothing of them: what it asks the server, and what it learns.

    python lab/agent_transcript.py FOLDER... [--write]

A folder holds cases (`CASE/normal0`, `CASE/abnormal`), or the recordings of `lab/faults.py` (`healthy0` and faults).
The agent opens both runs, compares them, and asks for the evidence of the first finding. `--write` puts the calls and
what decides of their answers into docs/agents/transcript.md.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp.client.client import Client

from stepscope.agents.answers import MOST_BYTES
from stepscope.agents.roots import Runs
from stepscope.agents.server import server

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[1] / "docs" / "agents" / "transcript.md"
BEGIN, END = "<!-- cases -->", "<!-- end of cases -->"
_SPANS = 2
_HANDLE = re.compile(r"run-[0-9a-f]{12}")


@dataclass(frozen=True)
class Case:
    """Two recordings of one job, the second perhaps with a fault."""

    name: str
    base: Path
    other: Path


@dataclass
class Session:
    """The calls of an agent, each with its answer."""

    calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    #: Bytes of the longest answer as it was sent.
    longest: int = 0

    @property
    def compared(self) -> dict[str, Any]:
        """The answer of compare."""
        return next(answer for tool, _, answer in self.calls if tool == "compare")

    @property
    def finding(self) -> dict[str, Any] | None:
        """The finding that was explained, if compare had one."""
        return next((answer["findings"][0] for tool, _, answer in self.calls if tool == "explain"), None)


def cases(folder: Path) -> Iterator[Case]:
    """The cases of a folder, by name."""
    healthy = folder / "healthy0"
    for one in sorted(path for path in folder.iterdir() if path.is_dir()):
        if (one / "abnormal").is_dir():
            yield Case(one.name, one / "normal0", one / "abnormal")
        elif healthy.is_dir() and not one.name.startswith("healthy"):
            yield Case(one.name, healthy, one)


async def diagnosed(case: Case, root: Path) -> Session:
    """What an agent does that follows `next`: open both, compare, explain the first finding if there is one."""
    made = Session()
    async with Client(server(Runs((root,)))) as client:

        async def call(tool: str, **arguments: Any) -> dict[str, Any]:
            result = await client.call_tool(tool, arguments)
            if result.is_error:
                sys.exit(f"{case.name}: {tool}: {result.content}")
            made.longest = max(made.longest, len(result.model_dump_json(by_alias=True).encode()))
            answer: dict[str, Any] = result.structured_content
            made.calls.append((tool, arguments, answer))
            return answer

        paths = [str(path.relative_to(root)) for path in (case.base, case.other)]
        base, other = [(await call("open", paths=[path]))["run"] for path in paths]
        compared = await call("compare", base=base, other=other)
        for one in [one for one in compared["next"] if one["tool"] == "explain"][:1]:
            await call("explain", **one["arguments"])
    return made


def told(case: Case, session: Session) -> str:
    """The calls of a session for a page, their answers shortened to what decides."""
    lines = [f"## {case.name}", "", "```"]
    for tool, arguments, answer in session.calls:
        lines.append(f"{tool}({', '.join(f'{name}={_literal(value)}' for name, value in arguments.items())})")
        lines.append(f"  → {answer['run'] + ', ' if tool == 'open' else ''}{_headline(tool, answer)}")
        if tool == "explain":
            lines += [f"    {detail}" for detail in answer["findings"][0].get("details", ())]
            lines += [f"    {line}" for line in _spans(answer)]
    return "\n".join([*lines, "```"])


def _headline(tool: str, answer: dict[str, Any]) -> str:
    return str(answer["findings"][0]["title"] if tool == "explain" else answer["headline"])


def _literal(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _spans(answer: dict[str, Any]) -> Iterator[str]:
    """The longest spans of the evidence; columns that say nothing of this run are not there."""
    names = [column["name"] for column in answer.get("columns", ())]
    for values in answer.get("rows", [])[:_SPANS]:
        row = dict(zip(names, values, strict=True))
        rank = f" of rank {row['rank']}" if "rank" in row else ""
        step = f", step {row['step']}" if row.get("step") is not None else ""
        yield f"span {row['span_id']}{rank}: {row['name']}{step}, {row['dur_ns']} ns"


def is_on_page(text: str) -> bool:
    """Whether the page tells this case in these words; handles differ with the place of the recordings."""
    told_there = _HANDLE.sub("run", PAGE.read_text(encoding="utf-8"))
    return _HANDLE.sub("run", text) in told_there


def write(text: str) -> None:
    """Put the cases into the page, between its marks."""
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    """Diagnose all cases, and print what was said."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    given = parser.parse_args()
    texts = []
    for folder in (folder.resolve() for folder in given.folders):
        for case in cases(folder):
            session = asyncio.run(diagnosed(case, folder))
            if session.longest > MOST_BYTES:
                sys.exit(f"{case.name}: an answer of {session.longest:,} bytes")
            texts.append(told(case, session))
            print(texts[-1], end="\n\n", flush=True)
    if given.write:
        write("\n\n".join(texts))


if __name__ == "__main__":
    main()
