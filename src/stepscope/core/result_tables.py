"""Tables of files of results, which hold no recording, by the names under which they are shown.

Those of Nsight Systems have the names of its own reports, as they are since 2023 (cuda_gpu_kern_sum was gpukernsum).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.schema import Category
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Of a function's events in a cycle, those during which its metric was sampled; the others' values are interpolated.
SAMPLED = ("all", "some", "none")
#: What tells where cycles begin: marked steps, calls of a function, of a kernel, the sequence of kernels, the clock.
CYCLE_STARTS = ("annotation", "function", "kernel", "sequence", "period")
CYCLES = Table(
    "cycles",
    "a turn of the program's main loop, or another part of it that repeats",
    (
        Column("cycle", pl.Int64(), "its number", key=True),
        Column("host", Name, "host of the process, where recorded", key=True),
        Column("pid", pl.Int64(), "process", key=True),
        Column("ts_ns", pl.Int64(), "start, from the origin", "ns"),
        Column("dur_ns", pl.Int64(), "duration", "ns"),
        Column("host_ts_ns", pl.Int64(), "start on the host; it differs from ts_ns where the device lags behind", "ns"),
        Column("host_dur_ns", pl.Int64(), "duration on the host", "ns"),
        Column("anchor", Name, "function whose calls mark the cycles"),
        Column("phase", Name, "prefill or decode, where a serving engine does both"),
        Column(
            "is_complete", pl.Boolean(), "false for cycles at either end that were recorded only in part; null: unknown"
        ),
        Column(
            "found_by", pl.Enum(CYCLE_STARTS), "how cycles were found: annotation, function, kernel, sequence, period"
        ),
        Column(
            "agreement_ratio",
            pl.Float64(),
            "share of names that occur equally often in all cycles, if these were searched for",
            "ratio",
        ),
    ),
)
ATTRIBUTION = Table(
    "attribution",
    "share of a cycle that a function took (beta), mean of a resource meanwhile (mu); a row per function and metric",
    (
        Column("cycle", pl.Int64(), "number of the cycle", key=True),
        Column("device", Name, "where the function ran: host, gpuN", key=True),
        Column("name", Name, "function as recorded", key=True),
        Column("metric", Name, "resource; null if none was sampled during the function", key=True),
        Column("mu", pl.Float64(), "mean of the metric during the events, weighted by their durations"),
        Column("unit", Name, "unit of mu and sigma, where known"),
        Column("calls", pl.Int64(), "its events in the cycle; the same in each row of the function"),
        Column("total_ns", pl.Int64(), "their summed duration; the same in each row of the function", "ns"),
        Column(
            "beta_ratio", pl.Float64(), "that duration divided by the cycle's; above 1 where threads add up", "ratio"
        ),
        Column(
            "resource", Name, "what the metric belongs to: gpuN, host, cpu, pid:N, a disk, …; null: unknown", key=True
        ),
        Column("sigma", pl.Float64(), "its standard deviation during the events"),
        Column("sampled", pl.Enum(SAMPLED), "which events had samples of their own: all, some, none"),
        Column("pid", pl.Int64(), "process", key=True),
        Column("host", Name, "host of the process, where recorded", key=True),
        Column("category", Category, "what the function is, in stepscope's own closed list"),
        Column("recorded_category", Name, "what it is, in the recorder's own word"),
        Column("short_name", Name, "its name as shortened by the recorder"),
        Column("recorded_beta", pl.Float64(), "100 times beta, as recorded"),
        Column("recorded_mu", pl.Float64(), "100 times mu, as recorded: percent for shares only"),
    ),
)


_WHOLE, _MEAN = pl.Int64(), pl.Float64()
_NAME = Column("name", Name, "kernel, call, operation or range, as recorded", key=True)
_CALLS = Column("calls", _WHOLE, "how often")
_STYLE = Column("style", Name, "whether a range is pushed and popped on a thread, or has a start and an end", key=True)
_CATEGORY = Column("category", Name, "what it is, in the recorder's own word", key=True)
_PLACE = (Column("pid", _WHOLE, "process", key=True), Column("tid", _WHOLE, "thread", key=True))


def _spread(unit: str, part: str = "", word: str = "") -> Iterator[Column]:
    """Mean, median, minimum, maximum and deviation over the calls of a row."""
    texts = {"mean": "mean", "p50": "median", "min": "least", "max": "most", "std": "standard deviation"}
    for name, text in texts.items():
        dtype = _WHOLE if name in ("min", "max") else _MEAN
        yield Column(f"{part}{name}_{unit}", dtype, f"{text}{word}", unit)


def _times(name: str, doc: str, *further: Column) -> Table:
    """Times by name and by the `further` key columns."""
    total = Column("total_ns", _WHOLE, "summed duration", "ns")
    share = Column("share_ratio", _MEAN, "its share of the summed duration of all rows", "ratio")
    return Table(name, f"{doc}, as nsys stats says", (_NAME, *further, _CALLS, total, share, *_spread("ns")))


def _sizes(name: str, doc: str) -> Table:
    total = Column("total_bytes", _WHOLE, "summed size", "bytes")
    return Table(name, f"{doc}, as nsys stats says", (_NAME, _CALLS, total, *_spread("bytes")))


NSYS: Mapping[str, Table] = {
    t.name: t
    for t in (
        _times("cuda_gpu_kern_sum", "what kernels cost"),
        _times(
            "cuda_gpu_kern_gb_sum",
            "what kernels cost by their size",
            Column("grid", Name, "blocks of a launch, as in 104x1x1", key=True),
            Column("block", Name, "threads of a block, as in 128x1x1", key=True),
        ),
        _times("cuda_gpu_mem_time_sum", "how long copies and fills took"),
        _sizes("cuda_gpu_mem_size_sum", "how much copies and fills moved"),
        _times("cuda_gpu_sum", "what kernels, copies and fills cost", _CATEGORY),
        _times("cuda_api_sum", "what calls of CUDA cost"),
        _times("cuda_api_gpu_sum", "what calls of CUDA and work on the device cost", _CATEGORY),
        Table(
            "cuda_kern_exec_sum",
            "how long launches took from call to end, and the call, the queue and the kernel of it, as nsys stats says",
            (
                _NAME,
                Column("call", Name, "call that launched it", key=True),
                *_PLACE,
                Column("device", _WHOLE, "number of the device", key=True),
                _CALLS,
                Column("queued_calls", _WHOLE, "how many of them waited in a queue"),
                *_spread("ns"),
                *_spread("ns", "call_", " of the call"),
                *_spread("ns", "queue_", " in the queue"),
                *_spread("ns", "kernel_", " of the kernel"),
            ),
        ),
        _times("osrt_sum", "what calls of the operating system cost"),
        _times("nvtx_sum", "how long NVTX ranges took", _STYLE),
        _times("nvtx_pushpop_sum", "how long NVTX ranges of threads took"),
        _times("nvtx_startend_sum", "how long NVTX ranges with a start and an end took"),
        _times(
            "nvtx_kern_sum",
            "what kernels cost by the NVTX range around their launch",
            Column("range", Name, "the range; null for kernels outside any", key=True),
            _STYLE,
            *_PLACE,
            Column("n_ranges", _WHOLE, "how many such ranges there were"),
        ),
        _times(
            "nvtx_gpu_proj_sum",
            "how long the device worked on what NVTX ranges launched",
            _STYLE,
            Column("range_total_ns", _WHOLE, "summed duration of the ranges themselves", "ns"),
            Column("n_device_ops", _WHOLE, "kernels, copies and fills that they launched"),
        ),
        _times(
            "other_sum",
            "what other things cost: MPI, OpenMP, Vulkan and the like",
            Column("report", Name, "name of the summary", key=True),
            _CATEGORY,
        ),
    )
}

_STEP = Column("step", _WHOLE, "number of the step, where recorded", key=True)
_NPU = Column("device", _WHOLE, "number of the device, where recorded", key=True)
_SIZE = Column("bytes", _WHOLE, "bytes that it moved", "bytes")
_RATE = Column("bytes_per_s", _MEAN, "its rate", "bytes/s")
_OF_GROUP = (
    _STEP,
    Column("kind", Name, "collective or p2p", key=True),
    Column("name", Name, "collective, as recorded", key=True),
    Column("group", Name, "process group, as a number", key=True),
)
_LINK = Column("link", Name, "kind of link: HCCS, PCIE, RDMA, SDMA, SIO, LOCAL", key=True)


def _spans_of_time(**docs: str) -> Iterator[Column]:
    for name, doc in docs.items():
        yield Column(f"{name}_ns", _WHOLE, doc, "ns")


#: What Ascend's profilers compute (CSV, JSON or analysis.db), under the names of the vendor's files where there is one.
ASCEND: Mapping[str, Table] = {
    t.name: t
    for t in (
        Table(
            "step_trace_time",
            "where each step's time went, as Ascend's profiler says",
            (
                _STEP,
                _NPU,
                *_spans_of_time(
                    computation="it computes",
                    exposed_communication="it communicates and does not compute",
                    overlapped="it communicates and computes",
                    communication="it communicates",
                    idle="it does neither; copies count as this",
                    stage="from the first to the last such work",
                    bubble="it waits for another stage of the pipeline",
                    exposed_without_receive="it communicates, but for receiving, and does not compute",
                    preparing="before the first such work",
                ),
            ),
        ),
        Table(
            "op_statistic",
            "what operators cost on the device, as Ascend's profiler says",
            (
                Column("name", Name, "type of the operator, as in MatMulV3", key=True),
                Column("core", Name, "core that it ran on, as in AI_CORE", key=True),
                _NPU,
                _CALLS,
                *_spans_of_time(total="summed duration", min="least", max="most"),
                Column("mean_ns", _MEAN, "mean", "ns"),
                Column("share_ratio", _MEAN, "its share of the summed duration of all rows", "ratio"),
            ),
        ),
        Table(
            "api_statistic",
            "what calls of Ascend's libraries cost, as its profiler says",
            (
                Column("level", Name, "library: acl, node, runtime, hccl", key=True),
                _NAME,
                _CALLS,
                *_spans_of_time(total="summed duration", min="least", max="most"),
                Column("mean_ns", _MEAN, "mean", "ns"),
            ),
        ),
        Table(
            "communication_time",
            "how long each collective took, and of what, as Ascend's profiler says",
            (
                *_OF_GROUP,
                *_spans_of_time(
                    start="start, since 1970",
                    elapse="from start to end",
                    transit="data was under way",
                    wait="it waited for other ranks",
                    synchronization="of it, before the first data",
                    idle="neither",
                ),
            ),
        ),
        Table(
            "communication_links",
            "what each collective moved over each kind of link, as Ascend's profiler says",
            (
                *_OF_GROUP,
                _LINK,
                _SIZE,
                *_spans_of_time(transit="data was under way"),
                _RATE,
                Column("large_ratio", _MEAN, "share of large packets", "ratio"),
            ),
        ),
        Table(
            "communication_matrix",
            "what each rank sent to each, as Ascend's profiler says",
            (
                *_OF_GROUP,
                Column("src_rank", pl.Int32(), "rank that sends, within the group", key=True),
                Column("dst_rank", pl.Int32(), "rank that receives", key=True),
                _LINK,
                _SIZE,
                *_spans_of_time(transit="data was under way"),
                _RATE,
                Column("operation", Name, "the collective, where `name` is a kind"),
            ),
        ),
    )
}

#: Every such table.
RESULTS: Mapping[str, Table] = {t.name: t for t in (CYCLES, ATTRIBUTION, *NSYS.values(), *ASCEND.values())}
