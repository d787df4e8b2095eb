"""Literal output of `nsys stats --format csv`, in the layouts of its versions."""

from __future__ import annotations

KERN_HEADER = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
KERN_ROWS = (
    '75.0,3000,3,1000.0,900.0,600,1500,458.3,"void add_relu<float, 4>(T1 *, int)"\n'
    "25.0,1000,1,1000.0,1000.0,1000,1000,,ampere_sgemm_128x64_tn\n"
)
KERN = KERN_HEADER + KERN_ROWS
API = (
    "Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name\n"
    "100.0,500,4,125.0,120.0,100,160,25.0,cudaLaunchKernel\n"
)
OSRT = API.replace("cudaLaunchKernel", "pthread_cond_wait")
SIZES = (
    "Total (MB),Count,Avg (MB),Med (MB),Min (MB),Max (MB),StdDev (MB),Operation\n"
    "4.500,3,1.500,1.000,0.500,3.000,1.323,[CUDA memcpy Host-to-Device]\n"
)
TIMES = (
    "Time (%),Total Time (ns),Count,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Operation\n"
    "100.0,900,3,300.0,200.0,100,600,264.6,[CUDA memcpy Host-to-Device]\n"
)
NVTX = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range\n"
    '60.0,600,2,300.0,300.0,200,400,141.4,PushPop,"step, again"\n40.0,400,1,400.0,400.0,400,400,,StartEnd,load\n'
)
GPU_TRACE = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
    "1000,500,11,,,,,,,,,,0.004,8.000,Pageable,Device,NVIDIA A100 (0),1,,7,[CUDA memcpy Host-to-Device]\n"
    '2000,300,12,64,2,1,256,1,1,32,0.001,0.002,,,,,NVIDIA A100 (0),1,,7,"add(float *, int)"\n'
    "2400,100,13,,,,,,,,,,0.256,,Device,,NVIDIA A100 (0),1,,7,[CUDA memset]\n"
    "2600,700,14,8,1,1,32,1,1,16,0.000,0.000,,,,,NVIDIA A100 (1),2,,13,ampere_sgemm_128x64_tn\n"
)
API_TRACE = (
    "Start (ns),Duration (ns),Name,Result,CorrID,Pid,Tid,T-Pri,Thread Name\n"
    "900,50,cudaMemcpy,0,11,42,77,20,main\n1800,40,cudaLaunchKernel,0,12,42,77,20,main\n"
    "2350,20,cuMemsetD8Async,0,13,42,78,20,helper\n"
)
PUSHPOP_TRACE = (
    "Start (ns),End (ns),Duration (ns),DurChild (ns),DurNonChild (ns),Name,PID,TID,Lvl,NumChild,RangeId,ParentId,"
    "RangeStack,NameTree\n"
    "1700,1900,200,0,200,:layer 1,42,77,0,0,1,,:1,layer 1\n"
)


def announced(report: str, table: str) -> str:
    """A table with the line before it that names its report, as versions since 2023 print it."""
    return f"Processing [/tmp/a.sqlite] with [/opt/nsys/reports/{report}.py]... \n{table}\n"


def left_out(report: str, what: str) -> str:
    return announced(report, f"SKIPPED: /tmp/a.sqlite does not contain {what} data.\n")
