"""Splits a recording of several processes: profilers of a whole machine put all of them into one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import polars as pl

from stepscope.core.errors import StepscopeError
from stepscope.core.schema import DEVICE_WORK, SPAN_REFERENCES

Tables = Mapping[str, pl.DataFrame]
Answer = TypeVar("Answer")

#: Of more processes than these, those with most host spans are analysed one by one.
_MOST = 16
#: A process with a smaller part of all host spans, and no device work, is a helper of another.
_LEAST_SHARE = 0.05
_ROWS_OF_SPANS = (
    "ops", "frames", "kernels", "transfers", "collectives", "kernel_metrics", "captured_launches", "event_waits",
    "sched",
)  # fmt: skip


def of_each(
    tables: Tables, find: Callable[[dict[str, pl.DataFrame]], Answer]
) -> list[tuple[int | None, dict[str, pl.DataFrame], Answer]]:
    """The result of `find` for each process of `split`; processes for which it raises are left out.

    Raises the last StepscopeError if it raises for all of them.
    """
    answers: list[tuple[int | None, dict[str, pl.DataFrame], Answer]] = []
    refused: StepscopeError | None = None
    for pid, mine in split(tables):
        try:
            answers.append((pid, mine, find(mine)))
        except StepscopeError as error:
            refused = error
    if not answers and refused is not None:
        raise refused
    return answers


def split(tables: Tables) -> list[tuple[int | None, dict[str, pl.DataFrame]]]:
    """The tables of each process that matters, with its number: those with much of the host's spans or device work.

    Of more than 16 such processes those with most host spans count.

    `tables` are tables of a trace, `spans` and `tracks` among them. Device work belongs to the process that queued it,
    else to that of its track if there is such a process, else to the busiest. Numbers of spans are made anew. If only
    one process matters, its tables are those given. Steps go to the process that marked them.
    """
    spans, tracks = tables["spans"], tables["tracks"]
    pid_of_track = tracks.sort("track_id").select("pid", "kind", "device_id")
    is_thread = (pid_of_track["kind"].cast(pl.String) == "thread").fill_null(value=True)
    host = pid_of_track["device_id"].is_null() & is_thread
    pids = pid_of_track["pid"].zip_with(host, pl.Series([None], dtype=pl.Int64))
    owner = pids.gather(spans["track_id"])
    is_work = spans["category"].is_in(DEVICE_WORK)
    counted = owner.drop_nulls().value_counts(name="n").sort("n", "pid", descending=[True, False])
    if counted.height < 2:
        return [(int(counted["pid"][0]) if counted.height else None, dict(tables))]
    busiest = int(counted["pid"][0])
    launched = owner.gather(spans["launch_id"])
    recorded = pid_of_track["pid"].gather(spans["track_id"])
    known = recorded.zip_with(recorded.is_in(counted["pid"].implode()).fill_null(value=False), pl.Series([busiest]))
    on_device = host.gather(spans["track_id"]).not_()
    owner = owner.zip_with(~on_device, pl.select(pl.coalesce(launched, known)).to_series())
    working = set(owner.filter(is_work).drop_nulls().unique().to_list())
    share = counted.filter(pl.col("n") >= _LEAST_SHARE * pl.col("n").sum())["pid"].to_list()
    marking = set(owner.filter(spans["category"] == "step").drop_nulls().to_list())
    busy = {*share, *working} or {busiest}
    wanted = busy & marking or marking or busy
    matters = sorted([pid for pid in counted["pid"].to_list() if pid in wanted][:_MOST])
    if len(matters) == 1:
        return [(matters[0], dict(tables))]
    return [(pid, _restricted(tables, owner == pid)) for pid in matters]


def _restricted(tables: Tables, keep: pl.Series) -> dict[str, pl.DataFrame]:
    spans = tables["spans"]
    mask = keep.fill_null(value=False)
    numbers = mask.cum_sum().cast(pl.UInt32) - 1
    new = numbers.zip_with(mask, pl.Series([None], dtype=pl.UInt32))
    restricted = dict(tables)
    remaining = spans.filter(mask)
    restricted["spans"] = _renumbered(remaining, new)
    for name in _ROWS_OF_SPANS:
        if name in restricted and restricted[name].height:
            restricted[name] = _renumbered(restricted[name], new).drop_nulls("span_id")
    if "steps" in restricted and restricted["steps"].height:
        numbers_marked = remaining.filter(remaining["category"] == "step")["step"].drop_nulls()
        if numbers_marked.len():
            restricted["steps"] = restricted["steps"].filter(pl.col("step").is_in(numbers_marked.implode()))
    return restricted


def _renumbered(frame: pl.DataFrame, new: pl.Series) -> pl.DataFrame:
    """The table with new numbers of spans."""
    return frame.with_columns(new.gather(frame[name]).alias(name) for name in SPAN_REFERENCES if name in frame.columns)
