"""What the stacks of samples are of: the function in which each is, and whether that waits, compiles or gets data.

A stack is that of the function in which it ends, but for what a compiler calls, and for waits in the standard library,
which are those of the function that waits there.
"""

from __future__ import annotations

import polars as pl

#: How a wait for the next item of a queue is called: by the function that takes it.
FROM_QUEUE = "waits for an item: "
#: What begins the name of a wait at a line that takes a lock, as the recorder of stacks writes it, and of a wait for a
#: lock of several processes, which goes by the function that takes it.
WAITS = "waits: "
OF_PROCESSES = WAITS + "a lock of several processes, in "
#: What a function is called in which a main thread sleeps while other threads of its process answer requests.
SLEEPS = "sleeps: "
#: Before a function that calls a compiler, with what it does itself.
COMPILES = "compiles: "
#: Functions of the standard library in which a thread waits for threads and processes of the job, or for peers.
WAITING_FUNCTIONS = (
    rf"^{SLEEPS}|"
    r"\((?:threading|queue|selectors|subprocess|socket|multiprocessing/\w+|concurrent/futures/\w+|asyncio/\w+)\.py\)"
)
#: Frames that wait for an item of a queue, of threads or of processes.
_QUEUE = r"^(?:Simple)?Queue\.get \((?:queue|multiprocessing/queues)\.py"
#: Frames that wait for a lock of several processes, and callers that are no part of the job.
_PROCESS_LOCK = r"^SemLock\.(?:__enter__|acquire) \(multiprocessing/synchronize\.py"
_INSIDE = r"\((?:multiprocessing/\w+|threading|queue|concurrent/futures/\w+)\.py"
#: The functions through which all tracing and compiling goes, and nothing that runs what was compiled.
_COMPILER = (
    r"\((?:torch/_dynamo/convert_frame\.py|torch/jit/_(?:trace|script|freeze)|torch/utils/cpp_extension\.py"
    r"|jax/_src/compiler\.py|jax/_src/interpreters/mlir\.py|triton/compiler/|numba/core/(?:dispatcher|compiler)\.py"
    r"|cupy/cuda/compiler\.py)|^trace_to_jaxpr\w* \(jax/_src/interpreters/partial_eval\.py"
)
#: Functions that compile: those, what they call, and what is found in these packages without one of them.
COMPILING = (
    rf"^{COMPILES}|{_COMPILER}|\((?:torch/_(?:dynamo|inductor|functorch)/|torch/jit/|numba/core/"
    r"|jax/_src/interpreters/partial_eval\.py)"
)
#: Compilers that a program calls by name: what it does with the result there and then is compiling as well.
_CALLED_COMPILER = r"\((?:torch/jit/_(?:trace|script|freeze)|torch/utils/cpp_extension\.py)"
#: What runs the work that a pool of threads was given, or answers a request in a thread of its own, and what a worker
#: process runs in. The workers of PyTorch's loader are none of these: waits for them are waits for data.
_POOL_THREAD = (
    r"\((?:concurrent/futures/thread|anyio/_backends/_asyncio|multiprocessing/pool)\.py"
    r"|process_request_thread \(socketserver\.py"
)
_WORKER_PROCESS = r"\(multiprocessing/(?:process|popen_\w+|spawn)\.py"
_LOADER_WORKER = r"\(torch/utils/data/_utils/worker\.py"
#: Calls of a model, which mark steps.
_MODEL_CALL = r"^Module\._(?:wrapped_)?call_impl \(torch/nn/modules/module\.py"
#: What Python makes a function of, although it is written as an expression of another one.
_EXPRESSION = r"(?:\.<locals>)?\.<(?:genexpr|listcomp|setcomp|dictcomp)>"
#: Functions that make batches, by the end of their name, with which all that they call gets data: `train_batches`,
#: `make_batch`, `get_samples`, `data_generator`, `collate`, `augment_wave`, `Dataset.__getitem__`.
_OF_BATCH = r"(?:\w+_)?(?:(?:mini)?batch(?:es)?|data|samples?|examples?|records?|images?|dataset)"
_MAKES_BATCHES = (
    r"(?i)(?:^|[.])_*(?:"
    rf"(?:load|fetch|prefetch|get|make|next|prepare|sample|build|create|generate|gen|iter|draw|assemble)_{_OF_BATCH}"
    r"|(?:\w+_)?(?:batches|dataset|dataloader)"
    r"|(?:\w+_)?(?:data|batch|sample|example|image)_(?:gen|iter|generator|iterator|stream|source|pipeline|loader)"
    r"|(?:collate|augment|prefetch)\w*"
    r") |^[^( ]*(?:dataset|loader)[^( ]*\."
)
_USES_BATCHES = r"(?i)(?:^|[.])_*(?:process|run|handle|score|predict|infer|evaluate|validate|test|fit|train_on)_"
#: A function in which the main thread is for so much of its time is the loop itself, whatever its name.
_IS_LOOP = 0.8


def named(stacks: pl.DataFrame) -> pl.DataFrame:
    """Of each stack its function, and whether it waits for others there, is of a pool's thread or process, or compiles.

    Columns: stack_id, function (without a line), place (with its line), waits, is_pool_thread, is_worker_process,
    calls_model, and calls_compiler: the function that calls a compiler by name, where the stack ends in that; else
    null.
    """
    return _named(_up_to_lock(_up_to_queue(_up_to_compiler(stacks))))


def named_up_to_queue(stacks: pl.DataFrame) -> pl.DataFrame:
    """The same, with waits for an item of a queue in the function that takes it, and all else where it is."""
    return _named(_up_to_queue(stacks))


def _named(stacks: pl.DataFrame) -> pl.DataFrame:
    """Each stack's own function, whether it waits for others there, and whether it is of a pool's thread or process."""
    any_of = {
        name: pl.col("frames").list.eval(pl.element().str.contains(pattern)).list.any()
        for name, pattern in (
            ("pool", _POOL_THREAD),
            ("process", _WORKER_PROCESS),
            ("loader", _LOADER_WORKER),
            ("model", _MODEL_CALL),
        )
    }
    function, caller = (
        pl.col("frames").list.get(at, null_on_oob=True).str.replace(r":\d+\)$", ")").str.replace(_EXPRESSION, "")
        for at in (-1, -2)
    )
    return stacks.select(
        "stack_id",
        function=function,
        place=pl.col("frames").list.get(-1, null_on_oob=True).str.replace(_EXPRESSION, ""),
        calls_compiler=pl.when(function.str.contains(_CALLED_COMPILER)).then(caller),
        waits=function.str.contains(WAITING_FUNCTIONS),
        is_pool_thread=any_of["pool"],
        is_worker_process=any_of["process"] & ~any_of["loader"],
        calls_model=any_of["model"],
    )


def gets_data(stacks: pl.DataFrame, samples: pl.DataFrame) -> pl.Series:
    """Whether each stack has a function that makes batches, and is not the loop: where `samples` nearly always are."""
    frames = stacks.select("stack_id", frame="frames").explode("frame")
    frame = pl.col("frame")
    frames = frames.filter(frame.str.contains(_MAKES_BATCHES) & ~frame.str.contains(_USES_BATCHES))
    frames = frames.with_columns(frame.str.replace(r":\d+\)$", ")")).unique()
    times = samples.group_by("stack_id").agg(pl.col("dur_ns").sum())
    whole = max(int(times["dur_ns"].sum()), 1)
    sums = frames.join(times, on="stack_id").group_by("frame").agg(pl.col("dur_ns").sum())
    loops = sums.filter(pl.col("dur_ns") > _IS_LOOP * whole)
    data = frames.join(loops, on="frame", how="anti")
    return stacks["stack_id"].is_in(data["stack_id"].implode()).alias("gets_data")


def _up_to_compiler(stacks: pl.DataFrame) -> pl.DataFrame:
    """The stacks without what a compiler calls: its time is in hundreds of functions, none of which stands out."""
    is_compiler = pl.col("frames").list.eval(pl.element().str.contains(_COMPILER))
    n_frames = pl.when(is_compiler.list.any()).then(is_compiler.list.arg_max() + 1)
    return stacks.with_columns(pl.col("frames").list.head(n_frames.fill_null(pl.col("frames").list.len())))


def _up_to_queue(stacks: pl.DataFrame) -> pl.DataFrame:
    """The stacks up to the function that takes the next item from a queue, if they wait there, with a name for it."""
    return _up_to(stacks, _QUEUE, FROM_QUEUE)


def _up_to_lock(stacks: pl.DataFrame) -> pl.DataFrame:
    """The stacks up to the function that takes a lock of several processes. Queues and barriers have such locks too."""
    return _up_to(stacks, _PROCESS_LOCK, OF_PROCESSES, unless=_INSIDE)


def _up_to(stacks: pl.DataFrame, pattern: str, prefix: str, *, unless: str | None = None) -> pl.DataFrame:
    """The stacks up to the caller of the first frame that matches, with that prefix, unless the caller matches too."""
    matches = pl.col("frames").list.eval(pl.element().str.contains(pattern))
    at = matches.list.arg_max()
    caller = pl.col("frames").list.get(at - 1, null_on_oob=True)
    is_there = matches.list.any() & (at > 0)
    if unless is not None:
        is_there &= ~caller.str.contains(unless)
    short = pl.col("frames").list.head(at).list.concat(prefix + caller)
    return stacks.with_columns(frames=pl.when(is_there).then(short).otherwise("frames"))
