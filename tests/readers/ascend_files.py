"""A tiny folder of one rank as Ascend's profiler of PyTorch writes it, as text: two steps, a collective, memory."""

from __future__ import annotations

import json

T0_US = 1_712_345_678_901_000


def us(offset):
    """A time as the CSV files have it, which ends in a tab."""
    return f"{T0_US + offset}.250\t"


def _x(name, start, length, pid, tid=1, **more):
    return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{T0_US + start}.250", "dur": length, **more}


def timeline():
    lanes = {900: "python", 901: "Ascend Hardware", 902: "HCCL"}
    events = [{"ph": "M", "name": "process_name", "pid": p, "args": {"name": name}} for p, name in lanes.items()]
    events += [{"ph": "M", "name": "process_labels", "pid": p, "args": {"labels": "NPU"}} for p in (901, 902)]
    streams = {901: "Stream 2", 902: "Group 0 Communication"}
    events += [
        {"ph": "M", "name": "thread_name", "pid": p, "tid": 2, "args": {"name": name}} for p, name in streams.items()
    ]
    for step, at in ((7, 0), (8, 200)):
        events += [
            _x(f"ProfilerStep#{step}", at, 190, 900, cat="cpu_op"),
            _x("aten::mm", at + 5, 20, 900, cat="cpu_op"),
            _x("MatMulV3_1", at + 30, 40, 901, 2, args={"Task Type": "AI_CORE"}),
            _x("Add_2", at + 80, 10, 901, 2, args={"Task Type": "AI_VECTOR_CORE"}),
            _x(f"hcom_allReduce__586_{step}_1", at + 60, 100, 902, 2, args={"count": 1024, "data_type": "FP32"}),
        ]
        for flow, (tail, head) in enumerate(((10, 30), (12, 80))):
            shared = {"id": f"{step}{flow}", "cat": "async_npu", "name": "to_npu"}
            events.append({"ph": "s", "pid": 900, "tid": 1, "ts": f"{T0_US + at + tail}.250", **shared})
            events.append({"ph": "f", "pid": 901, "tid": 2, "ts": f"{T0_US + at + head}.250", **shared})
    return events


KERNEL_COLUMNS = (
    "Step Id,Model ID,Task ID,Stream ID,Name,Type,OP State,Accelerator Core,Start Time(us),Duration(us),Wait Time(us),"
    "Block Dim,Input Shapes,Input Data Types,aicore_time(us),aic_mac_ratio,aiv_time(us),cube_utilization(%)"
)


def kernels():
    rows = [KERNEL_COLUMNS]
    for step, at in ((7, 0), (8, 200)):
        start = f"{step},4294967295"
        product = f"{start},{step}1,2,MatMulV3_1,MatMulV3,dynamic,AI_CORE,{us(at + 30)},40,5,24"
        total = f"{start},{step}2,2,Add_2,Add,dynamic,AI_VECTOR_CORE,{us(at + 80)},10,10,8"
        talk = f"{start},N/A,N/A,hcom_allReduce__586_{step}_1,hcom_allReduce_,N/A,HCCL,{us(at + 60)},100,0,0"
        rows += [
            f'{product},"""2,3;3,4""",FLOAT;FLOAT,36,0.5,0,62.5',
            f'{total},"""2,4""",FLOAT,0,0,9,0',
            f"{talk},N/A,N/A,N/A,N/A,N/A,N/A",
        ]
    return "\r\n".join(rows) + "\r\n"


def collectives():
    def record(at, elapse):
        times = {"Start Timestamp(us)": T0_US + at + 0.25, "Elapse Time(ms)": elapse, "Transit Time(ms)": 0.02}
        moved = {"Transit Size(MB)": 0.5, "Transit Time(ms)": 0.04, "Bandwidth(GB/s)": 12.5, "Large Packet Ratio": 0.25}
        links = {"HCCS": moved, "SDMA": moved, "RDMA": {"Transit Size(MB)": 0, "Transit Time(ms)": 0}}
        return {
            "Communication Time Info": {**times, "Wait Time(ms)": 0.03, "Idle Time(ms)": 0.05},
            "Communication Bandwidth Info": links,
        }

    return {
        f"step{step}": {"p2p": {}, "collective": {
            f"hcom_allReduce__586_{step}_1@17522": record(at, 0.1), "Total Op Info": record(at, 0.1),
        }} for step, at in ((7, 60), (8, 260))
    }  # fmt: skip


def matrix():
    pair = {"Transport Type": "HCCS", "Transit Size(MB)": 0.5, "Transit Time(ms)": 0.04, "Bandwidth(GB/s)": 12.5}
    sent = {"0-1": {**pair, "Op Name": "hcom_allReduce__586_7_1"}}
    return {"step7": {"p2p": {}, "collective": {"allreduce-top1@17522": sent}}}


def tables():
    """The files of ASCEND_PROFILER_OUTPUT by name."""
    return {
        "trace_view.json": json.dumps(timeline()),
        "kernel_details.csv": kernels(),
        "communication.json": json.dumps(collectives()),
        "communication_matrix.json": json.dumps(matrix()),
        "step_trace_time.csv": (
            "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
            "Preparing\r\n0,7,50.0,80.0,20.0,100.0,0.0,130.0,0,30.5\r\n0,8,50.0,80.0,20.0,100.0,0.0,130.0,0,30.5\r\n"
        ),
        "op_statistic.csv": (
            "Device_id,OP Type,Core Type,Count,Total Time(us),Min Time(us),Avg Time(us),Max Time(us),Ratio(%)\r\n"
            "0,MatMulV3,AI_CORE,2,80.0,40,40,40,80\r\n0,Add,AI_VECTOR_CORE,2,20,10,10,10,20\r\n"
        ),
        "api_statistic.csv": (
            "Device_id,Level,API Name,Time(us),Count,Avg(us),Min(us),Max(us),Variance\r\n"
            "host,acl,aclrtMalloc,3.5,2,1.75,1,2.5,0.5\r\nhost,node,launch,30,4,7.5,7,8,0\r\n"
        ),
        "operator_memory.csv": (
            "Name,Size(KB),Allocation Time(us),Release Time(us),Duration(us),Allocation Total Allocated(MB),"
            "Allocation Total Reserved(MB),Release Total Allocated(MB),Release Total Reserved(MB),Device Type\r\n"
            f"aten::mm,2.5,{us(10)},{us(150)},140,1.5,4,1,4,NPU:0\r\naten::mm,1024,{us(210)},,,2,4,,,NPU:0\r\n"
        ),
        "memory_record.csv": (
            "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Device Type\r\n"
            f"PTA,{us(10)},1.5,4,1.5,NPU:0\r\nAPP,{us(20)},,2109.5,,NPU:0\r\n"
        ),
        "npu_module_mem.csv": (
            "Device_id,Component,Timestamp(us),Total Reserved(MB),Device\r\n"
            f"0,HCCL,{us(30)},64,NPU:0\r\n0,SLOG,{us(30)},0.0,NPU:0\r\n"
        ),
        "l2_cache.csv": "Stream Id,Task Id,Hit Rate,Victim Rate,Op Name\r\n2,71,0.75,0.125,MatMulV3_1\r\n",
    }  # fmt: skip


INFO = {
    "config": {"experimental_config": {"_profiler_level": "Level1", "_aic_metrics": "ACL_AICORE_PIPE_UTILIZATION"}},
    "rank_id": 3, "torch_npu_version": "2.7.1",
}  # fmt: skip
METADATA = {"distributed_args": {"world_size": 8}}


def folder(path, **changed):
    """Writes the folder; `changed` are other contents by name of the file, with _ for the dot, None for no file."""
    output = path / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    for name, own in tables().items():
        text = changed.get(name.replace(".", "_"), own)
        if text is not None:
            (output / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    (path / "profiler_info_3.json").write_text(json.dumps(INFO))
    (path / "profiler_metadata.json").write_text(json.dumps(METADATA))
    return path
