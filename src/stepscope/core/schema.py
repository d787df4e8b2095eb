"""Every table that a trace can hold: names, types, units and one line of description. They are defined only here.

Intervals are half-open. Time is Int64 nanoseconds from the trace's origin. Null means unknown: never −1, never 0
for absent. Result tables of analyses are declared with the same two classes, next to their analysis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.core.request_tables import EXPERT_TOKENS, HISTOGRAMS, REQUESTS
from stepscope.core.table import Column, Name, Table

if TYPE_CHECKING:
    from collections.abc import Mapping

CATEGORIES = (
    "step", "user_range", "module", "operator", "python", "runtime", "driver", "dataloader", "kernel", "memcpy",
    "memset", "sync", "device_range", "sched_oncpu", "sched_runq", "io", "overhead", "other",
)  # fmt: skip
DEVICE_TYPES = ("cpu", "cuda", "rocm", "mlu", "npu", "xpu", "mtia", "tpu", "accelerator")
TRACK_KINDS = ("thread", "stream", "annotation", "async", "other")
SEVERITIES = ("info", "warning", "error")

Category = pl.Enum(CATEGORIES)
DeviceType = pl.Enum(DEVICE_TYPES)
TrackKind = pl.Enum(TRACK_KINDS)
Severity = pl.Enum(SEVERITIES)

#: Work that occupies an accelerator. `sync` and `device_range` are on device tracks too but occupy nothing.
DEVICE_WORK = ("kernel", "memcpy", "memset")


DEVICES = Table(
    "devices",
    "an accelerator, or the host",
    (
        Column("device_id", pl.UInt32(), "row number, referred to by tracks and allocations", key=True),
        Column("type", DeviceType, "cuda, rocm, mlu, npu, xpu, mtia, tpu, cpu"),
        Column("index", pl.Int32(), "the framework's ordinal, as in cuda:3", key=True),
        Column("name", pl.String(), "product name"),
        Column("sm_count", pl.Int32(), "streaming multiprocessors or compute units"),
        Column("memory_bytes", pl.Int64(), "memory on the device", "bytes"),
        Column("compute_capability", pl.String(), "architecture version, as in 9.0 or gfx942"),
        Column("recorded_flop_per_s", pl.Float64(), "its peak rate, as stated by the recorder", "FLOP/s"),
        Column("recorded_bytes_per_s", pl.Float64(), "its memory bandwidth, as stated by the recorder", "bytes/s"),
    ),
    never_null=("device_id", "type"),
)
#: A device as in cuda:0, or as in cpu where it has no ordinal; from rows of the table above.
DEVICE_LABEL = pl.when(pl.col("index").is_not_null()).then(pl.format("{}:{}", "type", "index")).otherwise("type")
#: A device in rows with its label (`device`) and its `device_id`, either of which may be null.
DEVICE_OR_NUMBER = pl.coalesce("device", pl.format("device {}", "device_id"), pl.lit("device"))
TRACKS = Table(
    "tracks",
    "where spans lie: a thread, a stream, an annotation lane",
    (
        Column("track_id", pl.UInt32(), "row number, referred to by spans", key=True),
        Column("rank", pl.Int32(), "rank of the process in its job"),
        Column("host", pl.String(), "host name"),
        Column("pid", pl.Int64(), "process id as recorded; null where the trace gives text"),
        Column("tid", pl.Int64(), "thread id as recorded; null where the trace gives text"),
        Column("device_id", pl.UInt32(), "device whose work is on it; null for host tracks"),
        Column("stream", pl.Int64(), "device stream or queue"),
        Column("kind", TrackKind, "thread, stream, annotation, async, other"),
        Column("process", pl.String(), "process name"),
        Column("label", pl.String(), "thread or lane name"),
    ),
    never_null=("track_id", "kind"),
)
SPANS = Table(
    "spans",
    "anything with a start and an end, sorted by track, start, longest first; without a clock: in order of launch",
    (
        Column("span_id", pl.UInt32(), "row number, referred to by every side table", key=True),
        Column("track_id", pl.UInt32(), "its track"),
        Column("ts_ns", pl.Int64(), "start, from the trace's origin; null in all rows: order known, no clock", "ns"),
        Column("dur_ns", pl.Int64(), "duration", "ns"),
        Column("name", Name, "name as recorded"),
        Column("category", Category, "what it is, in stepscope's own closed list"),
        Column("recorded_category", Name, "what it is, in the recorder's own word"),
        Column("correlation", pl.Int64(), "id shared by a host call and the device work it queued"),
        Column("external_id", pl.Int64(), "recorder's id of an operator, shared by its calls and device work"),
        Column("parent_id", pl.UInt32(), "innermost span of the same host thread that was open at its start"),
        Column("launch_id", pl.UInt32(), "of device work: the host call that queued it"),
        Column("op_id", pl.UInt32(), "of device work and runtime calls: the innermost operator that caused it"),
        Column("step", pl.Int32(), "number of the step it belongs to (device work: the step that queued it)"),
        Column("flow", pl.Boolean(), "of device work: the trace draws an arrow from a launch to it; null: no arrows"),
    ),
    never_null=("span_id", "track_id", "name", "category"),
)
#: `recorded_category` of operators and modules that come from the capture of a graph, inside the launch that replays
#: it: the host did not run them, so they have an order and no time.
CAPTURED = "captured"
#: Columns of any table that refer to rows of spans.
SPAN_REFERENCES = ("span_id", "parent_id", "launch_id", "op_id", "recording_id")
OPS = Table(
    "ops",
    "side table of spans: the arguments of a framework operator (or of a user's range)",
    (
        Column("span_id", pl.UInt32(), "the operator's span", key=True),
        Column("input_shapes", Name, "shapes of all inputs, as compact JSON"),
        Column("input_types", Name, "element types of all inputs, as compact JSON"),
        Column("concrete_inputs", Name, "values of scalar inputs, as compact JSON"),
        Column("sequence", pl.Int64(), "autograd sequence number, shared by a forward and its backward operator"),
        Column("forward_thread", pl.Int64(), "of backward operators: autograd's number of the forward thread"),
        Column("stack_id", pl.UInt32(), "call stack it was called from"),
    ),
    never_null=("span_id",),
)
KERNELS = Table(
    "kernels",
    "side table of spans: launch configuration of a device kernel",
    (
        Column("span_id", pl.UInt32(), "the kernel's span", key=True),
        *(Column(f"grid_{a}", pl.Int32(), f"blocks in {a}") for a in "xyz"),
        *(Column(f"block_{a}", pl.Int32(), f"threads per block in {a}") for a in "xyz"),
        Column("registers", pl.Int32(), "registers per thread"),
        Column("shared_bytes", pl.Int32(), "shared memory per block", "bytes"),
        Column("blocks_per_sm", pl.Float64(), "blocks per multiprocessor if spread evenly"),
        Column("warps_per_sm", pl.Float64(), "warps per multiprocessor if spread evenly"),
        Column("est_occupancy_ratio", pl.Float64(), "occupancy estimated by the recorder", "ratio"),
        Column("tensor_core", pl.Boolean(), "the name says that it uses matrix units"),
        Column("kernel_type", Name, "how it occupies the device, in the recorder's own word (MLU: BLOCK, UNION1 …)"),
        Column("graph_id", pl.Int64(), "captured graph it belongs to"),
        Column("graph_node_id", pl.Int64(), "its node in that graph"),
    ),
    never_null=("span_id",),
)
FRAMES = Table(
    "frames",
    "side table of spans: a call of a Python function or of a module",
    (
        Column("span_id", pl.UInt32(), "the call's span", key=True),
        Column("python_id", pl.Int64(), "recorder's id of the call"),
        Column("python_parent_id", pl.Int64(), "recorder's id of the call around it"),
        Column("module_id", pl.Int64(), "of modules: which instance of its class"),
    ),
    never_null=("span_id",),
)
ARROWS = Table(
    "arrows",
    "an arrow that the trace draws between host threads, as from a forward operator to its backward",
    (
        Column("recorded_category", Name, "its kind, in the recorder's own word", key=True),
        Column("from_track_id", pl.UInt32(), "track where it starts"),
        Column("from_ts_ns", pl.Int64(), "when it starts, from the trace's origin", "ns"),
        Column("to_track_id", pl.UInt32(), "track where it ends"),
        Column("to_ts_ns", pl.Int64(), "when it ends, from the trace's origin", "ns"),
    ),
    never_null=("from_track_id", "from_ts_ns", "to_track_id", "to_ts_ns"),
)
TRANSFERS = Table(
    "transfers",
    "side table of spans: a copy or a fill",
    (
        Column("span_id", pl.UInt32(), "the transfer's span", key=True),
        Column("bytes", pl.Int64(), "bytes moved", "bytes"),
        Column("kind", Name, "HtoD, DtoH, DtoD, PtoP, HtoH, memset, unknown"),
        Column("src", Name, "source memory, as in Pageable, Pinned, Device"),
        Column("dst", Name, "destination memory"),
        Column("recorded_bytes_per_s", pl.Float64(), "bandwidth as stated by the recorder", "bytes/s"),
    ),
    never_null=("span_id", "kind"),
)
COLLECTIVES = Table(
    "collectives",
    "side table of spans: a communication among ranks, from its operator or kernel",
    (
        Column("span_id", pl.UInt32(), "the operator's or kernel's span", key=True),
        Column("collective", Name, "as in allreduce, _allgather_base"),
        Column("dtype", Name, "element type"),
        Column("in_elements", pl.Int64(), "elements sent in by this rank"),
        Column("out_elements", pl.Int64(), "elements that this rank receives"),
        Column("group", Name, "process group"),
        Column("group_size", pl.Int32(), "ranks in the group"),
        Column("group_ranks", Name, "ranks in the group, as recorded"),
        Column("group_description", Name, "what the group is for, in its creator's words"),
        Column("src_rank", pl.Int32(), "of a receive: the rank that sends"),
        Column("dst_rank", pl.Int32(), "of a send: the rank that receives"),
        Column("seq", pl.Int64(), "number of the collective within its group, where recorded"),
    ),
    never_null=("span_id", "collective"),
)
HLO_OPS = Table(
    "hlo_ops",
    "side table of spans: the operation of XLA (HLO) that a kernel or a span of the host executes",
    (
        Column("span_id", pl.UInt32(), "the span; its `recorded_category` is the operation's", key=True),
        Column("operation", Name, "name of the instruction, as in fusion.12"),
        Column("module", Name, "HLO module, as in jit_train_step"),
        Column("program_id", pl.Int64(), "number of the compiled module"),
        Column("framework_op", Name, "the framework's operation that it was made from, as in jit(f)/dot_general"),
        Column("source", Name, "file and line that it was traced at"),
        Column("shape", Name, "its result, with layout"),
    ),
)
KERNEL_METRICS = Table(
    "kernel_metrics",
    "a hardware counter of one kernel launch or profiled range",
    (
        Column("span_id", pl.UInt32(), "the kernel's or range's span", key=True),
        Column("metric", Name, "the counter's own name", key=True),
        Column("unit", Name, "its unit, where recorded"),
        Column("value", pl.Float64(), "its value"),
    ),
    never_null=("span_id", "metric"),
)
CAPTURED_LAUNCHES = Table(
    "captured_launches",
    "side table of spans: a launch that ran nothing, as it was recorded into a graph",
    (
        Column("span_id", pl.UInt32(), "the call's span", key=True),
        Column("kernel", Name, "the kernel that it puts into the graph, where recorded"),
    ),
    never_null=("span_id",),
)
EVENT_WAITS = Table(
    "event_waits",
    "side table of spans: a stream or a thread waits for an event, which is what a stream was given up to some call",
    (
        Column("span_id", pl.UInt32(), "the wait, as recorded on a device track (category sync)", key=True),
        Column("stream", pl.Int64(), "the stream that it waits for"),
        Column("recording_id", pl.UInt32(), "the host call that recorded the event on that stream"),
    ),
    never_null=("span_id",),
)
SCHED = Table(
    "sched",
    "side table of spans: a thread on a core, or ready and waiting for one",
    (
        Column("span_id", pl.UInt32(), "the span", key=True),
        Column("core", pl.Int32(), "core that it ran on, or got in the end"),
        Column("reason", Name, "why it lost the core (preempted, sleeps, blocked, stopped, ended), or waits for one"),
        Column("other", Name, "thread that got the core next, or had it until a woken one got it; null: none, unknown"),
        Column("other_tid", pl.Int64(), "thread id of `other`"),
        Column("other_is_own", pl.Boolean(), "whether `other` is a thread of the recorded job"),
    ),
    never_null=("span_id",),
)
ALLOCATIONS = Table(
    "allocations",
    "an allocate or a free",
    (
        Column("ts_ns", pl.Int64(), "when, from the trace's origin", "ns"),
        Column("track_id", pl.UInt32(), "thread that did it"),
        Column("device_id", pl.UInt32(), "device whose memory it is", key=True),
        Column("address", pl.UInt64(), "address of the block"),
        Column("bytes", pl.Int64(), "size; negative for a free", "bytes"),
        Column("total_allocated_bytes", pl.Int64(), "held by tensors after it", "bytes"),
        Column("total_reserved_bytes", pl.Int64(), "held by the allocator after it", "bytes"),
        Column("op_id", pl.UInt32(), "innermost operator open on that thread"),
        Column("span_id", pl.UInt32(), "innermost span open on that thread, where recorded"),
        Column("recorded_category", Name, "what it is, in the recorder's own word"),
        Column("place", Name, "the memory, in the recorder's own word, as in Place(gpu:0)"),
        Column("peak_allocated_bytes", pl.Int64(), "most held by tensors so far, as recorded", "bytes"),
        Column("peak_reserved_bytes", pl.Int64(), "most held by the allocator so far, as recorded", "bytes"),
    ),
    never_null=("ts_ns", "track_id", "bytes"),
)
RESERVATIONS = Table(
    "reservations",
    "the allocator takes memory from a device or gives it back",
    ALLOCATIONS.columns,
    never_null=("ts_ns", "track_id", "bytes"),
)
COUNTERS = Table(
    "counters",
    "a sample of a resource",
    (
        Column("ts_ns", pl.Int64(), "when, from the trace's origin", "ns", key=True),
        Column("device_id", pl.UInt32(), "accelerator it belongs to, where known"),
        Column("device", Name, "host, cpuN, gpuN, pid:N, a disk, an interface, or the trace's own track", key=True),
        Column("pid", pl.Int64(), "process it belongs to, where known"),
        Column("metric", Name, "what was sampled", key=True),
        Column("unit", Name, "unit of value, where known"),
        Column("value", pl.Float64(), "the sample"),
    ),
    never_null=("ts_ns",),
)
STACKS = Table(
    "stacks",
    "interned call stacks",
    (
        Column("stack_id", pl.UInt32(), "row number", key=True),
        Column("frames", pl.List(pl.String()), "frames, outermost first"),
        Column("text", pl.String(), "as recorded; null where it was made from enclosing Python frames"),
    ),
    never_null=("stack_id", "frames"),
)
STACK_SAMPLES = Table(
    "stack_samples",
    "a Python stack of a thread, sampled from outside: from the first sample that shows it to the next that differs",
    (
        Column("ts_ns", pl.Int64(), "first sample, from the trace's origin (on_gil: some seconds)", "ns", key=True),
        Column("dur_ns", pl.Int64(), "time until another stack was sampled (on_gil: from the number of samples)", "ns"),
        Column("pid", pl.Int64(), "process", key=True),
        Column("tid", pl.Int64(), "thread, as the system numbers it", key=True),
        Column("thread", Name, "the thread's name in Python"),
        Column("stack_id", pl.UInt32(), "the stack"),
        Column("n_samples", pl.Int64(), "samples that show it; from their rate if the recorder reports only changes"),
        Column(
            "on_gil",
            pl.Boolean(),
            "true of rows besides the others, which count looks, in some seconds from ts_ns on, that found the thread "
            "holding the GIL; false of the others",
            key=True,
        ),
        Column("oncpu_ratio", pl.Float64(), "share of those seconds in which the thread ran on a core", "ratio"),
    ),
    never_null=("ts_ns", "dur_ns", "pid", "tid", "stack_id", "n_samples", "on_gil"),
)
STEPS = Table(
    "steps",
    "an iteration",
    (
        Column("step", pl.Int32(), "its number", key=True),
        Column("rank", pl.Int32(), "rank that recorded it"),
        Column("ts_ns", pl.Int64(), "start on the host", "ns"),
        Column("dur_ns", pl.Int64(), "duration on the host", "ns"),
        Column("source", pl.Enum(("annotation", "detected")), "where the step's bounds come from"),
    ),
    never_null=("step", "ts_ns", "dur_ns", "source"),
)
STEP_TIMES = Table(
    "step_times",
    "when steps of a process ended over its whole run, profiled or not, as `stepscope record` noted it",
    (
        Column("pid", pl.Int64(), "process", key=True),
        Column("rank", pl.Int32(), "its rank, if its launcher named one"),
        Column("ts_ns", pl.Int64(), "start of the step, from the trace's origin", "ns", key=True),
        Column("dur_ns", pl.Int64(), "duration, of all steps of the row together", "ns"),
        Column("n_steps", pl.Int32(), "how many steps: short ones of a long run share a row"),
        Column("source", pl.Enum(("module calls", "optimizer steps", "named ranges")), "what marks the steps"),
        Column("is_profiled", pl.Boolean(), "a profiler started, ran or wrote, which makes steps longer"),
        Column("inside_ns", pl.Int64(), "time inside the calls that mark them, of all threads, to 4 %", "ns"),
    ),
    never_null=("pid", "ts_ns", "dur_ns", "n_steps", "source", "is_profiled"),
)
STEP_COSTS = Table(
    "step_costs",
    "what a training loop's own timer measured, a row per step or batch read",
    (
        Column("kind", pl.Enum(("step", "reader")), "what was timed: a step, or reading a batch", key=True),
        Column("n_before", pl.Int64(), "steps that had ended when it began", key=True),
        Column("cost_s", pl.Float64(), "wall time", "s"),
        Column("n_samples", pl.Int64(), "samples in the step, if the loop logged them"),
        Column("source", pl.Enum(("timer", "ranges")), "measured by the loop's timer, or length of the step's range"),
    ),
    never_null=("kind", "n_before", "cost_s", "source"),
)
ISSUES = Table(
    "issues",
    "what a reader dropped, guessed or repaired",
    (
        Column("code", pl.String(), "what happened, one word", key=True),
        Column("severity", Severity, "info, warning, error"),
        Column("count", pl.Int64(), "how often"),
        Column("example", pl.String(), "one case in words"),
    ),
    never_null=("code", "severity", "count"),
)

#: The code of an issue: the recorder ran kernels one at a time, so that idle time is its own.
SERIALISED = "serialised"
COLLECTIVE_RECORDS = Table(
    "collective_records",
    "a collective or a message between two ranks, as PyTorch's flight recorder of a rank noted it",
    (
        Column("rank", pl.Int32(), "rank that noted it", key=True),
        Column("record_id", pl.Int64(), "its number in the order of calls of the rank", key=True),
        Column("group", Name, "name of the process group"),
        Column("group_desc", Name, "what the program calls the group"),
        Column("backend", Name, "nccl, gloo or another one"),
        Column("operation", Name, "all_reduce, send 0->1, ...; the ranks of a message are those within the group"),
        Column("seq", pl.Int64(), "number of the collective in its group"),
        Column("p2p_seq", pl.Int64(), "number of the message in its group"),
        Column("is_p2p", pl.Boolean(), "whether it is a message between two ranks"),
        Column("state", Name, "scheduled, started or completed; gloo does not go beyond scheduled"),
        Column("retired", pl.Boolean(), "whether the rank is done with it"),
        Column("input_sizes", Name, "shapes, as in 2048x1x5120"),
        Column("input_dtypes", Name, "element types"),
        Column("output_sizes", Name, "shapes"),
        Column("output_dtypes", Name, "element types"),
        Column("created_ns", pl.Int64(), "time of the call, from the first one of all ranks", "ns"),
        Column("started_ns", pl.Int64(), "time at which the recorder saw that it had begun", "ns"),
        Column("completed_ns", pl.Int64(), "time at which the recorder saw that it had ended", "ns"),
        Column("timeout_ns", pl.Int64(), "how long the group waits for it", "ns"),
        Column("line", Name, "innermost line of the user's code, as in train (train.py:12)"),
        Column("stack_id", pl.UInt32(), "the stack of the call"),
    ),
    never_null=("rank", "is_p2p", "retired"),
)
GROUP_STATUS = Table(
    "group_status",
    "how far a rank came in one of its process groups; one row without a group if its dump names none",
    (
        Column("rank", pl.Int32(), "rank", key=True),
        Column("group", Name, "name of the process group; null: unknown", key=True),
        Column("pg_id", pl.Int64(), "number of the group on this rank", key=True),
        Column("group_desc", Name, "what the program calls the group"),
        Column("members", Name, "ranks of the group, as in [0, 4]; null: not recorded"),
        Column("enqueued", pl.Int64(), "number of the last operation that was enqueued"),
        Column("started", pl.Int64(), "number of the last operation that had started"),
        Column("completed", pl.Int64(), "number of the last operation that had completed"),
        Column("dumped_ns", pl.Int64(), "time at which the dump was written, by the date of its file", "ns"),
        Column("is_whole", pl.Boolean(), "whether the dump could be read to its end"),
        Column("source", pl.String(), "the file"),
    ),
    never_null=("rank",),
)
#: What a process may stand in that ends only when something outside of it happens.
AWAITED = ("collective", "device")
PROCESSES = Table(
    "processes",
    "a process of a job that was asked while it ran, as `stepscope hang` does",
    (
        Column("rank", pl.Int32(), "its rank; null: it has none, or it is not known", key=True),
        Column("pid", pl.Int64(), "process", key=True),
        Column("state", Name, "running, sleeping, disk, stopped or gone, as the kernel says"),
        Column("cores_used", pl.Float64(), "cores that it used while it was watched, a second"),
        Column("awaits", pl.Enum(AWAITED), "what its main thread stands in; null: neither"),
        Column("function", Name, "the function that waits, or the innermost one of its main thread"),
        Column("line", Name, "innermost line of the user's code there, as in train (train.py:12)"),
        Column("is_gone", pl.Boolean(), "whether it had ended, or ended meanwhile"),
        Column("host", Name, "its machine", key=True),
        Column("world_size", pl.Int64(), "ranks of the job"),
        Column("n_threads", pl.Int64(), "threads with a stack"),
        Column("wait_channel", Name, "function of the kernel in which it sleeps; null: none, or not known"),
        Column("stack_id", pl.UInt32(), "the stack of its main thread"),
        Column("problem", pl.String(), "why its stack is not known"),
        Column("command_line", pl.String(), "its program with its arguments"),
    ),
    never_null=("host", "pid", "is_gone"),
)
_ADDRESS = Column("address", pl.Int64(), "where it begins", key=True)
MEMORY_EVENTS = Table(
    "memory_events",
    "what a caching allocator of device memory did, as a memory snapshot has it, in order",
    (
        Column("device_id", pl.UInt32(), "device whose memory it is", key=True),
        Column("event", pl.Int64(), "its number in the history of the device, from 0", key=True),
        Column("ts_ns", pl.Int64(), "when, from the first event with a time; null: only the order is known", "ns"),
        Column("action", Name, "alloc, free_requested, free_completed, segment_alloc, segment_map, oom and so on"),
        _ADDRESS,
        Column("bytes", pl.Int64(), "size that was asked for, or of the segment", "bytes"),
        Column("stream", pl.Int64(), "stream that it belongs to"),
        Column("stack_id", pl.UInt32(), "where the block was allocated, also of its free; null: not recorded"),
        Column("context", Name, "the compiled graph or the job's own word for it"),
        Column("pool", Name, "private pool, as of a captured graph; null: the usual one, or not recorded"),
        Column("device_free_bytes", pl.Int64(), "of oom: what the device had left", "bytes"),
    ),
    never_null=("device_id", "event", "action"),
)
MEMORY_SEGMENTS = Table(
    "memory_segments",
    "a range of memory that a caching allocator had from the driver when a memory snapshot was taken",
    (
        Column("device_id", pl.UInt32(), "device whose memory it is", key=True),
        _ADDRESS,
        Column("bytes", pl.Int64(), "its size", "bytes"),
        Column("active_bytes", pl.Int64(), "in blocks in use", "bytes"),
        Column("requested_bytes", pl.Int64(), "of them, what was asked for", "bytes"),
        Column("stream", pl.Int64(), "stream that it belongs to"),
        Column("pool", Name, "small or large"),
        Column("private_pool", Name, "private pool, as of a captured graph; null: the usual one"),
        Column("is_expandable", pl.Boolean(), "whether it can grow (expandable_segments)"),
        Column("stack_id", pl.UInt32(), "where it was asked for"),
    ),
    never_null=("device_id", "is_expandable"),
)
MEMORY_BLOCKS = Table(
    "memory_blocks",
    "a piece of such a range, in use or free",
    (
        Column("device_id", pl.UInt32(), "device whose memory it is", key=True),
        _ADDRESS,
        Column("segment_address", pl.Int64(), "where its segment begins"),
        Column("bytes", pl.Int64(), "its size", "bytes"),
        Column("requested_bytes", pl.Int64(), "what was asked for", "bytes"),
        Column("state", Name, "active_allocated, active_pending_free or active_awaiting_free, inactive"),
        Column("stack_id", pl.UInt32(), "where it was allocated"),
    ),
    never_null=("device_id", "state"),
)

TABLES: Mapping[str, Table] = {
    t.name: t
    for t in (
        DEVICES, TRACKS, SPANS, OPS, FRAMES, KERNELS, TRANSFERS, COLLECTIVES, HLO_OPS, KERNEL_METRICS,
        CAPTURED_LAUNCHES, EVENT_WAITS, SCHED, ALLOCATIONS, RESERVATIONS, COUNTERS, STACKS, STACK_SAMPLES, ARROWS,
        STEPS, STEP_TIMES, STEP_COSTS, COLLECTIVE_RECORDS, GROUP_STATUS, PROCESSES, MEMORY_EVENTS, MEMORY_SEGMENTS,
        MEMORY_BLOCKS, REQUESTS, HISTOGRAMS, EXPERT_TOKENS, ISSUES,
    )
}  # fmt: skip
