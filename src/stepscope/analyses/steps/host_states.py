"""What the threads that launch device work do: the state that each of their spans stands for.

A state is why a thread does not launch: it waits for the device, is held up in a call, compiles, runs Python. Where
spans lie in one another, the first state in `STATES` counts: a blocking call within an operator is a blocking call.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.common.span_lookup import of_spans, own_time, row_numbers
from stepscope.core.collectives import HOST_LIBRARIES, library_of
from stepscope.core.intervals import Bools, Intervals, Ints, union
from stepscope.core.names import is_launch_call, is_sync_call, map_names
from stepscope.core.patterns import regex
from stepscope.core.table import filtered, is_any_of

if TYPE_CHECKING:
    from collections.abc import Iterator

#: States in which something particular holds the thread up, and the rest, in order of precedence.
HELD_UP = (
    "garbage_collection", "data_loading", "communication", "compilation", "allocator", "first_use", "slow_launch",
    "blocking_call",
)  # fmt: skip
UNRECORDED = "unrecorded"
STATES = (*HELD_UP, "sync", "operator", "runtime", "host_idle", "python", UNRECORDED)
#: Usual calls take 2 to 20 µs. A call of this length does more than put work into a queue.
SLOW_CALL_NS = 100_000

_GARBAGE = regex(
    r"^Python GC|^(?:<built-in (?:function|method) collect\b)|\bgc\.collect|garbage.?collect", re.IGNORECASE
)
_COMPILE = regex(
    r"torch/_dynamo/convert_frame\.py\(\d+\): _?compile"
    r"|torch/_inductor/\S+\.py\(\d+\): _?(?:compile_|codegen|fx_codegen)"
    r"|triton/compiler/compiler\.py\(\d+\): (?:compile|make_ir)$|triton/runtime/jit\.py\(\d+\): _do_compile"
    r"|triton/testing\.py\(\d+\): do_bench|autotuner\.py\(\d+\): (?:_bench|benchmark)$"
    r"|triton_heuristics\.py\(\d+\): (?:bench$|benchmark_all|autotune_to_one|_?precompile|_make_launch|coordinate_desc)"
    r"|\(dynamo_timed\)|(?:nv|hip)rtcCompile|@opCompile$|XlaCompile|backend_compile|CompileModule|CompileAndLoad"
)
_API = r"^(?:\w+@)?(?:cuda|cu|hip|acl(?:rt)?|cn(?:rt)?|musa|mc|ze|ur|pi)"
_IS_API = regex(_API + r"[A-Z]")
_ALLOCATE = regex(
    _API
    + r"(?:Malloc|Free|HostAlloc|HostMalloc|HostFree|Host(?:Un)?[Rr]egister|USM(?:Host|Device|Shared)?(?:Alloc|Free)"
    r"|Mem(?:Alloc|Free|Create|Map|Unmap|Release|Address|SetAccess|Host))"
)
_SET_UP = regex(
    _API
    + r"(?:(?:Module|Library)(?:Load|Get)|KernelGetFunction|Init$|Ctx|(?:Device)?PrimaryCtx|Stream(?:Create|Begin|End)"
    r"|Device(?:GetStreamPriority|Get\w*Propert|Set)|GetDeviceProp|Func[SG]etAttribute|Graph(?:Instantiate|Upload))"
)
_BLOCKING_COPY = regex(_API + r"(?:Memcpy|Memset)(?!\w*Async)(?:\w*WithStream)?|^(?:\w+@)?aclrtMemcpy$")
_COPY = regex(_API + r"(?:Memcpy|Memset)")
_WAITING = regex(
    r"(?:threading|queue|queues|poll|selectors|connection|process|futures/_base|subprocess)\.py(?:\(\d+\):|:\d+) "
    r"(?:wait|get|_?poll|select|_?recv\w*|join|result|_wait\w*)$"
    r"|^(?:<built-in (?:function|method) |\$<unknown> )(?:acquire|sleep|poll|select|recv|recv_into|accept|wait|read)\b"
    r"|^(?:poll|ppoll|epoll_wait|select|nanosleep|usleep|sem_wait|sem_timedwait|futex|pthread_cond_(?:timed)?wait)$"
)
_RUNTIME = ("runtime", "driver")
_PIECE = 1 << 18  # spans that are looked at together, where each takes scratch space
_WAIT_KINDS = ("sync", "blocking_call")
_HOST = ("operator", "python", "runtime", "driver", "dataloader", "user_range", "module", "other", "overhead")


def host_states(spans: pl.DataFrame, work: pl.DataFrame, tracks: pl.Series, times: Intervals) -> pl.DataFrame:
    """The spans of these tracks that have a state: span_id, track_id, ts_ns, end_ns, dur_ns, state (index in STATES).

    Only those that overlap or touch the disjoint `times`, and slow or blocking calls wherever they are, as a wait may
    have begun earlier. `work` is what `device_work` returns: a call that takes long is a slow launch only if it puts
    little into the queue, `first_use` if it launches a kernel for the first time in the recording, and a blocking copy
    if it returns after the copy has ended. A slow call of the allocator is first use if its operator has another call
    that is. Units: ns.
    """
    near = pl.Series(_touching(spans["ts_ns"].to_numpy(), spans["dur_ns"].to_numpy(), times))
    of_tracks = spans["category"].is_in(_HOST) & spans["track_id"].is_in(tracks.implode())
    is_call = is_any_of(spans["category"], _RUNTIME)
    matters = of_tracks & (near | is_call)  # of all spans, columns would take much memory
    mine = filtered(spans[["span_id", "track_id", "ts_ns", "dur_ns", "name", "category", "op_id"]], matters)
    near, is_call = near.filter(matters), is_call.filter(matters)
    mine = mine.hstack([(mine["ts_ns"] + mine["dur_ns"]).alias("end_ns")])
    called = filtered(mine, is_call)
    waits = map_names(called["name"], lambda name: _kind_of_call(name) in _WAIT_KINDS, pl.Boolean())
    called = filtered(called, near.filter(is_call) | (called["dur_ns"] >= SLOW_CALL_NS) | waits)
    slow = pl.col("dur_ns") >= SLOW_CALL_NS * pl.col("n_work").clip(lower_bound=1)
    called = called.with_columns(
        *_queued_by(called["span_id"], spans, work), kind=map_names(called["name"], _kind_of_call, pl.String())
    )
    kind, is_launch = pl.col("kind"), pl.col("kind").is_in(("launch", "copy"))
    state = (
        pl.when(kind.is_in(("allocator", "sync", "compilation", "blocking_call")))
        .then(kind)
        .when(~slow | (kind == "outer"))
        .then(pl.lit("runtime"))
        .when((kind == "copy") & (pl.col("end_ns") >= pl.col("done_ns")))
        .then(pl.lit("blocking_call"))
        .when((kind == "first_use") | (is_launch & pl.col("first")))
        .then(pl.lit("first_use"))
        .when(is_launch)
        .then(pl.lit("slow_launch"))
        .otherwise(pl.lit("blocking_call"))
    )
    called = called.with_columns(state=state)
    if (called["kind"] == "allocator").any():
        # A library that sets itself up within an operator allocates and frees there too, cudaFree(0) included.
        sets_up = pl.col("op_id").is_not_null() & (pl.col("state") == "first_use").any().over("op_id")
        state = pl.when(slow & (kind == "allocator") & sets_up).then(pl.lit("first_use")).otherwise("state")
        called = called.with_columns(state=state)
    rest = filtered(mine, near & ~is_call)
    by_name = map_names(rest["name"], _state_of_name, pl.String())
    by_category = {
        "operator": "operator", "python": "python", "dataloader": "data_loading", "user_range": UNRECORDED,
        "module": UNRECORDED,
    }  # fmt: skip
    category = pl.col("category").cast(pl.String).replace_strict(by_category, default=None)
    rest = rest.with_columns(state=pl.coalesce(by_name, category))
    columns = ["span_id", "track_id", "ts_ns", "end_ns", "dur_ns", "state"]
    every = pl.concat([called[columns], rest[columns]]).drop_nulls("state")
    return every.with_columns(
        pl.col("state").replace_strict(list(STATES), list(range(len(STATES))), return_dtype=pl.Int8)
    )


def _touching(starts: Ints, lengths: Ints, times: Intervals) -> Bools:
    """Which of these intervals overlap or touch some of the disjoint `times`."""
    touches = np.zeros(starts.size, np.bool_)
    for at in range(0, starts.size if times[0].size else 0, _PIECE):
        begins = starts[at : at + _PIECE]
        next_one = np.searchsorted(times[1], begins)  # the first that ends no earlier than the interval starts
        reach = times[0][np.minimum(next_one, times[0].size - 1)] <= begins + lengths[at : at + _PIECE]
        touches[at : at + _PIECE] = (next_one < times[0].size) & reach
    return touches


def _queued_by(calls: pl.Series, spans: pl.DataFrame, work: pl.DataFrame) -> list[pl.Series]:
    """Of each call: how much it put into queues, when that had ended (0: never), if it was the first of a kernel."""
    linked = work[["name", "end_ns", "launch_id"]].drop_nulls("launch_id")
    name = linked["name"].to_physical().to_numpy()
    called_ns = of_spans(spans, linked["launch_id"], "ts_ns").to_numpy()
    earliest = np.full(int(name.max()) + 1 if name.size else 0, np.iinfo(np.int64).max)
    np.minimum.at(earliest, name, called_ns)
    at, n = row_numbers(calls, linked["launch_id"]), calls.len()
    known = np.flatnonzero(at < n)
    at = at[known]
    done, first = np.zeros(n, np.int64), np.zeros(n, np.bool_)
    np.maximum.at(done, at, linked["end_ns"].to_numpy()[known])
    first[at[(called_ns == earliest[name])[known]]] = True
    measures = {"n_work": np.bincount(at, minlength=n), "done_ns": done, "first": first}
    return [pl.Series(column, values) for column, values in measures.items()]


@lru_cache(1 << 14)
def _kind_of_call(name: str) -> str:
    """What a call of the runtime or driver is for; "outer" where it is no call of an API, "" where it is another."""
    kinds = (
        ("compilation", _COMPILE.search), ("sync", is_sync_call), ("allocator", _ALLOCATE.search),
        ("blocking_call", _BLOCKING_COPY.search), ("copy", _COPY.search), ("launch", is_launch_call),
        ("first_use", _SET_UP.search),
    )  # fmt: skip
    known = next((kind for kind, matches in kinds if matches(name)), "")
    return known or ("" if _IS_API.search(name) else "outer")


@lru_cache(1 << 16)
def _state_of_name(name: str) -> str | None:
    """The state that a name of a range or a frame says; None if it says nothing."""
    kinds = (("garbage_collection", _GARBAGE), ("compilation", _COMPILE), ("host_idle", _WAITING))
    known = next((kind for kind, pattern in kinds if pattern.search(name)), None)
    return known or ("communication" if library_of(name) in HOST_LIBRARIES else None)


def sleeping_threads(spans: pl.DataFrame) -> pl.Series:
    """The track_id of threads of which only Python was recorded, and that wait for most of their time."""
    python = pl.col("category") == "python"
    threads = spans.group_by("track_id").agg(
        ns=(pl.col("ts_ns") + pl.col("dur_ns")).max() - pl.col("ts_ns").min(), only_python=python.all()
    )
    threads = threads.filter("only_python")
    waits = map_names(spans["name"], lambda name: _WAITING.search(name) is not None, pl.Boolean())
    waits &= spans["track_id"].is_in(threads["track_id"].implode())
    waited = spans.select("track_id").filter(waits).with_columns(waited=own_time(spans, waits.to_numpy()))
    waited = waited.group_by("track_id").agg(pl.col("waited").sum())
    return threads.join(waited, on="track_id").filter(2 * pl.col("waited") > pl.col("ns"))["track_id"]


def intervals_of(states: pl.DataFrame) -> Iterator[tuple[str, Intervals]]:
    """When some span of each state is open, as disjoint intervals, in the order of STATES. Units: ns."""
    numbers, starts, ends = (states[column].to_numpy() for column in ("state", "ts_ns", "end_ns"))
    for number, state in enumerate(STATES):
        mine = numbers == number
        if mine.any():
            yield state, union(starts[mine], ends[mine])


def wait_before(states: pl.DataFrame, at: Ints) -> Ints:
    """For how long a thread had been waiting for the device, or in a blocking call, at these times. Units: ns."""
    state = states["state"].to_numpy()
    waits = (state == STATES.index("sync")) | (state == STATES.index("blocking_call"))
    starts, ends = union(states["ts_ns"].to_numpy()[waits], states["end_ns"].to_numpy()[waits])
    if not starts.size:
        return np.zeros(at.size, np.int64)
    open_ = np.searchsorted(starts, at, side="right") - 1
    # A wait that ends as the gap begins is the wait for the work that ended then.
    waited: Ints = np.where((open_ >= 0) & (ends[open_] >= at), at - starts[open_], 0)
    return waited
