"""What a report says of the batches of an engine that serves a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl
from msgspec.structs import replace

from stepscope.analyses.common.batch_names import is_sampling
from stepscope.analyses.steps.batches import BATCHES, batches, empty_places, laws, of_kinds, timed_batches
from stepscope.core.errors import MissingTable
from stepscope.core.intervals import gaps, intersection, total, union
from stepscope.core.names import map_names
from stepscope.core.report import Block
from stepscope.core.units import count, counted, duration, percent, sum_of
from stepscope.reports._summary import ENDS, Cost
from stepscope.reports._tables import known_columns, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Trace

_NEARLY_ALL = 0.98
#: Decode waits for the host if the device is idle for so much of it; from there on graphs would help.
_HOST_BOUND, _WAITS = 0.1, 0.05
#: A step without graphs has less of its work in them than this, and at least so many launches.
_HARDLY, _MANY_LAUNCHES = 0.1, 20
#: So many graphs in a step are pieces of one.
_PIECES = 4
#: Idle time that the host does not cause, or that nobody knows the cause of.
_NOT_HOST = (ENDS, "idle kernel_wait", "idle other", "idle unlinked")
#: Idle time whose cause `predict` can take away by itself.
_MENDED = ("idle launching", "idle sync", "idle data_loading")
#: That the device is used little says the same again.
_UNDERUSED = "rule device_underused"
_PADDED, _SAMPLED = 0.05, 0.02
_HOST_CATEGORIES = ("operator", "python", "user_range", "module")


class Serving(msgspec.Struct, frozen=True):
    """The batches of a trace, one by one as the analysis gives them, and by kind."""

    trace: Trace
    each: pl.DataFrame
    kinds: pl.DataFrame

    @staticmethod
    def of(trace: Trace) -> Serving | None:
        """The batches that an engine ran; None if no range names any."""
        try:
            each = batches(trace.spans, trace.tracks, trace.ops, trace.kernels, trace.devices)
        except MissingTable:
            return None
        return Serving(trace, each, of_kinds(each))

    def block(self) -> Block:
        """The table of the kinds of batches."""
        wanted = ("kind", "n_batches", "dur_ns", "p90_ns", "tokens_per_s", "n_requests", "n_tokens", "mbu_ratio")
        return Block("Batches", BATCHES, known_columns(self.kinds.select(wanted)), "show batches")

    def facts(self) -> tuple[str, ...]:
        """For the headline: how long a step of each kind takes, for how much, and how fast that is."""
        facts = []
        for row in self.kinds.iter_rows(named=True):
            kind, tokens, mbu = row["kind"], row["tokens_per_s"], row["mbu_ratio"]
            what = {"decode": "decode step", "mixed": "mixed batch"}.get(kind, kind)
            amount = (row["n_requests"], "request") if kind == "decode" else (row["n_tokens"], "token")
            parts = [f"{what} {duration(row['dur_ns'])}"]
            parts[0] += f" for {counted(amount[0], amount[1])}" if amount[0] else ""
            parts += [f"{count(tokens)} tokens/s"] if tokens else []
            least = "" if (row["known_ratio"] or 0) > _NEARLY_ALL else "≥ "
            parts += [f"MBU {least}{percent(mbu)}"] if mbu is not None and kind == "decode" else []
            facts.append(", ".join(parts))
        return tuple(facts)

    def costs(self, costs: Sequence[Cost]) -> list[Cost]:
        """The costs of the device's time in the words of serving, and what batches alone show."""
        named = self._host_bound(costs)
        return [*named, *self._graphs(), *self._padding(), *self._prefill_between(), *self._sampling()]

    def _decode(self) -> pl.DataFrame:
        return self.each.filter((pl.col("kind") == "decode") & pl.col("busy_ratio").is_not_null())

    def _idle_ns(self) -> float:
        return _idle_ns_of(self._decode())

    def _idle_ratio(self) -> float:
        """Part of the time of decode steps in which the device is idle."""
        return self._idle_ns() / max(sum_of(self._decode()["dur_ns"]), 1)

    def _host_bound(self, costs: Sequence[Cost]) -> list[Cost]:
        """The costs, of which that with most idle time says that decode waits for the host, if it does so there."""
        idle = [cost for cost in costs if cost.kind.startswith("idle") and cost.kind not in _NOT_HOST and cost.ns]
        if not idle or self._idle_ratio() < _HOST_BOUND:
            return list(costs)
        most = max(idle, key=lambda cost: cost.ns or 0.0)
        if self._idle_ns() < (most.ns or 0.0) / 2:
            return list(costs)
        title = f"Decode waits for the host: {most.title[:1].lower()}{most.title[1:]}"
        busy = f"The device works for {percent(1 - self._idle_ratio())} of the time of decode steps"
        kind = most.kind if most.kind in _MENDED else "serving host"
        said = replace(most, kind=kind, title=title, details=(busy, *most.details))
        # A larger batch would not help: the device waits for the host, and not for work.
        return [said if cost is most else cost for cost in costs if not cost.kind.startswith(_UNDERUSED)]

    def _graphs(self) -> list[Cost]:
        """Decode steps that replay no graph, where the device waits for launches."""
        decode = self._decode().drop_nulls("graph_ratio")
        eager = decode.filter((pl.col("graph_ratio") < _HARDLY) & (pl.col("n_launches") >= _MANY_LAUNCHES))
        if self._idle_ratio() < _WAITS:
            return []
        if eager.is_empty():
            return _in_pieces(decode.filter(pl.col("n_graphs") >= _PIECES))
        launches = counted(round(number(eager["n_launches"].median())), "launch", "launches")
        if eager.height == decode.height:
            title = f"Decode replays no graph: {launches} a step"
            advice = "→ have graphs captured: vLLM without --enforce-eager, SGLang without --disable-cuda-graph"
        else:
            title = f"{eager.height:,} of {decode.height:,} decode steps replay no graph: {launches} each"
            advice = "→ capture more sizes: cudagraph_capture_sizes of vLLM, --cuda-graph-max-bs of SGLang"
        replayed = decode.filter(pl.col("graph_ratio") >= _HARDLY)["dur_ns"].median()
        lasting = f"They take {duration(number(eager['dur_ns'].median()))}"
        lasting += "" if replayed is None else f", others {duration(number(replayed))}"
        return [Cost("serving graphs", title, _idle_ns_of(eager), (lasting, advice), "show batches")]

    def _padding(self) -> list[Cost]:
        """Empty places in decode steps that are filled up to a captured size."""
        decode = self._decode().filter(pl.col("padded_ratio").is_not_null() & (pl.col("padded_ratio") < 1))
        if decode.is_empty():
            return []
        places = decode.select(empty=empty_places().sum(), used=pl.col("n_requests").sum())
        empty, used = (float(x or 0) for x in places.row(0))
        if empty < _PADDED * (empty + used):
            return []
        law = laws(self.each).filter((pl.col("kind") == "decode") & pl.col("per_request_ns").is_not_null())
        title = f"Padding to captured sizes: {percent(empty / (empty + used))} of the places in decode steps are empty"
        advice = "→ capture sizes nearer to those that run, or let more requests run at once"
        if law.is_empty():
            unknown = "What it costs is unknown: steps of different sizes would say what a place takes"
            return [Cost("serving padding", title, None, (unknown, advice), "show batches --by kind")]
        each_ns = float(law["per_request_ns"][0])
        detail = f"A place takes {duration(each_ns)} of a step, by the steps of other sizes"
        return [Cost("serving padding", title, empty * each_ns, (detail, advice), "show batches --by law")]

    def _prefill_between(self) -> list[Cost]:
        """Prompts that are read while requests in decode wait for their next token."""
        is_decode = pl.col("kind") == "decode"
        typical = self.each.filter(is_decode)["dur_ns"].median()
        if typical is None:
            return []
        ordered = self.each.with_columns(before=is_decode.cum_sum(), after=is_decode.cum_sum(reverse=True))
        between = ordered.filter(~is_decode & (pl.col("before") > 0) & (pl.col("after") > 0)).with_columns(
            late_ns=pl.col("dur_ns") - pl.when(pl.col("kind") == "mixed").then(number(typical)).otherwise(0.0)
        ).filter(pl.col("late_ns") > 0)  # fmt: skip
        stated, _ = timed_batches(self.trace.spans, self.trace.tracks)
        if between.is_empty() or not stated["n_requests"].count():  # a loop reads prompts when it is done with others
            return []
        longest = float(between.group_by("before").agg(pl.col("late_ns").sum())["late_ns"].to_numpy().max())
        title = "Prefill delays decode: running requests wait while prompts are read"
        mean = duration(float(between["dur_ns"].to_numpy().mean()))
        detail = f"{counted(between.height, 'batch', 'batches')}, mean {mean}, between decode steps of "
        detail += f"{duration(number(typical))}; the longest wait for a token is {duration(longest)} longer"
        advice = "→ smaller chunks of prompts: --max-num-batched-tokens of vLLM, --chunked-prefill-size of SGLang"
        return [Cost("serving prefill", title, float(between["late_ns"].sum()), (detail, advice), "show batches")]

    def _sampling(self) -> list[Cost]:
        """Tokens that are chosen on the host while the device is idle."""
        rows, work = timed_batches(self.trace.spans, self.trace.tracks)
        spans = self.trace.spans.filter(pl.col("category").is_in(_HOST_CATEGORIES))
        spans = spans.filter(map_names(spans["name"], is_sampling, pl.Boolean()))
        low, high = int(rows["ts_ns"].to_numpy().min()), int((rows["from_ns"] + rows["dur_ns"]).to_numpy().max())
        idle = gaps(union(work["ts_ns"].to_numpy(), work["end_ns"].to_numpy()), low, high)
        starts = spans["ts_ns"].to_numpy()
        ns = total(intersection(union(starts, starts + spans["dur_ns"].to_numpy()), idle))
        if ns < _SAMPLED * (high - low):
            return []
        title = f"Sampling on the host: the device is idle in {duration(ns / rows.height)} a batch of it"
        advice = "→ sample on the device: no penalties, grammars or processors of logits that run in Python"
        return [Cost("serving sampling", title, ns, (advice,), "show user-ranges")]


def _idle_ns_of(rows: pl.DataFrame) -> float:
    """The time of batches in which the device is idle."""
    return float((rows["dur_ns"] * (1 - rows["busy_ratio"])).sum())


def _in_pieces(decode: pl.DataFrame) -> list[Cost]:
    """Decode steps whose work is in many graphs with other launches between them."""
    if decode.is_empty():
        return []
    graphs, launches = (round(number(decode[name].median())) for name in ("n_graphs", "n_launches"))
    title = f"Decode replays its graph in pieces: {graphs:,} graphs and {launches - graphs:,} other launches a step"
    advice = "→ capture whole steps: cudagraph_mode FULL_AND_PIECEWISE or FULL_DECODE_ONLY of vLLM"
    return [Cost("serving graphs", title, _idle_ns_of(decode), (advice,), "show batches")]
