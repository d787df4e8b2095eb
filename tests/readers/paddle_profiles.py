"""Small Paddle profiles, as protobuf and as the JSON that Paddle writes of the same events."""

from __future__ import annotations

from protobuf_writer import content, number, single

PID, TID = 5, 7
BEGAN = 1_700_000_000_000_000_123  # ns of Unix time; events count from it in ns

OPERATOR, DATALOADER, STEP, RUNTIME, KERNEL, MEMCPY, MEMSET, USER_DEFINED = range(8)
INNER, FORWARD, BACKWARD, OPTIMIZATION, COMMUNICATION, PYTHON_OP, RANGE, LAUNCH, STATIC_LAUNCH = range(8, 17)
ALLOCATE, FREE, RESERVED_ALLOCATE, RESERVED_FREE = range(4)


def numbers(*values, first=1):
    return b"".join(number(i, v) for i, v in enumerate(values, first) if v is not None)


def host(name, kind, start, end, *children, pid=PID, tid=TID):
    """Fields of a HostNode without its ids; children are what call, memory and arguments give."""
    times = numbers(kind, BEGAN + start, BEGAN + end, pid, tid, first=2)
    return content(3, content(1, name) + times) + b"".join(children)


def call(name, start, end, correlation, *device, pid=PID, tid=TID):
    times = numbers(BEGAN + start, BEGAN + end, pid, tid, correlation, 211, first=2)
    return content(4, content(1, content(1, name) + times) + b"".join(content(2, content(1, d)) for d in device))


def device(name, kind, start, end, details=b"", *, index=0, stream=3, correlation=0):
    times = numbers(kind, BEGAN + start, BEGAN + end, index, 1, stream, correlation, first=2)
    return content(1, name) + times + details


def kernel(name, start, end, **where):
    sizes = numbers(128, 1, 1, 8, 4, 2, 1024, 512, 40)
    details = content(9, sizes + single(15, 2.5) + single(16, 10.0) + single(17, 0.25))
    return device(name, KERNEL, start, end, details, **where)


def memcpy(name, start, end, n_bytes=64, **where):
    details = numbers(n_bytes) + content(2, name) + content(3, "Pageable") + content(4, "Device")
    return device(name, MEMCPY, start, end, content(10, details), **where)


def memset(start, end, n_bytes=32, **where):
    details = content(11, numbers(n_bytes) + content(2, "Device") + number(3, 0))
    return device("MEMSET", MEMSET, start, end, details, **where)


def memory(kind, at, n_bytes, place="Place(gpu:0)", held=0, reserved=0, peak=0, peak_reserved=0, address=4096):
    fields = numbers(BEGAN + at, kind, address, PID, TID, n_bytes)
    fields += content(7, place) + numbers(held, reserved, peak, peak_reserved, first=8)
    return content(5, content(1, fields))


def arguments(shapes, types, stack=""):
    """OpSupplementNode: {"X": [[2, 3]]}, {"X": ["float32"]}."""

    def keyed(values, encode):
        keys = b"".join(content(1, key) for key in values)
        return keys + b"".join(content(2, b"".join(encode(v) for v in value)) for value in values.values())

    sizes = keyed(shapes, lambda shape: content(1, b"".join(number(1, size) for size in shape)))
    words = keyed(types, lambda word: content(1, word))
    fields = numbers(BEGAN) + content(2, "op") + content(5, sizes) + content(6, words) + content(7, stack)
    return content(6, content(1, fields))


def thread(*nodes, tid=TID, root=b""):
    """A tree: each node is (parent, what `host` gives), parents counted from 1, 0 is the root."""
    first = content(2, numbers(0, -1) + content(3, content(1, "root node") + numbers(7, 0, -1, 0, 0, first=2)) + root)
    rest = b"".join(content(2, numbers(i, up) + node) for i, (up, node) in enumerate(nodes, 1))
    return content(3, number(1, tid) + first + rest)


def profile(*threads, extra=None, devices=b"", version="1.0.2", span_index=0):
    pairs = b"".join(content(4, content(1, k) + content(2, v)) for k, v in (extra or {}).items())
    return content(1, version) + number(2, span_index) + b"".join(threads) + pairs + devices


def gpu(index, name, memory_bytes, major, minor, units):
    """DeviceProperty."""
    return content(
        5, number(1, index) + content(2, name) + numbers(memory_bytes, major, minor, first=3) + number(13, units)
    )


EXTRA = {"7": "MainThread", "Process Cpu Utilization": "1.250000", "System Cpu Utilization": "0.500000"}


def training():
    """Two steps of a training loop on a GPU, with everything that a profile can hold; breadth first, times in ns."""
    held = {"reserved": 1024, "peak": 512, "peak_reserved": 1024}
    first = call("cudaLaunchKernel", 21_000, 24_000, 1, kernel("void gemm<float>(int)", 30_000, 60_000, correlation=1))
    sent = kernel("ncclDevKernel_AllReduce", 60_000, 90_000, correlation=2, stream=4)
    second = call(
        "cudaLaunchKernel", 121_000, 124_000, 4, kernel("void gemm<float>(int)", 130_000, 150_000, correlation=4)
    )
    copied = call("cudaMemcpyAsync", 71_000, 72_000, 3, memcpy("MEMCPY_HtoD", 75_000, 79_000, correlation=3))
    taken = memory(ALLOCATE, 25_000, 512, held=512, **held) + memory(RESERVED_ALLOCATE, 25_000, 1024, **held)
    given = memory(FREE, 126_000, -512, peak=512, peak_reserved=1024)
    shapes = arguments({"X": [[2, 3]]}, {"X": ["float32"]}, "a.py\nb.py")
    nodes = [
        (0, host("ProfileStep#3", STEP, 0, 100_000)),
        (0, host("ProfileStep#4", STEP, 100_000, 200_000)),
        (1, host("_DataLoaderIterSingleProcess", DATALOADER, 1_000, 5_000)),
        (1, host("Linear", FORWARD, 10_000, 40_000)),
        (1, host("all_reduce", COMMUNICATION, 45_000, 60_000, call("cudaLaunchKernel", 46_000, 48_000, 2, sent))),
        (1, host("h2d_memcpy", RANGE, 70_000, 80_000, copied)),
        (2, host("Linear", FORWARD, 110_000, 140_000)),
        (2, host("my range", RANGE, 145_000, 160_000)),
        (4, host("matmul dygraph", OPERATOR, 12_000, 38_000, shapes)),
        (7, host("matmul dygraph", OPERATOR, 112_000, 138_000)),
        (9, host("matmul infer_meta", INNER, 13_000, 14_000)),
        (9, host("matmul kernel launch", LAUNCH, 20_000, 30_000, first, taken)),
        (10, host("matmul kernel launch", LAUNCH, 120_000, 130_000, second, given)),
    ]
    root = call("cudaDeviceSynchronize", 190_000, 195_000, 9)
    return profile(thread(*nodes, root=root), extra=EXTRA, devices=gpu(0, "NVIDIA T4", 16 << 30, 7, 5, 40))


# The JSON of the same events, laid out as Paddle does it: a line for each few fields, names unescaped, times in µs.

PYTHON_TYPES = {"Dataloader", "ProfileStep", "Forward", "Backward", "Optimization", "PythonOp", "PythonUserDefined"}


def shown(ns):
    return f"{ns / 1e6:.3f} ms" if ns > 1e6 else f"{ns / 1e3:.3f} us"


def element(name, pid, tid, at, rest, args):
    body = ",\n".join(f'      "{key}": {value}' for key, value in args.items())
    return (
        f'  {{\n    "name": "{name}", "pid": {pid}, "tid": {tid},\n    "ts": {at // 1000}{rest},\n'
        f'    "args": {{\n{body}\n    }}\n  }},\n  \n'
    )


def complete(name, kind, start, end, pid, tid, **args):
    times = {"start_time": f'"{start / 1e3:.3f} us"', "end_time": f'"{end / 1e3:.3f} us"'}
    rest = f', "dur": {(end - start) / 1e3:.3f},\n    "ph": "X", "cat": "{kind}",\n    "cname": "x"'
    return element(f"{name}[{shown(end - start)}]", pid, tid, BEGAN + start, rest, times | args)


def json_host(name, kind, start, end, *children, shapes="{}", types="{}", stack="", tid=TID):
    args = {"input_shapes": shapes, "input_dtypes": types, "callstack": f'"{stack}"'} if kind == "Operator" else {}
    lane = "Python" if kind in PYTHON_TYPES else "C++"
    return complete(name, kind, start, end, PID, f'"{tid}({lane})"', **args) + "".join(children)


def json_call(name, start, end, correlation, *devices, tid=TID):
    call_ = complete(name, "CudaRuntime", start, end, PID, f'"{tid}(C++)"', **{"correlation id": correlation})
    return call_ + "".join(devices)


def json_kernel(name, start, end, *, index=0, stream=3, correlation=0):
    args = {
        "device": index, "context": 1, "stream": stream, "correlation id": correlation, "registers per thread": 40,
        "shared memory": 1536, "blocks per SM": 2.5, "warps per SM": 10.0, "grid": "[8, 4, 2]", "block": "[128, 1, 1]",
        "theoretical achieved occupancy %": 25.0,
    }  # fmt: skip
    return complete(name, "Kernel", start, end, index, stream, **args)


def json_memcpy(name, start, end, n_bytes=64, *, index=0, stream=3, correlation=0):
    args = {"stream": stream, "correlation id": correlation, "bytes": n_bytes, "memory bandwidth (GB/s)": 16.0}
    return complete(name, "Memcpy", start, end, index, stream, **args)


def json_memory(kind, at, n_bytes, place="Place(gpu:0)", held=0, reserved=0, peak=0, peak_reserved=0, address=4096):
    args = {
        "place": f'"{place}"', "addr": f'"{address}"', "increase_bytes": n_bytes, "current_allocated": held,
        "current_reserved": reserved, "peak_allocated": peak, "peak_reserved": peak_reserved,
    }  # fmt: skip
    return element("[memory]", PID, f'"{TID}(C++)"', BEGAN + at, f',\n    "ph": "i", "cat": "{kind}"', args)


def json_profile(*events, extra=None, index='"span_index": "0"', more=""):
    pairs = ",\n   \n".join(f'     "{key}": "{value}"' for key, value in (extra or {}).items())
    head = f'"displayTimeUnit": "ms",\n    "schemaVersion": "1.0.2",\n    {index},{more}'
    body = f'"traceEvents": [\n  \n{"".join(events)}  {{}}\n  ]'
    return f'\n  {{\n    {head}\n    {body},\n  \n  "ExtraInfo": {{\n{pairs}\n   \n  }}\n  }}\n  '.encode()


GPU = """
    "deviceProperties": [
    { "id": 0, "name": "NVIDIA T4", "totalGlobalMem": 17179869184, "computeMajor": 7, "computeMinor": 5, "smCount": 40 }
    ],"""


def json_training():
    """The same two steps as `training`, less what JSON does not tell of transfers."""
    held = {"reserved": 1024, "peak": 512, "peak_reserved": 1024}
    gemm = "void gemm<float>(int)"
    first = json_call("cudaLaunchKernel", 21_000, 24_000, 1, json_kernel(gemm, 30_000, 60_000, correlation=1))
    sent = json_kernel("ncclDevKernel_AllReduce", 60_000, 90_000, correlation=2, stream=4)
    second = json_call("cudaLaunchKernel", 121_000, 124_000, 4, json_kernel(gemm, 130_000, 150_000, correlation=4))
    copied = json_call("cudaMemcpyAsync", 71_000, 72_000, 3, json_memcpy("MEMCPY_HtoD", 75_000, 79_000, correlation=3))
    taken = json_memory("Allocate", 25_000, 512, held=512, **held) + json_memory(
        "ReservedAllocate", 25_000, 1024, **held
    )
    given = json_memory("Free", 126_000, -512, peak=512, peak_reserved=1024)
    told = {"shapes": '{"X": [[2, 3]]}', "types": '{"X": ["float32"]}', "stack": "a.py\nb.py"}
    launch = json_call("cudaLaunchKernel", 46_000, 48_000, 2, sent)
    return json_profile(
        json_call("cudaDeviceSynchronize", 190_000, 195_000, 9),
        json_host("ProfileStep#3", "ProfileStep", 0, 100_000),
        json_host("ProfileStep#4", "ProfileStep", 100_000, 200_000),
        json_host("_DataLoaderIterSingleProcess", "Dataloader", 1_000, 5_000),
        json_host("Linear", "Forward", 10_000, 40_000),
        json_host("all_reduce", "Communication", 45_000, 60_000, launch),
        json_host("h2d_memcpy", "PythonUserDefined", 70_000, 80_000, copied),
        json_host("Linear", "Forward", 110_000, 140_000),
        json_host("my range", "PythonUserDefined", 145_000, 160_000),
        json_host("matmul dygraph", "Operator", 12_000, 38_000, **told),
        json_host("matmul dygraph", "Operator", 112_000, 138_000),
        json_host("matmul infer_meta", "OperatorInner", 13_000, 14_000),
        json_host("matmul kernel launch", "DygraphKernelLaunch", 20_000, 30_000, first, taken),
        json_host("matmul kernel launch", "DygraphKernelLaunch", 120_000, 130_000, second, given),
        extra=EXTRA,
        more=GPU,
    )
