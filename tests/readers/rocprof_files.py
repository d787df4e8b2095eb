"""Tiny files of AMD's recorders."""

from __future__ import annotations

import json
import sqlite3

KERNELS = """"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name",\
"Correlation_Id","Start_Timestamp","End_Timestamp","LDS_Block_Size","VGPR_Count","Workgroup_Size_X","Workgroup_Size_Y",\
"Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"
"KERNEL_DISPATCH","Agent 4","2","1","77","1","9","Cijk_Alik_Bljk_MT64x64x64_MI16x16x1","5","1100","1200","512","64",\
"256","1","1","1000","2","1"
"KERNEL_DISPATCH","Agent 4","2","1","77","2","8","add(float*, int)","6","1300","1350","0","8","64","1","1","64","1","1"
"""
CALLS = """"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"
"HIP_RUNTIME_API","hipLaunchKernel",77,78,5,1000,1010
"HIP_RUNTIME_API","hipModuleLaunchKernel",77,78,6,1020,1030
"MARKER_CORE_API","forward",77,78,7,990,1100
"HSA_CORE_API","hsa_init",77,78,8,1040,1041
"""
COUNTERS = """"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Grid_Size","Kernel_Name","Workgroup_Size",\
"Counter_Name","Counter_Value"
5,1,4,2,1000,"gemm",256,"FETCH_SIZE",10.5
5,1,4,2,1000,"gemm",256,"WRITE_SIZE",2
6,2,4,2,64,"add",64,"FETCH_SIZE",1
"""
COPIES = """"Kind","Direction","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp",\
"End_Timestamp"
"MEMORY_COPY","MEMORY_COPY_HOST_TO_DEVICE",0,4,9,900,950
"MEMORY_COPY","MEMORY_COPY_DEVICE_TO_HOST",4,0,10,1400,1420
"""
AGENTS = """"Node_Id","Logical_Node_Id","Agent_Type","Cu_Count","Name","Product_Name"
"0","0","CPU","0","EPYC","EPYC"
"4","4","GPU","304","gfx942","AMD Instinct MI300X"
"""
STATS = '"Name","Calls","TotalDurationNs"\n'
PMC = """Dispatch_ID,Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,wave_size,SQ_WAVES,TCC_HIT[0],Start_Timestamp,\
End_Timestamp
"""


def folder(path, prefix="77", **files):
    """A run's CSV files in a folder; `files` replace or leave out (None) some."""
    found = {"kernel_trace": KERNELS, "hip_api_trace": CALLS, "memory_copy_trace": COPIES, "agent_info": AGENTS} | files
    for kind, text in found.items():
        if text is not None:
            (path / f"{prefix}_{kind}.csv").write_text(text)
    return path


def handle(number):
    return {"handle": number}


def dispatch(start, end, *, kernel=8, number=1, correlation=5, stream=3):
    info = {
        "agent_id": handle(46), "queue_id": handle(16), "kernel_id": kernel, "dispatch_id": number,
        "group_segment_size": 512, "workgroup_size": {"x": 64, "y": 1, "z": 1}, "grid_size": {"x": 256, "y": 2, "z": 1},
    }  # fmt: skip
    return {
        "start_timestamp": start, "end_timestamp": end, "dispatch_info": info, "thread_id": 1,
        "correlation_id": {"internal": correlation, "external": 0}, "stream_id": handle(stream),
    }  # fmt: skip


def document(**changes):
    """rocprofv3's JSON of one process, as bytes."""
    api = {"kind": 1, "operation": 1, "thread_id": 9, "correlation_id": {"internal": 5}}
    mark = {"kind": 2, "operation": 0, "thread_id": 9, "correlation_id": {"internal": 70}}
    copy = {
        "kind": 3, "operation": 0, "correlation_id": {"internal": 6}, "src_agent_id": handle(46),
        "dst_agent_id": handle(40), "bytes": 4096, "start_timestamp": 400, "end_timestamp": 450,
    }  # fmt: skip
    tool = {
        "metadata": {"pid": 908, "node": {"hostname": "node7"}, "command": ["python", "SECRET"]},
        "agents": [
            {"id": handle(40), "type": 1, "name": "cpu"},
            {"id": handle(46), "type": 2, "name": "gfx950", "product_name": "AMD Instinct MI350X", "cu_count": 256,
             "logical_node_type_id": 0, "mem_banks": [{"size_in_bytes": 309220868096}]},
        ],
        "counters": [{"id": handle(3), "name": "SQ_WAVES"}],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": ["hipFree", "hipLaunchKernel"]},
                {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA"]},
                {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_DEVICE_TO_HOST"]},
            ],
            "marker_api": [{"key": 70, "value": "forward"}],
        },
        "kernel_symbols": [{"kernel_id": 8, "formatted_kernel_name": "add(float*)", "arch_vgpr_count": 8}],
        "callback_records": {"counter_collection": [
            {"dispatch_data": {"dispatch_info": {"dispatch_id": 1}}, "records": [{"counter_id": handle(3), "value": 4}]}
        ]},
        "buffer_records": {
            "kernel_dispatch": [dispatch(200, 300)],
            "hip_api": [api | {"start_timestamp": 100, "end_timestamp": 110}],
            "marker_api": [mark | {"start_timestamp": 90, "end_timestamp": 500}],
            "memory_copy": [copy],
        },
    } | changes  # fmt: skip
    return json.dumps({"rocprofiler-sdk-tool": [tool]}).encode()


def database(path, suffix="_0123abcd_ef", views=True, **tables):
    """A rocpd database of schema 3: tables whose names carry the run's id, and views over them."""
    found = {
        "rocpd_metadata": (("id", "tag", "value"), [(1, "schema_version", "3")]),
        "rocpd_string": (
            ("id", "string"), [(1, "hipLaunchKernel"), (2, "HIP_RUNTIME_API"), (3, "MEMORY_COPY_HOST_TO_DEVICE")],
        ),
        "rocpd_info_node": (("id", "hostname"), [(1, "node7")]),
        "rocpd_info_process": (("id", "pid", "environment"), [(1, 908, "TOKEN=SECRET")]),
        "rocpd_info_thread": (("id", "tid"), [(1, 909)]),
        "rocpd_info_agent": (
            ("id", "type", "type_index", "name", "product_name"),
            [(1, "CPU", 0, "cpu", "EPYC"), (2, "GPU", 0, "gfx942", "AMD Instinct MI300X")],
        ),
        "rocpd_info_kernel_symbol": (
            ("id", "kernel_name", "display_name", "arch_vgpr_count"), [(4, "add.kd", "add(float*)", 8)],
        ),
        "rocpd_info_pmc": (("id", "symbol"), [(6, "SQ_WAVES")]),
        "rocpd_event": (("id", "category_id", "stack_id"), [(1, 2, 55), (2, 2, 55), (3, 2, 56)]),
        "rocpd_region": (("id", "pid", "tid", "start", "end", "name_id", "event_id"), [(1, 1, 1, 100, 110, 1, 1)]),
        "rocpd_kernel_dispatch": (
            ("id", "pid", "tid", "agent_id", "kernel_id", "dispatch_id", "queue_id", "stream_id", "start", "end",
             "group_segment_size", "workgroup_size_x", "workgroup_size_y", "workgroup_size_z", "grid_size_x",
             "grid_size_y", "grid_size_z", "event_id"),
            [(1, 1, 1, 2, 4, 1, 1, 3, 200, 300, 512, 64, 1, 1, 1000, 2, 1, 2)],
        ),
        "rocpd_memory_copy": (
            ("id", "pid", "start", "end", "name_id", "dst_agent_id", "src_agent_id", "size", "stream_id", "event_id"),
            [(1, 1, 400, 450, 3, 2, 1, 4096, 3, 3)],
        ),
        "rocpd_pmc_event": (("id", "event_id", "pmc_id", "value"), [(1, 2, 6, 16.0)]),
    } | tables  # fmt: skip
    with sqlite3.connect(path) as db:
        for table, (columns, rows) in found.items():
            names = ", ".join(f'"{c}"' for c in columns)
            db.execute(f'CREATE TABLE "{table}{suffix}" ({names})')
            db.executemany(f'INSERT INTO "{table}{suffix}" VALUES ({", ".join("?" * len(columns))})', rows)
            if views and suffix:
                db.execute(f'CREATE VIEW {table} AS SELECT * FROM "{table}{suffix}"')
    db.close()
    return path


def rpd(path):
    """A rocmProfileData database: a kernel, one launched by a graph, a copy, and an operator around the launch."""
    tables = {
        "rocpd_string": (("id", "string"), [
            (1, ""), (2, "KernelExecution"), (3, "Task"), (4, "CopyHostToDevice"), (5, "gemm"), (6, "UserMarker"),
            (7, "hipLaunchKernel"), (8, "aten::mm"), (9, "hipMemcpyAsync"), (10, "epoch"),
        ]),
        "rocpd_op": (("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id"), [
            (1, 2, 0, 200, 300, 5, 2), (2, 2, 0, 310, 320, 5, 3), (3, 2, 0, 330, 340, 1, 4), (4, 2, 0, 350, 351, 1, 3),
        ]),
        "rocpd_api": (("id", "pid", "tid", "start", "end", "apiName_id", "args_id"), [
            (11, 7, 8, 100, 110, 7, 1), (12, 7, 8, 90, 120, 6, 8), (13, 7, 8, 130, 140, 9, 1),
            (14, 7, 8, 80, 500, 6, 10),
        ]),
        "rocpd_api_ops": (("id", "api_id", "op_id"), [(1, 11, 1), (2, 11, 2), (3, 13, 3)]),
        "rocpd_kernelapi": (
            ("api_ptr_id", "gridX", "gridY", "gridZ", "workgroupX", "workgroupY", "workgroupZ", "groupSegmentSize"),
            [(11, 4, 2, 1, 256, 1, 1, 64)],
        ),
        "rocpd_copyapi": (("api_ptr_id", "size"), [(13, 4096)]),
        "ext_autogradapi": (("api_ptr_id", "sizes"), [(12, "[[2, 3], [3, 4]]")]),
    }  # fmt: skip
    return _written(path, tables)


def _written(path, tables):
    with sqlite3.connect(path) as db:
        for table, (columns, rows) in tables.items():
            names = ", ".join(f'"{c}"' for c in columns)
            db.execute(f"CREATE TABLE {table} ({names})")
            db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
    db.close()
    return path
