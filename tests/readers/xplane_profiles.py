"""Small XSpace files: planes, lines and events by plain values; names and statistics get their messages here."""

from __future__ import annotations

from protobuf_writer import content, double, number

US = 1_000_000  # ps


class Ref(str):
    """A text that is written as a reference to the name of a statistic."""

    __slots__ = ()


class Plane:
    """A plane; its lines are added with `line`, and `bytes(plane)` is the message."""

    def __init__(self, name, number=1, **facts):
        self.name, self.number = name, number
        self.stats, self.events, self.lines = {}, {}, []
        self.facts = [content(6, self.stat(key, value)) for key, value in facts.items()]

    def stat(self, key, value):
        kinds = {
            float: lambda v: double(2, v),
            int: lambda v: number(3 if v >= 0 else 4, v),
            str: lambda v: content(5, v),
        }
        kinds |= {bytes: lambda v: content(6, v), Ref: lambda v: number(7, self.id_of(v))}
        return number(1, self.id_of(key)) + kinds[type(value)](value)

    def id_of(self, name):
        return self.stats.setdefault(name, len(self.stats) + 1)

    def metadata(self, name, shown="", number=None, **stats):
        """The number of an event's metadata, new ones the first time."""
        key = (name, shown)
        if key not in self.events:
            self.events[key] = (number or len(self.events) + 1, [content(5, self.stat(k, v)) for k, v in stats.items()])
        return self.events[key][0]

    def event(self, name, start_us, dur_us, shown="", about=None, **stats):
        """An event; `about` are statistics of its metadata."""
        own = b"".join(content(4, self.stat(key, value)) for key, value in stats.items())
        metadata = self.metadata(name, shown, **(about or {}))
        dur = number(3, round(dur_us * US)) if dur_us else b""
        return content(4, number(1, metadata) + number(2, round(start_us * US)) + dur + own)

    def line(self, name, *events, number_=7, ts_ns=1_000):
        self.lines.append(content(3, number(1, number_) + content(2, name) + number(3, ts_ns) + b"".join(events)))
        return self

    def __bytes__(self):
        events = [
            content(4, number(1, i) + content(2, number(1, i) + content(2, name) + shown_in(shown) + b"".join(stats)))
            for (name, shown), (i, stats) in self.events.items()
        ]
        stats = [
            content(5, number(1, i) + content(2, number(1, i) + content(2, name))) for name, i in self.stats.items()
        ]
        parts = (number(1, self.number), content(2, self.name), *self.lines, *events, *stats, *self.facts)
        return b"".join(parts)


def shown_in(text):
    return content(4, text) if text else b""


def space(*planes, hosts=("node7",), errors=()):
    """The whole file."""
    texts = (*(content(2, text) for text in errors), *(content(4, host) for host in hosts))
    return b"".join((*(content(1, bytes(plane)) for plane in planes), *texts))


def jax_gpu():
    """Two steps of JAX on one GPU: a launch and a kernel in each, a copy, an allocation, and the module's HLO."""
    metadata = Plane("/host:metadata", jax_version="0.10.2")
    metadata.metadata("jit_f(4)", number=4, **{"Hlo Proto": hlo_module()})
    gpu = Plane("/device:GPU:0", 2, device_vendor="Nvidia", core_count=132, memory_size=80 << 30, compute_cap_major=9)
    hlo = {"hlo_op": Ref("fusion.1"), "hlo_module": Ref("jit_f"), "program_id": 4}
    details = Ref("regs:32 static_shared:1024 dynamic_shared:0 grid:8,2,1 block:128,1,1 occ_pct:50.0")
    gpu.line(
        "Stream #13(Compute,MemcpyH2D)",
        gpu.event("MemcpyH2D", 5, 2, correlation_id=1, memcpy_details="kind_src:pinned size:4096 dest:0 async:1"),
        gpu.event("loop_add", 20, 10, correlation_id=2, kernel_details=details, **hlo),
        gpu.event("loop_add", 120, 12, correlation_id=3, kernel_details=details, **hlo),
        number_=13,
    )
    host = Plane("/host:CPU", 3, process_id=4711)
    host.line(
        "python",
        host.event("train", 0, 50, step_num=0),
        host.event("$train.py:12 step", 1, 40),
        host.event("cuMemcpyHtoDAsync", 2, 1, correlation_id=1),
        host.event("cuLaunchKernel", 10, 2, correlation_id=2),
        host.event("MemoryAllocation", 12, 0, allocation_bytes=512, bytes_allocated=512, peak_bytes_in_use=512,
                   addr=4096, allocator_name="GPU_0_bfc"),
        host.event("train", 100, 50, step_num=1),
        host.event("cuLaunchKernel", 110, 2, correlation_id=3),
        host.event("MemoryDeallocation", 130, 0, allocation_bytes=512, bytes_allocated=0, addr=4096,
                   allocator_name="GPU_0_bfc"),
        number_=99,
    )  # fmt: skip
    return space(metadata, gpu, host, Plane("Task Environment", 4, profile_start_time=1_700_000_000_000_000_000))


def hlo_module():
    """An HLO module with one fusion, made at line 9 of m.py, which only a stack frame says."""
    metadata = content(7, content(2, "jit(f)/add") + number(15, 1))
    instruction = content(2, content(1, "fusion.1") + content(2, "fusion") + content(11, "kLoop") + metadata)
    location = content(3, number(1, 1) + number(3, 9))
    frames = content(17, content(1, "m.py") + location + content(4, number(1, 1)))
    return content(1, content(1, "jit_f") + content(3, instruction) + frames)


def tpu():
    """A while loop of two operations on a TPU, a collective after it, and an asynchronous copy meanwhile."""
    device = Plane(
        "/device:TPU:0", 2, device_type_string="TPU v6 Lite", peak_teraflops_per_second=918.0,
        peak_hbm_bw_gigabytes_per_second=1640.0,
    )  # fmt: skip
    counts = {
        "flops": 2_000, "model_flops": 1_800, "bytes_accessed": 64, "hlo_category": Ref("convolution fusion"),
        "tf_op": "jit(f)/dot_general:", "source": "m.py:9", "shape_with_layout": "bf16[8]{0}", "program_id": 4,
    }  # fmt: skip
    device.line("Steps", device.event("0", 10, 40), device.event("1", 60, 40))
    device.line("XLA Modules", device.event("jit_f(4)", 10, 40))
    device.line(
        "XLA Ops",
        device.event("%while.1 = while(...)", 10, 30, "while.1", {"hlo_category": Ref("while")}),
        device.event("%fusion.1 = fusion(...)", 10, 10, "fusion.1", counts),
        device.event("%fusion.1 = fusion(...)", 25, 15, "fusion.1"),
        device.event("%all-reduce.2 = all-reduce(...)", 45, 5, "all-reduce.2", {"hlo_category": Ref("all-reduce")}),
    )
    device.line("Async XLA Ops", device.event("%copy-start = copy-start(...)", 12, 20, "copy-start"))
    return space(device)
