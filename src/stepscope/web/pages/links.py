"""Addresses of the page, for commands of the report and for the events of a row."""

from __future__ import annotations

import shlex
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: Columns that hold the start and the length of what a row is about, the first pair that is there.
_STRETCHES = (("ts_ns", "dur_ns"), ("ts_ns", "on_path_ns"), ("ts_ns", "window_ns"), ("ts_ns", "total_ns"))
_NAMES = ("name", "op", "module")
_LONGEST_NAME = 1_000
_AROUND_NS = 500_000


def stretch_columns(columns: Sequence[str]) -> tuple[str, str] | None:
    """The columns of a table that hold the start and the length of what a row is about, if it has them."""
    return next((pair for pair in _STRETCHES if set(pair) <= set(columns)), None)


class Links(msgspec.Struct, frozen=True):
    """Makes addresses. `root` is what the app is mounted under; `inputs` are those that the page is about.

    `of_rank` and `of_label` give the input of a row of several traces.
    """

    root: str = ""
    inputs: tuple[int, ...] = ()
    n_inputs: int = 1
    of_rank: Mapping[int, int] | None = None
    of_label: Mapping[str, int] | None = None

    def to(self, path: str, **parameters: object) -> str:
        """An address with these parameters and the inputs chosen, where not all are."""
        pairs = [(name.replace("__", "."), str(value)) for name, value in parameters.items() if value not in (None, "")]
        if "t" not in parameters and self.inputs and len(self.inputs) < self.n_inputs:
            pairs.append(("t", ",".join(map(str, self.inputs))))
        return self.root + path + ("?" + urlencode(pairs) if pairs else "")

    def table(self, name: str, **parameters: object) -> str:
        """The address of a table."""
        return self.to("/tables/" + quote(name, safe=""), **parameters)

    def what_if(self, question: str, **parameters: object) -> str:
        """The page "What if" with the changes of a question, one a line."""
        changes = urlencode([("if", change) for change in question.splitlines()])
        address = self.to("/what-if", **parameters)
        return f"{address}{'&' if '?' in address else '?'}{changes}"

    def command(self, text: str) -> str | None:
        """The address of a command without its `stepscope`: 'show idle --by gap' is a table; None for other verbs."""
        try:
            parts = shlex.split(text)
        except ValueError:
            return None
        if len(parts) < 2 or parts[0] != "show":
            return None
        parameters: dict[str, object] = {}
        rest = parts[2:]
        while rest:
            flag, has_value, value = rest.pop(0).partition("=")
            if not flag.startswith("--"):
                continue
            if not has_value:
                value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
            name = flag.removeprefix("--").replace("-", "_")
            own = {"where": "where", "sort": "sort", "group_by": "group", "columns": "columns"}
            if name != "limit":
                parameters[own.get(name, "o__" + name)] = value
        return self.table(parts[1], **parameters)

    def evidence(self, command: str) -> str:
        """The table of a command of the report in plain text, as in "idle by gap, cause = 'python'"."""
        _, name, *rest = shlex.split(command)
        options = {flag.removeprefix("--"): value for flag, value in pairwise(rest) if flag.startswith("--")}
        text = f"{name} by {options['by']}" if "by" in options else name
        return f"{text}, {options['where']}" if "where" in options else text

    def input_of(self, row: Mapping[str, Any]) -> int | None:
        """The input of a row; None if it is unknown."""
        if len(self.inputs) == 1:
            return self.inputs[0]
        if self.of_rank and row.get("rank") in self.of_rank:
            return self.of_rank[row["rank"]]
        if self.of_label and row.get("trace") in self.of_label:
            return self.of_label[row["trace"]]
        return None

    def events(self, row: Mapping[str, Any], columns: Sequence[str]) -> str | None:
        """The timeline with the events of a row: its span, its stretch of time, its step, or all of its name."""
        index = self.input_of(row)
        parameters: dict[str, object] = {"t": index} if index is not None else {}
        if index is not None and row.get("span_id") is not None and row.get("on_path_ns") is None:
            return self.to("/timeline", **parameters, span=row["span_id"])
        for start, length in _STRETCHES:
            if index is not None and row.get(start) is not None and row.get(length):
                low, high = int(row[start]), int(row[start]) + max(int(row[length]), 1)
                margin = max((high - low) // 20, 1)
                if length == "window_ns" and row.get("step") is not None:
                    parameters["step"] = row["step"]
                return self.to("/timeline", **parameters, **{"from": low - margin, "to": high + margin},
                               range=f"{low}-{high}")  # fmt: skip
        if index is not None and row.get("peak_ts_ns") is not None:
            return self._around(int(row["peak_ts_ns"]), parameters)
        name = next((row[c] for c in _NAMES if c in columns and isinstance(row.get(c), str) and row[c]), None)
        if name is not None:
            # Addresses have a length limit, so for very long names only the beginning is searched.
            part = name[:_LONGEST_NAME]
            return self.to("/timeline", **parameters, q=part, exact="1" if part == name else "")
        if index is not None and row.get("ts_ns") is not None:
            return self._around(int(row["ts_ns"]), parameters)
        return None

    def _around(self, at: int, parameters: Mapping[str, object]) -> str:
        return self.to("/timeline", **parameters, **{"from": at - _AROUND_NS, "to": at + _AROUND_NS})
