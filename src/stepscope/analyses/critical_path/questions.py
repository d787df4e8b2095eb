"""The standard questions: what is asked of every recording, if it has what they are about."""

from __future__ import annotations

import re
from collections.abc import Iterator

import polars as pl

from stepscope.analyses.common.span_lookup import of_spans
from stepscope.analyses.critical_path.changes import Change, change_of, changed
from stepscope.analyses.critical_path.replay import Program
from stepscope.core.errors import StepscopeError
from stepscope.core.intervals import own_lengths
from stepscope.core.names import map_names

#: Questions that do not depend on names.
_ALWAYS = (
    "launch: free", "launch: graphs", "loader: hidden", "sync: removed", "copies: free", "comm: free",
    "comm: overlapped", "bandwidth: 2x", "device: fused", "padding: removed", "prefill: removed", "sampling: free",
    "device: free", "host: free",
)  # fmt: skip
_LARGEST = 5


def applicable(program: Program) -> list[list[Change]]:
    """The standard questions that the recording has an answer to."""
    return [wanted for wanted in questions(program) if all(concerns(change, program) for change in wanted)]


def concerns(change: Change, program: Program) -> bool:
    """Whether the recording has anything that the change speaks of."""
    try:
        changed(program, [change])
    except StepscopeError:
        return False
    return True


def questions(program: Program) -> Iterator[list[Change]]:
    """The changes of each standard question."""
    work, spans, threads = program.work, program.spans, program.threads
    lengths = pl.Series(work.end - work.start)
    names = spans["name"].gather(work.row)
    for name in _longest(map_names(names, _family, pl.String()), lengths):
        yield [Change("kernel", _pattern(name, names.unique(), rf"\b{re.escape(name)}\b"), "2x")]
    ops = of_spans(spans, spans["op_id"].gather(work.row), "name")
    if not work.row.size:
        is_op = pl.Series(spans["category"].gather(threads.row) == "operator")
        ops = spans["name"].gather(threads.row).filter(is_op)
        lengths = pl.Series(own_lengths(threads.start, threads.end, threads.parent)).filter(is_op)
    known = spans.filter(pl.col("category") == "operator")["name"].unique()
    for name in _longest(ops.cast(pl.String), lengths):
        yield [Change("op", _pattern(name, known, f"^{re.escape(name)}$"), "2x")]
    for text in _ALWAYS:
        yield [change_of(text)]


#: Longer names are shortened, if enough of them is left to say which is meant.
_READABLE = 24


def _pattern(name: str, known: pl.Series, exact: str) -> str:
    """The shortest pattern for a name that matches the same of the `known` names as the exact one."""
    wanted = known.cast(pl.String).drop_nulls()
    matching = wanted.filter(wanted.str.contains(exact))
    short = [name[: end.start()] for end in re.finditer("_", name) if end.start() >= _READABLE]
    likely = wanted.filter(wanted.str.contains(min(short, key=len, default=name), literal=True)).to_list()
    for pattern in (*short, name, re.escape(name), f"{re.escape(name)}$"):
        try:
            search = re.compile(pattern).search
        except re.error:
            continue
        if [one for one in likely if search(one)] == matching.to_list():
            return pattern
    return exact


def _family(name: str) -> str:
    """The function that a kernel is a variant of: its name without what it returns, where it is, and its parameters."""
    bare = name.replace("(anonymous namespace)", "").removeprefix("void ").lstrip(":")
    return re.split(r"[<(]", bare, maxsplit=1)[0].rpartition("::")[2].strip() or name


def _longest(names: pl.Series, lengths: pl.Series) -> list[str]:
    """The names with the most time."""
    spent = pl.DataFrame({"name": names, "ns": lengths}).drop_nulls("name")
    sums = spent.group_by("name").agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    return sums["name"].head(_LARGEST).to_list()
