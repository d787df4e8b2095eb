"""A hand-made recording of one MLU: two operators, a data loader, a collective, calls inside calls, memory."""

from __future__ import annotations

from typing import Any

from chrome_traces import Event, op, x

PROPERTIES = [{"id": 0, "name": "MLU370", "totalMem(MiB)": 24576, "computeMajor": 3, "computeMinor": 0}]


def runtime(name: str, ts: int, dur: int, correlation: int, external: int) -> Event:
    return x(name, ts, dur, "mlu_runtime", correlation=correlation, **{"external id": external})


def work(name: str, ts: int, dur: int, correlation: int, external: int, cat: str = "kernel", **more: Any) -> Event:
    facts = {"kernel type": "UNION1", "dimx": 16, "dimy": 1, "dimz": 1} if cat == "kernel" else {}
    ids = {"external id": external}
    return x(name, ts, dur, cat, pid=0, tid="1", device=0, stream=1, correlation=correlation, **ids, **facts, **more)


EVENTS: list[Event] = [
    op("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1000, 40, External_id=1),
    op("aten::conv2d", 1050, 100, External_id=2, Input_Dims=[[2, 3]]),
    op("aten::convolution", 1055, 90, External_id=3, Input_Dims=[[2, 3]]),
    runtime("cnnlConvolutionForward", 1060, 40, 1, 3), runtime("cnInvokeKernel", 1065, 20, 2, 3),
    work("MLUUnion1KernelConv(void*)", 1110, 60, 2, 3),
    op("aten::add", 1200, 30, External_id=4), runtime("cnInvokeKernel", 1205, 10, 3, 4),
    work("MLUBlockKernelAdd(float*)", 1230, 20, 3, 4),
    op("cncl:all_reduce", 1300, 50, External_id=5, Input_Dims=[[4, 4]], Input_type=["float"]),
    runtime("cnInvokeKernel", 1310, 5, 4, 5), work("cnclAllReduce", 1330, 40, 4, 5),
    op("aten::to", 1400, 20, External_id=6), runtime("cnrtMemcpyAsync", 1402, 10, 5, 6),
    work("Memcpy HtoD", 1415, 12, 5, 6, "mlu_memcpy", bytes=64),
    {"ph": "i", "name": "[memory]", "s": "t", "pid": 1, "tid": 1, "ts": 1058,
     "args": {"Device Type": 20, "Device Id": 0, "Addr": 64, "Bytes": 4096, "Total Allocated": 4096,
              "Total Reserved": 8192}},
]  # fmt: skip
