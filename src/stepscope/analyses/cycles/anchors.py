"""What may mark the turns of a loop: functions, ranges, calls and kernels that are called again and again."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import polars as pl

from stepscope.core.intervals import Ints, outermost
from stepscope.core.names import map_names
from stepscope.core.patterns import regex
from stepscope.core.schema import DEVICE_WORK

#: Host spans whose calls may mark a turn.
_MARKS = ("user_range", "module", "python", "dataloader", "operator", "runtime", "driver", "io", "other")
_FEWEST, _MOST = 3, 50_000
_MOST_TRIED = 48
_FILLS = 0.5
_RANKS = {"dataloader": 0, "user_range": 1, "python": 2, "module": 2, "operator": 3}
#: Parts of a name that differ from turn to turn or from run to run: step numbers, batch sizes, addresses.
_NUMBERED = regex(r"^(?:ProfilerStep#|execute_|step\[|(?:iter|iteration|step|epoch|batch)[ _:#-]*\d+$)", re.IGNORECASE)
_DIGITS = regex(r"\d+(?:[._]\d+)*")
_STEP = regex(r"^(ProfilerStep)#\d+$")
_ADDRESS = regex(r"0x[0-9a-fA-F]+")
#: Serving engines name a step after what it does.
_PHASE_WORD = regex(r"(?<=step\[)(?:EXTEND|PREFILL|DECODE|MIXED|IDLE|TARGET_VERIFY)\b")


class Anchor(msgspec.Struct, frozen=True):
    """Calls of one function that mark turns, in order of time; none is nested or starts with another."""

    name: str
    kind: str  # function, or kernel
    starts: Ints
    ends: Ints
    rank: int = 0  # the lower, the more its name says: loaders and ranges before functions before runtime calls

    @property
    def total_ns(self) -> int:
        """Summed duration of the calls."""
        return int((self.ends - self.starts).sum())


def plain_name(name: str) -> str:
    """The name without what differs from turn to turn and from run to run.

    >>> plain_name("ProfilerStep#12"), plain_name("<method of Foo object at 0x7f01>"), plain_name("step[DECODE bs=32]")
    ('ProfilerStep', '<method of Foo object at 0x…>', 'step[DECODE bs=#]')
    """
    if _NUMBERED.match(name):
        return _DIGITS.sub("#", _STEP.sub(r"\1", name))
    return _ADDRESS.sub("0x…", name)


def _mark(name: str) -> str:
    return _PHASE_WORD.sub("*", plain_name(name))


def host_anchors(spans: pl.DataFrame, on_host: pl.Series) -> list[Anchor]:
    """Functions among the host's spans (a mask): one or two for each number of outermost calls. Longest first.

    Functions called equally often by the same thread mark the same turns.
    """
    wanted = on_host & spans["category"].is_in(_MARKS)
    rows = spans.lazy().select("track_id", "ts_ns", "dur_ns", "name", "category").filter(wanted).collect()
    if rows.is_empty():
        return []
    rows = rows.with_columns(mark=map_names(rows["name"], _mark, pl.String()).cast(pl.Categorical))
    rows = rows.filter(pl.len().over("track_id", "mark").is_between(_FEWEST, _MOST))
    if rows.is_empty():
        return []
    starts = rows["ts_ns"].to_numpy()
    tracks = rows["track_id"].to_numpy().astype(np.int64)
    group = rows["mark"].to_physical().rank("dense").to_numpy().astype(np.int64) - 1
    first = outermost(tracks, starts, starts + rows["dur_ns"].to_numpy(), group)
    return _distinct(rows.filter(pl.Series(first)), ["track_id", "mark"], "function")


def device_anchors(spans: pl.DataFrame) -> list[Anchor]:
    """Kernels, copies and fills: one or two for each number of calls."""
    work = spans.lazy().select("track_id", "ts_ns", "dur_ns", "name", "category")
    rows = work.filter(spans["category"].is_in(DEVICE_WORK)).collect().sort("ts_ns")
    rows = rows.with_columns(mark=pl.col("name"))
    rows = rows.filter(pl.len().over("track_id", "mark").is_between(_FEWEST, _MOST))
    return _distinct(rows, ["track_id", "mark"], "kernel") if rows.height else []


def calls_of(spans: pl.DataFrame, wanted: pl.Series, name: str) -> Anchor | None:
    """The outermost calls of that function or kernel, on the track with most of them; None if there are none."""
    rows = spans.select("track_id", "ts_ns", "dur_ns", "name", "category").filter(wanted)
    named = rows["name"].unique().drop_nulls()
    texts = named.cast(pl.String)
    fits = [text == name or _mark(text) == name or plain_name(text) == name for text in texts]
    if not any(fits):
        return None
    rows = rows.filter(pl.col("name").is_in(named.filter(pl.Series(fits)).implode()))
    track = rows.group_by("track_id").agg(pl.len()).sort("len", "track_id", descending=[True, False])["track_id"][0]
    rows = rows.filter(pl.col("track_id") == track)
    starts = rows["ts_ns"].to_numpy()
    ends = starts + rows["dur_ns"].to_numpy()
    one = np.zeros(rows.height, np.int64)
    first = outermost(one, starts, ends, one)
    kind = "kernel" if rows["category"].is_in(DEVICE_WORK).all() else "function"
    begun, at = np.unique(starts[first], return_index=True)
    return Anchor(name, kind, begun, ends[first][at])


def _distinct(rows: pl.DataFrame, keys: list[str], kind: str) -> list[Anchor]:
    reach = (pl.col("ts_ns") + pl.col("dur_ns")).max() - pl.col("ts_ns").min()
    sums = rows.group_by(keys, maintain_order=True).agg(
        n=pl.len(),
        total=pl.col("dur_ns").sum(),
        fills=pl.col("dur_ns").sum() >= _FILLS * reach,
        rank=pl.col("category").first().replace_strict(_RANKS, default=len(_RANKS), return_dtype=pl.Int64),
    )
    sums = sums.filter(pl.col("n") >= _FEWEST)
    # Functions called equally often usually mark the same turns. Two are tried: one with a meaningful name that fills
    # the turns (so their ends are known), and the one that takes most time.
    telling = sums.sort("rank", "fills", "total", descending=[False, True, True], maintain_order=True)
    longest = sums.sort("total", descending=True, maintain_order=True)
    tried = [order.unique(["track_id", "n"], keep="first", maintain_order=True) for order in (telling, longest)]
    best = pl.concat(tried).unique(maintain_order=True).sort("total", descending=True, maintain_order=True)
    anchors = []
    for row in best.head(_MOST_TRIED).iter_rows(named=True):
        mine = rows.filter(pl.col("track_id") == row["track_id"], pl.col("mark") == row["mark"])
        starts, first = np.unique(mine["ts_ns"].to_numpy(), return_index=True)
        ends = starts + mine["dur_ns"].to_numpy()[first]
        anchors.append(Anchor(str(row["mark"]), kind, starts, ends, row["rank"]))
    return anchors
