"""What to try in each situation, as data: each remedy with the frameworks, devices and recorders that it is for.

A remedy names something only where it exists: `torch.compile` for PyTorch on devices that it compiles for,
`profiler.step` for recorders that have it. Errors about data that was not recorded ask it how to record them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import polars as pl

if TYPE_CHECKING:
    from stepscope.core.errors import MissingTable
    from stepscope.core.trace import Meta, Trace

PYTORCH, PADDLE, JAX, TENSORFLOW = "PyTorch", "PaddlePaddle", "JAX/XLA", "TensorFlow"
PYTORCH_XLA = "PyTorch/XLA"
#: Formats that PyTorch's profiler writes, and those of profilers with the same options.
_TORCHS = ("kineto", "perfetto")
_PROFILERS = (*_TORCHS, "paddle")
#: Devices that torch.compile generates kernels for and that capture graphs.
_COMPILED = ("cuda", "rocm", "xpu")
#: Names in recordings of vLLM and SGLang: their functions, operators, and the ranges around their passes.
_OF_ENGINE = r"(?:^|/)(?:vllm|sglang)/|^(?:vllm|sglang|sgl_kernel)::|^execute_(?:\d+_)?context_"


class Recording(msgspec.Struct, frozen=True):
    """What a remedy depends on: recorder (name of the format), framework, type of the device; '' is unknown.

    `engine`: an inference engine ran, whose loop is not the user's.
    """

    recorder: str = ""
    framework: str = ""
    device: str = ""
    engine: bool = False


class Remedy(msgspec.Struct, frozen=True):
    """What to try in a situation (`topic`), and for which recordings; an empty tuple stands for all of them."""

    topic: str
    text: str
    frameworks: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    recorders: tuple[str, ...] = ()
    for_engines: bool = True

    def applies_to(self, recording: Recording) -> bool:
        """Whether what the remedy names exists for such a recording."""
        return (self.for_engines or not recording.engine) and all(
            not wanted or have in wanted
            for wanted, have in (
                (self.frameworks, recording.framework),
                (self.devices, recording.device),
                (self.recorders, recording.recorder),
            )
        )


def recording_of(meta: Meta | None, spans: pl.DataFrame, devices: pl.DataFrame) -> Recording:
    """What remedies depend on; without `meta` PyTorch is known by its operators, and other frameworks are not."""
    types = devices["type"].cast(pl.String).drop_nulls()
    device = next((kind for kind in types if kind != "cpu"), "cpu" if types.len() else "")
    framework = (meta.framework or "") if meta else ""
    if framework in ("", "Ascend"):  # a device's recorder does not say which framework drives it
        operators = spans["name"].filter(spans["category"] == "operator").unique().cast(pl.String)
        framework = PYTORCH if operators.str.starts_with("aten::").any() else ""
    engine = spans["name"].unique().cast(pl.String).str.contains(_OF_ENGINE).any()
    return Recording(meta.format if meta else "", framework, device, engine)


def advised(error: MissingTable, trace: Trace) -> MissingTable:
    """The error with the remedy of its topic for this trace, before the hint that it has."""
    if error.topic:
        text = remedy(error.topic, recording_of(trace.meta, trace.spans, trace.devices))
        error.hint, error.topic = "; or ".join(filter(None, (text, error.hint))), ""
    return error


def remedy(topic: str, recording: Recording) -> str:
    """The first remedy of that topic that applies; '' if there is none. Raises KeyError if no remedy has that topic."""
    of_topic = _BY_TOPIC[topic]
    return next((one.text for one in of_topic if one.applies_to(recording)), "")


#: For each topic the most particular remedy comes first.
REMEDIES = (
    Remedy(
        "launching", "fewer, larger launches: torch.compile, CUDA graphs, fused or foreach operators, a larger batch",
        (PYTORCH,), ("cuda",),
    ),
    Remedy(
        "launching", "fewer, larger launches: torch.compile, HIP graphs, fused or foreach operators, a larger batch",
        (PYTORCH,), ("rocm",),
    ),
    Remedy(
        "launching", "fewer, larger launches: torch.compile, fused or foreach operators, a larger batch",
        (PYTORCH,), ("xpu",),
    ),
    Remedy(
        "launching", "fewer, larger launches: paddle.jit.to_static, CUDA graphs, fused operators, a larger batch",
        (PADDLE,), ("cuda",),
    ),
    Remedy("launching", "more of the step under one jax.jit, a larger batch", (JAX,)),
    Remedy("launching", "more of the step in one tf.function(jit_compile=True), a larger batch", (TENSORFLOW,)),
    Remedy("launching", "fewer, larger launches: CUDA graphs, fused kernels, a larger batch", (), ("cuda",)),
    Remedy("launching", "fewer, larger launches: HIP graphs, fused kernels, a larger batch", (), ("rocm",)),
    Remedy("launching", "fewer, larger launches: fused operators, a larger batch"),
    Remedy(
        "fewer_kernels", "fewer kernels: torch.compile or fused operators; captured graphs shorten these gaps too",
        (PYTORCH,), _COMPILED,
    ),
    Remedy("fewer_kernels", "fewer kernels: fused ones; captured graphs shorten these gaps too", (), ("cuda", "rocm")),
    Remedy("fewer_kernels", "fewer kernels: fused operators"),
    Remedy(
        "fuse", "torch.compile or fused operators would merge many and save trips to memory: show fusion",
        (PYTORCH,), _COMPILED,
    ),
    Remedy("fuse", "operations under one jax.jit are fused: show fusion", (JAX,)),
    Remedy("fuse", "tf.function(jit_compile=True) would fuse many of them: show fusion", (TENSORFLOW,)),
    Remedy("fuse", "fused operators would merge many and save trips to memory: show fusion"),
    Remedy(
        "sync",
        "keep values on the device and read them rarely; copy with non_blocking=True; drop explicit synchronize()",
        (PYTORCH,),
    ),
    Remedy("sync", "keep values on the device and read them rarely; drop block_until_ready() in the loop", (JAX,)),
    Remedy("sync", "keep values on the device and read them rarely; drop calls that only wait for the device"),
    Remedy(
        "blocking_call", "copy from and to pinned memory with non_blocking=True, or where nothing waits for it",
        (PYTORCH,),
    ),
    Remedy("blocking_call", "copy asynchronously, from and to pinned memory, or where nothing waits for it"),
    Remedy(
        "first_use",
        "warm up with every shape before you measure or serve; CUDA_MODULE_LOADING=EAGER loads kernels at the start",
        (), ("cuda",),
    ),
    Remedy("first_use", "warm up with every shape before you measure or serve"),
    Remedy("slow_launch", "show launches --by queue: is its queue full, or does another thread hold the driver?"),
    Remedy(
        "allocator",
        "the allocator asks the driver for memory: expandable_segments:True, fewer different sizes, no empty_cache()",
        (PYTORCH,), ("cuda", "rocm"),
    ),
    Remedy("allocator", "allocate before the loop, and use the memory again"),
    Remedy(
        "compilation", "compile before you measure or serve; TORCH_LOGS=recompiles lists shapes that compile again",
        (PYTORCH,), _COMPILED,
    ),
    Remedy("compilation", "compile before you measure or serve; JAX_LOG_COMPILES=1 lists what compiles again", (JAX,)),
    Remedy("compilation", "fix input_signature: a tf.function is traced again for every new shape", (TENSORFLOW,)),
    Remedy("compilation", "compile before you measure or serve"),
    Remedy("garbage_collection", "gc.freeze() after start-up; collect between steps and not within them"),
    Remedy("communication", "overlap it with the device's work, or use a library that communicates on the device"),
    Remedy("with_stack", "jax.profiler.TraceAnnotation around parts of the program would say where", (JAX,)),
    Remedy("with_stack", "tf.profiler.experimental.Trace around parts of the program would say where", (TENSORFLOW,)),
    Remedy("host_idle", "find what it waits for: input, a lock, another process"),
    Remedy("python", "move this work to another thread, or behind the launches of the next step"),
    Remedy("with_stack", "with_stack=True in the profiler would name the functions that it is spent in", (PYTORCH,), (),
           _TORCHS),
    Remedy(
        "with_stack", "RecordEvent ranges around parts of the program would show in which it is spent", (PADDLE,)
    ),
    Remedy(
        "with_stack", "NVTX ranges around more of it, or nsys profile --python-sampling=true, would say where", (), (),
        ("nsys", "nsys-stats"),
    ),
    Remedy("with_stack", "record the host's functions or ranges to see where"),
    Remedy(
        "one_process_loader",
        "batches are made in the training process itself: DataLoader(num_workers=…, pin_memory=True)", (PYTORCH,),
    ),
    Remedy(
        "workers_loader",
        "its workers are not ahead: more num_workers, prefetch_factor, persistent_workers, cheaper transforms",
        (PYTORCH,),
    ),
    *(
        Remedy(topic, "prepare batches ahead of time, in other processes or threads")
        for topic in ("one_process_loader", "workers_loader", "loader")
    ),
    Remedy(
        "steps", "call profiler.step() after every iteration to see times per step", (PYTORCH, PADDLE), (),
        _PROFILERS, for_engines=False,
    ),
    Remedy("steps", "put jax.profiler.StepTraceAnnotation around every iteration to see times per step", (JAX,)),
    Remedy(
        "steps", "put tf.profiler.experimental.Trace('train', step_num=i, _r=1) around every iteration", (TENSORFLOW,),
    ),
    Remedy("steps", "put torch_xla.debug.profiler.StepTrace around every iteration", (PYTORCH_XLA,)),
    Remedy("steps", "put an NVTX range around every iteration to see times per step", (), (), ("nsys",)),
    Remedy("steps", ""),
    Remedy("operators", "record them with ProfilerActivity.CPU to see whose the kernels are", (PYTORCH,), (),
           _TORCHS),
    Remedy("operators", "nsys profile --pytorch=autograd-nvtx, or NVTX ranges, would say whose the kernels are", (), (),
           ("nsys",)),
    Remedy("operators", ""),
    Remedy("shapes", "record_shapes=True in the profiler records them", (PYTORCH, PADDLE), (), _PROFILERS),
    Remedy("shapes", "nsys profile --pytorch=autograd-shapes-nvtx records them", (), (), ("nsys",)),
    Remedy("shapes", ""),
    Remedy("stacks", "with_stack=True in the profiler records them (modules from PyTorch 1.12 on)", (PYTORCH,), (),
           _TORCHS),
    Remedy("stacks", ""),
    Remedy("allocations", "profile_memory=True in the profiler records them", (PYTORCH, PADDLE), (),
           _PROFILERS),
    Remedy("allocations", ""),
    Remedy("kernels", "record the device's activity: activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
           (PYTORCH,), ("cuda", "rocm", "cpu", ""), _TORCHS),
    Remedy("kernels", "nsys profile --trace=cuda records them", (), (), ("nsys",)),
    Remedy("kernels", "record the device's activity"),
    Remedy("host", "record the host's operators too: ProfilerActivity.CPU", (PYTORCH,), (), _TORCHS),
    Remedy("host", "record the host too: nsys profile --trace=cuda,nvtx,osrt", (), (), ("nsys",)),
    Remedy("host", "record the host too"),
    Remedy("counters", "put counters.csv next to the trace or name it with --counters; see docs/counters.md"),
    Remedy("kernel_metrics", "profile with Nsight Compute: ncu --csv --set full, or --metrics …"),
    Remedy("memory_events", "ask about a memory snapshot of PyTorch (.pickle); see docs/memory.md"),
    Remedy("group_status", "ask about the folder with the flight recorder's dumps of all ranks; see docs/hangs.md"),
    Remedy("sched", "record with stepscope record --sched; see docs/record.md"),
    Remedy("stack_samples", "record with stepscope record --stacks; see docs/record.md"),
    Remedy(
        "data_loading",
        "let more workers prepare batches (DataLoader num_workers, prefetch_factor, pin_memory), or make that cheaper",
        (PYTORCH,),
    ),
    Remedy("data_loading", "let tf.data work ahead: prefetch(tf.data.AUTOTUNE), parallel map()", (TENSORFLOW,)),
    Remedy("data_loading", "prepare batches ahead of time, in other processes or threads, or make that cheaper"),
    Remedy("memory_full", "activation checkpointing, autocast or a smaller batch make room", (PYTORCH,)),
    Remedy("memory_full", "jax.checkpoint, lower precision or a smaller batch make room", (JAX,)),
    Remedy("memory_full", "activation checkpointing, lower precision or a smaller batch make room"),
    Remedy("pageable", "pin_memory=True and non_blocking=True would hide them", (PYTORCH,)),
    Remedy("pageable", "asynchronous copies from and to pinned memory would hide them"),
    Remedy("float32", "autocast to bfloat16, or allow TF32", (PYTORCH,)),
    Remedy("float32", "bfloat16, float16 or TF32"),
    Remedy("float32_old", "autocast to float16", (PYTORCH,)),
    Remedy("float32_old", "float16"),
    Remedy("float32_unknown", "autocast to bfloat16 or float16; from Ampere on TF32 needs no autocast", (PYTORCH,)),
    Remedy("float32_unknown", "float16, or from Ampere on bfloat16 or TF32"),
    Remedy(
        "starved",
        "give the job more cores, run fewer threads, or move other jobs away; record --sched says who had the cores",
    ),
    Remedy("warm_up", "if that is warm-up, let the profiler's schedule skip it", (PYTORCH, PADDLE), (),
           _PROFILERS),
    Remedy("warm_up", "if that is warm-up or compilation, start the profile after it"),
    Remedy("throttled", "raise the CPU limit of the container"),
    Remedy("memory_bound", "only less traffic makes it faster: fusion with its neighbours, smaller types"),
    Remedy("compute_bound", "only less work makes it faster: lower precision, tensor cores, fewer operations"),
    Remedy("latency_bound", "no unit is near its limit: more threads at once (a larger problem or grid), fewer waits"),
    Remedy("to_device",
           "the source is pageable memory: pin_memory=True and .to(device, non_blocking=True) would hide them",
           (PYTORCH,)),
    Remedy("to_device", "the source is pageable memory: asynchronous copies from pinned memory would hide them"),
    Remedy(
        "exposed_communication",
        "start it earlier or overlap it (gradient buckets, prefetching), or send less; check for ranks that come late",
    ),
)  # fmt: skip
_BY_TOPIC = {topic: tuple(r for r in REMEDIES if r.topic == topic) for topic in {r.topic for r in REMEDIES}}
