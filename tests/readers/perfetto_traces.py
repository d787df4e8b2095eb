"""Small Perfetto traces by plain values, and any Chrome trace in the layout that PyTorch writes."""

from __future__ import annotations

from decimal import Decimal

from protobuf_writer import content, double, fixed, number

SEQUENCE = 1
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def packet(*fields):
    return content(1, b"".join(fields))


def process(uuid, pid, name, *labels):
    about = number(1, pid) + content(6, name) + b"".join(content(8, label) for label in labels)
    return packet(content(60, number(1, uuid) + content(3, about)))


def thread(uuid, parent, pid, tid, name):
    about = number(1, pid) + number(2, tid) + content(5, name)
    return packet(content(60, number(1, uuid) + number(5, parent) + content(4, about)))


def track(uuid, parent, name, more=b""):
    return packet(content(60, number(1, uuid) + number(5, parent) + content(2, name) + more))


def value(given):
    """The value of an argument. Empty lists, dictionaries and null have none, as PyTorch writes them."""
    kinds = {
        bool: lambda: number(2, given),
        int: lambda: number(4, given),
        float: lambda: double(5, given),
        Decimal: lambda: double(5, float(given)),
        str: lambda: content(6, given),
        list: lambda: b"".join(content(12, value(one)) for one in given),
        dict: lambda: b"".join(content(11, content(10, key) + value(one)) for key, one in given.items()),
        type(None): lambda: content(6, "null"),
    }
    return kinds[type(given)]()


def arguments(given):
    return b"".join(content(4, content(10, key) + value(one)) for key, one in given.items())


def names(*texts, kind=2, first=1, sequence=SEQUENCE, flags=1):
    """A packet with texts that others refer to by their numbers; it clears the state of its sequence."""
    entries = b"".join(content(kind, number(1, i) + content(2, text)) for i, text in enumerate(texts, first))
    return packet(content(12, entries), number(10, sequence), number(13, flags) if flags else b"")


def event(kind, uuid, ts, name=None, *fields, args=None, flows=(), sequence=SEQUENCE, more=b""):
    """`name` is a text, or the number of one."""
    named = b"" if name is None else content(23, name) if isinstance(name, str) else number(10, name)
    flowing = b"".join(fixed(47, flow) for flow in flows)
    about = number(9, kind) + number(11, uuid) + named + flowing + arguments(args or {}) + b"".join(fields)
    return packet(number(8, ts), content(11, about), number(10, sequence), more)


def span(uuid, start, end, name, *fields, **more):
    return event(BEGIN, uuid, start, name, *fields, **more) + event(END, uuid, end)


def in_ns(us):
    """µs as ns. A product would lose digits of a Unix time."""
    return int(us) * 1000 + round((us - int(us)) * 1000)


def as_pytorch(document, *, with_categories=False):
    """The packets of a Chrome trace's complete events as PyTorch writes them: all begins, then all ends."""
    tracks, texts, begins, ends, labels = {}, {}, [], [], {}
    for one in document["traceEvents"]:
        if one["ph"] == "M" and one["name"] in ("process_name", "process_labels", "thread_name"):
            text = one["args"].get("name") or one["args"].get("labels") or ""
            labels[one["name"], one["pid"], one.get("tid") if one["name"] == "thread_name" else None] = text
    packets = []

    def uuid_of(pid, tid):
        if ("p", pid) not in tracks:
            tracks["p", pid] = len(tracks) + 1
            label = labels.get(("process_labels", pid, None), "")
            name = label if label.startswith("GPU") else labels.get(("process_name", pid, None)) or pid
            packets.append(process(tracks["p", pid], pid if isinstance(pid, int) else len(tracks), str(name)))
        if (pid, tid) not in tracks:
            tracks[pid, tid] = len(tracks) + 1
            name = labels.get(("thread_name", pid, tid)) or str(tid)
            ids = [i & 2**31 - 1 if isinstance(i, int) else len(tracks) for i in (pid, tid)]
            packets.append(thread(tracks[pid, tid], tracks["p", pid], *ids, name))
        return tracks[pid, tid]

    base = int(document.get("baseTimeNanoseconds", 0))
    for one in document["traceEvents"]:
        if one["ph"] != "X" or one.get("cat") in ("Trace", "cuda_profiler_range"):
            continue
        uuid, args = uuid_of(one["pid"], one["tid"]), one.get("args", {})
        start = base + in_ns(one["ts"])
        code = texts.setdefault(one["name"], len(texts) + 1)
        flows = [args["correlation"]] if args.get("correlation", 0) > 0 else []
        category = [content(22, one["cat"])] if with_categories else []
        begins.append(event(BEGIN, uuid, start, code, *category, args=args, flows=flows))
        ends.append(event(END, uuid, start + in_ns(one.get("dur", 0))))
    return [*packets, names(*texts), *begins, *ends]


CPU = process(1, 100, "python") + thread(2, 1, 100, 101, "thread main")
GPU = process(3, 0, "GPU 0") + thread(4, 3, 0, 7, "stream 7")
NAMES = names("aten::mm", "cudaLaunchKernel", "gemm", "ProfilerStep#3")
LAUNCH = {
    "device": 0, "stream": 7, "correlation": 5, "grid": [3, 2, 1], "block": [64, 1, 1], "registers per thread": 40,
    "shared memory": 1024,
}  # fmt: skip
HOST = (
    event(BEGIN, 2, 0, 4, args={"External id": 1, "Record function id": 0}),
    event(BEGIN, 2, 10, 1, args={"External id": 2, "Sequence number": 9, "Input Dims": [[32, 3], []]}),
    event(BEGIN, 2, 20, 2, args={"cbid": 211, "correlation": 5}, flows=[5]),
    event(END, 2, 40),
    event(END, 2, 60),
    event(END, 2, 200),
)
WORK = (event(BEGIN, 4, 100, 3, args=LAUNCH, flows=[5]), event(END, 4, 180))
#: A step with an operator, whose launch queues a kernel, as PyTorch writes it.
TRAINING = b"".join([CPU, GPU, NAMES, *HOST, *WORK])
