"""Small traces for the tests of the page, hostile ones too."""

from __future__ import annotations

import json

HOSTILE = (
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    '"><img src=x onerror=window.hacked=1>',
    "<svg/onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "'-window.hacked=1-'",
    "{{7*7}}",
    "{% raw %}",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<a href='javascript:window.hacked=1'>x</a>",
    "&lt;b&gt;",
    "<!--",
    "]]>",
    "\u202eevil\u2066",
    "${window.hacked=1}",
    "<style>*{display:none}</style>",
    "x" * 3000,
    "void k<(int)4, at::native::Fn<float>>(int)",
)


def event(name, ts, dur, cat="cpu_op", tid=1, pid=1, **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": args}


def document(events, rank=0, **more):
    return {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": 2, "backend": "nccl"},
        "deviceProperties": [
            {
                "id": 0,
                "name": "NVIDIA <b>H100</b>",
                "totalGlobalMem": 85_000_000_000,
                "numSms": 132,
                "computeMajor": 9,
                "computeMinor": 0,
            }
        ],
        "traceEvents": events,
        **more,
    }


def training(names=("aten::mm", "aten::add"), steps=3, rank=0, kernel="gemm"):
    """Steps of operators that each launch a kernel; with memory."""
    events, at, correlation = [], 1_000.0, 1
    total = 0
    for step in range(steps):
        begin = at
        for name in names:
            events += [
                event(
                    name,
                    at,
                    80,
                    **{"External id": correlation, "Input Dims": [[4, 8], [8, 2]], "Sequence number": correlation},
                ),
                event(
                    "cudaLaunchKernel",
                    at + 10,
                    20,
                    "cuda_runtime",
                    correlation=correlation,
                    **{"External id": correlation},
                ),
                event(
                    f"{kernel}_{name}",
                    at + 40,
                    50 + 10 * step + (name == names[0]),
                    "kernel",
                    7,
                    0,
                    device=0,
                    stream=7,
                    correlation=correlation,
                    grid=[4, 1, 1],
                    block=[128, 1, 1],
                    **{"External id": correlation},
                ),
                {
                    "ph": "f",
                    "id": correlation,
                    "pid": 0,
                    "tid": 7,
                    "ts": at + 40,
                    "cat": "ac2g",
                    "name": "ac2g",
                    "bp": "e",
                },
                {"ph": "s", "id": correlation, "pid": 1, "tid": 1, "ts": at + 10, "cat": "ac2g", "name": "ac2g"},
            ]
            for size in (512, -512) if name == names[0] else (256,):
                total += size
                events.append(
                    {
                        "ph": "i",
                        "s": "t",
                        "name": "[memory]",
                        "cat": "cpu_instant_event",
                        "pid": 1,
                        "tid": 1,
                        "ts": at + 5 + (size < 0),
                        "args": {
                            "Total Allocated": total,
                            "Total Reserved": 4096,
                            "Bytes": size,
                            "Addr": 1 + correlation,
                            "Device Id": 0,
                            "Device Type": 1,
                        },
                    }
                )
            at += 100 + 30 * step
            correlation += 1
        events.append(event(f"ProfilerStep#{step}", begin, at - begin - 5, "user_annotation"))
        at += 10
    return document(events, rank)


def written(path, content):
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def two_ranks(folder):
    """The folder with a file for each of two ranks."""
    folder.mkdir()
    for rank in (0, 1):
        written(folder / f"rank{rank}.json", training(rank=rank, steps=3 + rank))
    return folder
