"""Host side of an nsys export: CUDA calls, NVTX ranges, calls of the operating system and of libraries."""

from __future__ import annotations

from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.core.arrays import distinct_values
from stepscope.core.names import step_number
from stepscope.core.patterns import regex
from stepscope.core.schema import OPS
from stepscope.readers.common.columns import ABSENT, nullable, text_column
from stepscope.readers.common.span_builder import Names, Part, code_of, unique
from stepscope.readers.common.sqlite import WIDE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stepscope.readers.common.source import IssueLog
    from stepscope.readers.common.sqlite import Database
    from stepscope.readers.nsight.nsys_target import Target

    Rows = NDArray[np.int64]

RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
_TIMES = {"start": WIDE, "end": WIDE, "globalTid": WIDE}
#: eventClass of rows that wrap another row of the same call (exports of 2022).
_DRIVER, _WRAPPER = 1, 67
#: Tables of calls that have a name and a thread: how they are shown. Their rows carry no correlation.
_CALLS = {
    "OSRT_API": ("other", "osrt"),
    "CUDNN_EVENTS": ("user_range", "cudnn"),
    "CUBLAS_EVENTS": ("user_range", "cublas"),
    "MPI_COLLECTIVES_EVENTS": ("other", "mpi"),
    "MPI_P2P_EVENTS": ("other", "mpi"),
    "MPI_START_WAIT_EVENTS": ("other", "mpi"),
    "MPI_OTHER_EVENTS": ("other", "mpi"),
    "PROFILER_OVERHEAD": ("overhead", "overhead"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": ("overhead", "overhead"),
}
_PUSH_POP, _START_END, _MARK = 59, 60, 34
#: The runtime's functions are recorded with the version of their interface, which nsys itself does not show either.
_VERSION = regex(r"_v\d{4,5}$")
#: What PyTorch's emit_nvtx calls an operator: aten::mm, seq = 3, op_id = 7, sizes = [[2, 3], [3, 4]].
_OPERATOR = regex(
    r"^(?P<name>.+?)(?:, seq = (?P<seq>\d+))?(?:, op_id = (?P<id>\d+))?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?$"
)
_PLAIN_OPERATOR = regex(r"^aten::\w+$")


def runtime_calls(db: Database, target: Target, names: Names, issues: IssueLog) -> list[Part]:
    """Calls of CUDA's runtime and driver, one row a call."""
    if "start" not in db.columns_of(RUNTIME):
        return []
    cols = db.columns(RUNTIME, _TIMES | {"correlationId": 32, "nameId": 22, "eventClass": 8})
    link = target.links(cols["globalTid"], cols["correlationId"])
    wraps = cols["eventClass"] == _WRAPPER
    if wraps.any():
        twice = ~wraps & (cols["eventClass"] != _DRIVER) & np.isin(link, link[wraps])
        issues.add(
            "double_calls",
            "info",
            int(twice.sum()),
            "calls were recorded twice, one inside the other: one of each is kept",
        )
        cols, link = cols.filtered(~twice), link[~twice]
    texts = db.texts("StringIds", unique(cols["nameId"])[0].tolist())
    name = names.of_keys(cols["nameId"], lambda i: _VERSION.sub("", texts.get(i) or "?"))
    category = np.where(cols["eventClass"] == _DRIVER, code_of("driver"), code_of("runtime")).astype(np.uint8)
    track = target.tracks.of_keys(cols["globalTid"], target.thread)
    return [Part(category, "cuda_api", cols["start"], cols["end"], track, name, cols["correlationId"], link)]


def other_calls(db: Database, target: Target, names: Names, end_ns: int | None) -> list[Part]:
    """Calls of the operating system's and other libraries, and the overhead of profiling."""
    parts = []
    for table, (category, recorded) in _CALLS.items():
        have = db.columns_of(table)
        key = "nameId" if "nameId" in have else "textId"
        if not {"start", "end", "globalTid", key} <= set(have):
            continue
        cols = db.columns(table, _TIMES | {key: WIDE})
        texts = db.texts("StringIds", unique(cols[key])[0].tolist())
        name = names.of_keys(cols[key], partial(_text_of, texts))
        track = target.tracks.of_keys(cols["globalTid"], target.thread)
        ends = _closed(cols["start"], cols["end"], end_ns)
        parts.append(Part(category, recorded, cols["start"], ends, track, name))
    return parts


def _text_of(texts: Mapping[int, str], key: int) -> str:
    return texts.get(key) or "?"


class Ranges(msgspec.Struct, frozen=True):
    """NVTX ranges: those of threads first, with what PyTorch wrote into the names of its operators."""

    parts: list[Part]
    text: Rows
    operators: dict[int, tuple[str, str | None, int]]

    def ops(self, ids: Rows) -> pl.DataFrame:
        """The `ops` table of the ranges that are operators; `ids` are the span ids of all ranges."""
        known = np.array(sorted(self.operators), np.int64)
        rows = np.flatnonzero(np.isin(self.text, known)) if known.size else known
        rows = rows[np.argsort(ids[rows], kind="stable")]
        if not rows.size:
            return OPS.empty()
        code = np.searchsorted(known, self.text[rows])
        operators = [self.operators[i] for i in known.tolist()]
        frame = pl.DataFrame({
            "span_id": ids[rows].astype(np.uint32),
            "input_shapes": text_column(code, [shapes for _, shapes, _ in operators]),
            "sequence": nullable(np.array([seq for *_, seq in operators], np.int64)[code], pl.Int64()),
        })  # fmt: skip
        return OPS.conform(frame)


def nvtx_ranges(db: Database, target: Target, names: Names, issues: IssueLog, end_ns: int | None) -> Ranges:
    """Push/pop ranges on their threads, start/end ranges, which may cross threads, on a lane of their process."""
    if not {"start", "eventType"} <= set(db.columns_of("NVTX_EVENTS")):
        return Ranges([], np.empty(0, np.int64), {})
    types = f"eventType IN ({_PUSH_POP}, {_START_END}) AND start IS NOT NULL"
    cols = db.columns("NVTX_EVENTS", _TIMES | {"eventType": 8, "textId": WIDE}, types)
    n_marks = db.rows(f"SELECT count(*) FROM NVTX_EVENTS WHERE eventType = {_MARK}")[0][0]  # noqa: S608
    issues.add("instants_dropped", "info", n_marks, "NVTX marks have no duration")
    text, all_texts = _texts(db, cols["textId"], types)
    distinct, inverse = unique(text)
    kinds = [kind_of_range(all_texts[i]) for i in distinct.tolist()]
    name = names.codes(kind[1] for kind in kinds)[inverse]
    category = np.array([code_of(kind[0]) for kind in kinds], np.uint8)[inverse]
    ends = _closed(cols["start"], cols["end"], end_ns)
    open_ = "NVTX ranges were never closed: they last until the recording ends"
    issues.add("open_ranges", "info", int((cols["end"] == ABSENT).sum()), open_)
    parts = []
    lanes = {_PUSH_POP: (target.thread, "nvtx"), _START_END: (target.ranges, "nvtx_start_end")}
    for kind, (lane, recorded) in lanes.items():
        mine = cols["eventType"] == kind
        tracks = target.tracks.of_keys(cols["globalTid"][mine], lane)
        what = category[mine] if kind == _PUSH_POP else "user_range"
        parts.append(Part(what, recorded, cols["start"][mine], ends[mine], tracks, name[mine]))
    loose = "NVTX start/end ranges may cross threads: no device work is counted as theirs"
    issues.add("start_end_ranges", "info", parts[1].ts.size, loose)
    known = {
        i: (*kind[1:3], kind[3])
        for i, kind in zip(distinct.tolist(), kinds, strict=True)
        if kind[0] == "operator" and (kind[2] or kind[3] != ABSENT)
    }
    return Ranges(parts, text[cols["eventType"] == _PUSH_POP], known)


def _texts(db: Database, text_id: Rows, where: str) -> tuple[Rows, list[str]]:
    """For each range the number of its text, and the texts: in the table itself or, by id, in StringIds."""
    ids = distinct_values(text_id[text_id != ABSENT])
    known = db.texts("StringIds", ids.tolist())
    interned = Names()
    interned.code("")
    codes = np.zeros(text_id.size, np.int64)
    by_id = text_id != ABSENT
    codes[by_id] = interned.of_keys(text_id[by_id], lambda i: known.get(i) or "")
    if "text" in db.columns_of("NVTX_EVENTS") and not by_id.all():
        inline = db.column("NVTX_EVENTS", "ifnull(text, '')", where)
        codes[~by_id] = interned.codes(str(text) for text in compress(inline, ~by_id))
    return codes, interned.texts


def kind_of_range(text: str) -> tuple[str, str, str | None, int]:
    """What a range is: its category, its name without what PyTorch added, input shapes, sequence number."""
    if step_number(text) is not None:
        return "step", text, None, ABSENT
    match = _OPERATOR.match(text)
    if match and (match["id"] or match["seq"]):
        sizes = match["sizes"]
        return "operator", match["name"], sizes and sizes.replace(" ", ""), int(match["seq"] or ABSENT)
    return ("operator" if _PLAIN_OPERATOR.match(text) else "user_range"), text, None, ABSENT


def _closed(start: Rows, end: Rows, end_ns: int | None) -> Rows:
    """Ends; of what was still open, the end of the recording."""
    last = max([*start[:1], *end[:1], start.max(initial=0), end.max(initial=0)]) if end_ns is None else end_ns
    return np.where(end == ABSENT, np.maximum(start, last), end)
