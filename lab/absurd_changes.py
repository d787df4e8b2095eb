"""Changes of meaning: of values by what their column holds, of lists of rows, of the shape of a document, of events.

A change gets a value, the number of its row and a random.Random, and gives another value.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import mutations

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Row = dict[str, Any]
    Rows = list[Row]
    Change = Callable[[Any, int, Random], Any]

MANY, TRACKS = 20_000, (3_000, 3_000, 100_000)
LONGEST_NAME = 10_000_000


def number(value: Any) -> float:
    """The number that a value is, or 0."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return 0.0


def _mixed(value: Any, n: int) -> Any:
    """Another type in each row."""
    return (value, str(value), [value], None, {"v": value}, True, math.nan)[n % 7]


_NO_NUMBERS: tuple[Any, ...] = (
    math.nan, math.inf, -math.inf, "NaN", "inf", "-Infinity", "1e400", "0x10", "1,234.5", "1_000", "٣", " 7 ", "-0",
    -0.0, 1e308, -1e308, 5e-324, 2**62, -(2**62), 2**63 - 1, 2**64, 10**40, True, [], {}, [[[[1]]]], "", None,
)  # fmt: skip

OF_VALUES: dict[str, tuple[Change, ...]] = {
    "times": (
        lambda _v, _n, _r: 0,
        lambda v, _n, _r: -number(v),
        lambda _v, _n, _r: 1000,
        lambda v, _n, _r: 1e12 - number(v),
        lambda v, _n, _r: number(v) * 1e9,
        lambda _v, n, _r: 9_223_372_036_854_775 - n,
        lambda v, _n, r: number(v) + r.choice((-1e15, 1e15, -1, 1)),
        lambda _v, n, _r: n * 1e-4,
        lambda v, _n, _r: str(v),
        lambda _v, _n, r: r.choice(("NaN", "", None, "x", 2**63, -(2**63))),
        lambda _v, n, _r: 2**62 if n % 2 else -(2**62),
        lambda v, n, _r: number(v) * (1, 1e3, 1e-3, 1e6)[n % 4],  # another unit in each row
        lambda v, n, _r: _mixed(v, n),
        lambda _v, n, _r: -n,
        lambda _v, n, _r: n // 3 * 3,
        lambda _v, _n, r: r.choice(_NO_NUMBERS),
    ),
    "links": (
        lambda _v, _n, _r: None,
        lambda _v, _n, _r: 1,
        lambda _v, n, _r: n,
        lambda _v, n, _r: n + 1,
        lambda _v, n, _r: 10**9 + n,
        lambda _v, _n, _r: -1,
        lambda _v, n, _r: 2**63 - 1 - n,
        lambda v, _n, _r: str(v),
        lambda _v, n, r: r.randrange(n + 2),
        lambda _v, n, _r: n ^ 1,  # each the other's
        lambda _v, n, _r: max(n - 1, 0),
        lambda _v, n, _r: (n + 1) % 7,
        lambda _v, _n, _r: 10**9,
        lambda v, n, _r: _mixed(v, n),
        lambda _v, _n, r: r.choice(_NO_NUMBERS),
    ),
    "sizes": (
        lambda _v, _n, _r: 0,
        lambda _v, _n, _r: -1,
        lambda _v, _n, _r: 10**18,
        lambda _v, _n, _r: 2**63 - 1,
        lambda _v, _n, _r: [10**18, 10**18],
        lambda _v, _n, _r: [[10**18, 3], [3, 10**18]],
        lambda _v, _n, _r: [0, 0, 0],
        lambda _v, _n, _r: "x",
        lambda _v, n, _r: 1e300 * (n + 1),
        lambda _v, _n, r: r.choice((True, {"a": 1}, [], "-1.-1", 1e-300)),
        lambda v, _n, _r: -number(v),
        lambda _v, n, _r: 2 ** (n % 70),
        lambda _v, n, _r: list(range(30_000)) if n == 0 else [n],
        lambda v, n, _r: _mixed(v, n),
        lambda _v, _n, r: r.choice(_NO_NUMBERS),
    ),
    "names": (
        lambda _v, n, _r: f"{n:x}" * 200,
        lambda _v, _n, _r: "",
        lambda _v, n, _r: f"\u202e\x1b[2J\x07\u200b{n}",
        lambda _v, n, _r: "a::" * (n % 500) + "b<" * (n % 500),
        lambda _v, _n, _r: "ncclDevKernel_AllReduce",
        lambda _v, n, _r: f"ProfilerStep#{n * 10**6}",
        lambda _v, _n, _r: "=cmd|' /C calc'!A0",
        lambda _v, _n, r: r.choice(mutations.NAMES),
        lambda _v, _n, _r: None,
        lambda _v, n, _r: f"a\0{n}",
        lambda _v, n, _r: f"\ud800{n}",
        lambda v, n, _r: "long " * (LONGEST_NAME // 5) if n == 0 else v,
        lambda v, n, _r: _mixed(v, n),
        lambda _v, n, r: r.choice(_TELLING).replace("#", str(n % 9)),
        lambda _v, n, _r: _TELLING[n % len(_TELLING)].replace("#", str(10**14 + n)),
        lambda _v, n, _r: "(" * n + "[" * n + "\\",
    ),
}  # fmt: skip
#: Names that analyses read something from, with any number.
_TELLING = (
    "ProfilerStep##", "step[DECODE bs=#]", "step[EXTEND bs=# toks=999999999999999]", "prefill[bs=0 tok=#]",
    "execute_context_#(999999999999999)_generation_#(0)", "execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0()",
    "_forward_step 7: # ctx reqs, 999999999999999 ctx tokens, 0 gen reqs", "nccl:all_to_all", "nccl:send #->#",
    "ncclDevKernel_SendRecv(#)", "nn.Module: A_#", "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "Optimizer.step#SGD.step", "cudaGraphLaunch", "cudaEventRecord", "cudaStreamWaitEvent", "cudaDeviceSynchronize",
    "triton_per_fused_#", "Torch-Compiled Region: #/#", "## Call CompiledFxGraph f# ##",
    "Memcpy HtoD (Pageable -> Device)",
    "Memset (Device)", "autograd::engine::evaluate_function: MmBackward#", "aten::mm", "aten::_local_scalar_dense",
    "DistributedDataParallel.forward", "sampler", "void gemm<#, #>(float*)", "moe_align_block_size_kernel", "[memory]",
)  # fmt: skip


def _many_times(rows: Rows, random: Random) -> Rows:
    times = MANY // max(len(rows), 1) + 1
    return [copy.copy(row) for row in rows[: random.choice((1, len(rows)))] for _ in range(times)][:MANY]


def _swapped(rows: Rows, random: Random) -> Rows:
    """Two columns, each with the values of the other."""
    keys = list(rows[0]) if isinstance(rows[0], dict) else []
    if len(keys) > 1:
        one, other = random.sample(keys, 2)
        for row in rows:
            if isinstance(row, dict) and one in row and other in row:
                row[one], row[other] = row[other], row[one]
    return rows


OF_ROWS: tuple[Callable[[Rows, Random], Rows], ...] = (
    _many_times,
    lambda rows, random: [random.choice(rows)],
    lambda rows, _random: rows[::-1],
    lambda rows, random: random.sample(rows, len(rows)),
    lambda rows, _random: [copy.deepcopy(row) for row in rows for _ in range(2)],
    _swapped,
    lambda rows, _random: rows[:0],
)
_OTHER_SHAPES: tuple[Any, ...] = (
    None, 0, -1, 1e300, math.nan, "", "x", [], {}, [[]], [None], [{}], {"": {}}, {"a": [1, "x", None]}, True, 10**30,
)  # fmt: skip


def reshaped(rows: Rows, lists: list[list[Any]], random: Random) -> None:
    """One change of the shape of a document: a key that is gone, other, or of another kind; a list with odd members."""
    row = random.choice(rows)
    if lists and random.random() < 0.5:
        some = random.choice(lists)
        some[:] = random.choice(_OF_LISTS)(some[:], random)
    elif row:
        random.choice(_OF_KEYS)(row, random.choice(list(row)), random)


_OF_LISTS: tuple[Callable[[list[Any], Random], list[Any]], ...] = (
    lambda some, random: random.choice(OF_ROWS)(some, random) if some else some,
    lambda some, random: [*some, random.choice(_OTHER_SHAPES)],
    lambda some, random: [random.choice(_OTHER_SHAPES), *some],
    lambda some, _random: [some],
    lambda some, random: [random.choice(_OTHER_SHAPES) if random.random() < 0.2 else one for one in some],
    lambda some, _random: (some[:1] or [{}]) * 3000,  # one value, referred to again and again
)


def _deep(row: Row, key: str, random: Random) -> None:
    for _ in range(random.choice((50, 300))):
        row[key] = [row[key]] if random.random() < 0.5 else {"a": row[key]}


def _to(value: Callable[[Any, Row, Random], Any]) -> Callable[[Row, str, Random], None]:
    """A change that gives the key another value."""
    return lambda row, key, random: row.__setitem__(key, value(row[key], row, random))


_OF_KEYS: tuple[Callable[[Row, str, Random], None], ...] = (
    lambda row, key, _random: row.__delitem__(key),
    _to(lambda _value, row, random: row[random.choice(list(row))]),
    lambda row, key, random: row.__setitem__(
        random.choice((str(key).upper(), f"{key} ", "", "\0", "__class__")), row[key]
    ),
    _to(lambda value, _row, random: [value] if random.random() < 0.5 else {"0": value}),
    _deep,
    _to(lambda _value, _row, random: random.choice(_OTHER_SHAPES)),
)


def nested(_document: Row, events: Rows, random: Random) -> Rows:
    """Calls within calls, thousands deep."""
    depth = random.choice((100, 2_000, 10_000))
    base = {"ph": "X", "cat": random.choice(("cpu_op", "python_function", "user_annotation", None)), "pid": 1, "tid": 1}
    same = random.random() < 0.5
    deep = ({**base, "name": "same" if same else f"n{i}", "ts": i, "dur": 2 * depth - 2 * i} for i in range(depth))
    return [*events, *deep]


def steps(_document: Row, events: Rows, random: Random) -> Rows:
    """None to many steps, some without a length."""
    base = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1, "dur": random.choice((0, 0.5, 3))}
    return [*events, *({**base, "name": f"ProfilerStep#{i}", "ts": i} for i in range(random.choice((1, 10, MANY))))]


def odd_steps(_document: Row, events: Rows, random: Random) -> Rows:
    """Steps one in the other, one over the other, all of one number, all at once."""
    n = random.choice((10, MANY))
    base = {"ph": "X", "cat": "user_annotation", "pid": 1, "tid": 1}
    own: Callable[[int], Row] = random.choice((
        lambda i: {"name": f"ProfilerStep#{i}", "ts": i, "dur": 2 * (n - i)},
        lambda i: {"name": f"ProfilerStep#{i}", "ts": 10 * i, "dur": 25},
        lambda i: {"name": "ProfilerStep#7", "ts": 10 * i, "dur": 9},
        lambda i: {"name": f"ProfilerStep#{n - i}", "ts": 0, "dur": 5000, "tid": i % 50},
    ))  # fmt: skip
    return [*events, *({**base, **own(i)} for i in range(n))]


def processes(_document: Row, events: Rows, random: Random) -> Rows:
    """A process for each event."""
    first = random.choice((0, 2**31, 10**12))
    return [{**event, "pid": first + number, "tid": number} for number, event in enumerate(events)]


def tracks(_document: Row, events: Rows, random: Random) -> Rows:
    """As many threads or streams as there can be events."""
    base = random.choice([event for event in events if "dur" in event] or [{"ph": "X", "ts": 0, "dur": 1}])
    return [*events, *({**base, "tid": 10**6 + i, "ts": i} for i in range(random.choice(TRACKS)))]


def world(document: Row, events: Rows, random: Random) -> Rows:
    """Claims about the job."""
    claim = random.choice((0, -1, 10**9, 2**62, "8", [8], None))
    document["distributedInfo"] = {
        "rank": random.choice((0, -1, 10**9, "x")), "world_size": claim, "backend": "nccl",
        "pg_config": [{"pg_name": "0", "ranks": list(range(random.choice((0, 1, 5000)))), "pg_size": claim}],
    }  # fmt: skip
    return events


def collectives(_document: Row, events: Rows, random: Random) -> Rows:
    """What collectives say of themselves."""
    odd = (
        0, -1, 10**9, 10**18, "x", [], list(range(5000)), "[0, 1, 2, ...", "[" + "1," * 5000 + "]", None, math.nan,
        [10**18], "default_pg", {"a": 1}, "Float", "novel", 2**63, "all_to_allv", "send", "allreduce",
    )  # fmt: skip
    keys = (
        "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name", "Rank",
        "Seq",
        "Process Group Ranks", "Process Group Description", "In split size", "Out split size", "Global rank start",
        "Global rank stride", "Src Rank", "Dst Rank", "Is asynchronized op",
    )  # fmt: skip
    chosen = {key: random.choice(odd) for key in random.sample(keys, random.choice((1, 3, 9)))}
    for event in events:
        args = event.get("args")
        if isinstance(args, dict) and "Collective name" in args:
            args |= chosen
    return events


def graphs(_document: Row, events: Rows, random: Random) -> Rows:
    """Thousands of kernels of one launch, or one launch for each, and batches around them."""
    n, one = random.choice((3_000, MANY)), random.random() < 0.5
    on = {"device": 0, "stream": 7}
    kernels = [
        {"ph": "X", "cat": "kernel", "name": f"k{i % 3}", "pid": 0, "tid": 7, "ts": i, "dur": random.choice((0, 1, 5)),
         "args": {**on, "correlation": 1 if one else i}} for i in range(n)
    ]  # fmt: skip
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1, "dur": 1}
    launches = [{**launch, "ts": 2 * i, "args": {"correlation": i}} for i in range(1 if one else n)]
    name = random.choice(_TELLING).replace("#", "8")
    batches = [{**launch, "cat": "user_annotation", "name": name, "ts": 20 * i, "dur": 19} for i in range(n // 20)]
    return [*events, *kernels, *launches, *batches]


def allocations(_document: Row, events: Rows, random: Random) -> Rows:
    """Memory that is only given back, only taken, of one address, of many devices."""
    size, same, far = random.choice((-(2**40), 2**40, 2**62, 1)), random.random() < 0.5, random.random() < 0.5
    return [*events, *(
        {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": i, "args": {
            "Device Type": i % 3 - 1, "Device Id": i if far else 0, "Bytes": size, "Addr": 4096 if same else i,
            "Total Allocated": size * i, "Total Reserved": -i}} for i in range(5000))]  # fmt: skip


def clock(document: Row, events: Rows, random: Random) -> Rows:
    """When the recording began."""
    odd = (2**62, -(2**62), 2**63 - 1, 0, "x", math.nan, 1e30, [1], None)
    document["baseTimeNanoseconds"] = random.choice(odd)
    document["displayTimeUnit"] = random.choice(("ns", "ms", 7, None))
    return events


def properties(document: Row, events: Rows, random: Random) -> Rows:
    """Properties of devices that are of any type."""
    odd = (0, -1, 10**18, "x", [1], {"a": 1}, None, 1e300, True)
    keys = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock", "numSms", "warpSize")
    document["deviceProperties"] = [{key: random.choice(odd) for key in keys} for _ in range(random.choice((1, 3)))]
    return events


def circle(_document: Row, events: Rows, _random: Random) -> Rows:
    """Arrows from each event to the one before it, and Python frames that are each other's parents."""
    ends = [event for event in events if "ts" in event][:200]
    arrows = [
        {"ph": ph, "id": number, "cat": "ac2g", "name": "ac2g", **{k: event.get(k) for k in ("pid", "tid", "ts")}}
        for number in range(1, len(ends))
        for ph, event in (("s", ends[number]), ("f", ends[number - 1]))
    ]
    for number, event in enumerate(ends):
        args = event.get("args")
        own = args if isinstance(args, dict) else {}
        event["args"] = {**own, "Python id": number, "Python parent id": (number + 1) % len(ends)}
    return [*events, *arrows]


FIRST_OF_EVENTS = (nested, steps, processes, world, properties, circle)
OF_EVENTS = (
    *FIRST_OF_EVENTS, odd_steps, tracks, collectives, collectives, graphs, allocations, clock,
)  # fmt: skip
#: How many of the changes of rows, and of values of each role, are those without `further`.
FIRST_ROWS, FIRST_VALUES = 5, {"times": 10, "links": 9, "sizes": 10, "names": 9}
