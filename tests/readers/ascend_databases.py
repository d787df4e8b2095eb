"""Databases of Ascend's profilers, made table by table."""

from __future__ import annotations

import sqlite3

HOST, TAKER = (4711 << 32) | 11, (4711 << 32) | 12
DAY_NS = 86_400 * 10**9
T0 = 1_700_000_000 * 10**9
TEXTS = [
    "ProfilerStep#3", "aten::mm", "Enqueue", "Dequeue@aclnnMm", "aclnnMm", "launch", "aclrtMemcpyAsync",
    "KERNEL_AICORE", "MatMulV2", "AI_CORE", "MEMCPY_ASYNC", "hcom_allReduce__1_0_1", "group 1", "Notify Wait", "SDMA",
    "Notify_Wait", "app", "float;float", "2,3;3,4", "main.py(7): train", "main.py(1): <module>", "cube_ratio",
    "nn.Module: Net_0",
]  # fmt: skip
ID = {text: i for i, text in enumerate(TEXTS)}
TABLES = {
    "STRING_IDS": ("id", "value"),
    "SESSION_TIME_INFO": ("startTimeNs", "endTimeNs"),
    "NPU_INFO": ("id", "name"),
    "HOST_INFO": ("hostUid", "hostName"),
    "META_DATA": ("name", "value"),
    "RANK_DEVICE_MAP": ("rankId", "deviceId"),
    "PYTORCH_API": (
        "startNs", "endNs", "globalTid", "connectionId", "name", "sequenceNumber", "fwdThreadId", "inputDtypes",
        "inputShapes", "callchainId", "type",
    ),
    "PYTORCH_CALLCHAINS": ("id", "stack", "stackDepth"),
    "CONNECTION_IDS": ("id", "connectionId"),
    "CANN_API": ("startNs", "endNs", "type", "globalTid", "connectionId", "name"),
    "TASK": ("startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "taskType", "streamId"),
    "COMPUTE_TASK_INFO": ("name", "globalTaskId", "blockDim", "taskType"),
    "COMMUNICATION_TASK_INFO": ("name", "globalTaskId", "taskType", "planeId"),
    "COMMUNICATION_OP": (
        "opName", "startNs", "endNs", "connectionId", "groupName", "dataType", "count",
    ),
    "ENUM_HCCL_DATA_TYPE": ("id", "name"),
    "TASK_PMU_INFO": ("globalTaskId", "name", "value"),
    "NPU_MEM": ("type", "ddr", "hbm", "timestampNs", "deviceId"),
    "OP_MEMORY": (
        "name", "size", "allocationTime", "releaseTime", "allocationTotalAllocated", "allocationTotalReserved",
        "releaseTotalAllocated", "releaseTotalReserved", "deviceId",
    ),
}  # fmt: skip


def pytorch(start, end, name, kind, link=None, thread=HOST, **more):
    more = {"seq": None, "forward": None, "types": None, "shapes": None, "chain": None} | more
    return (
        str(T0 + start), str(T0 + end), thread, link, ID[name], more["seq"], more["forward"], more["types"],
        more["shapes"], more["chain"], kind,
    )  # fmt: skip


ROWS = {
    "STRING_IDS": list(enumerate(TEXTS)),
    "SESSION_TIME_INFO": [(T0, T0 + 1000)],
    "NPU_INFO": [(5, "Ascend910B")],
    "HOST_INFO": [("1", "box")],
    "META_DATA": [("SCHEMA_VERSION", "1.0.0")],
    "RANK_DEVICE_MAP": [(3, 5)],
    "PYTORCH_API": [
        pytorch(0, 900, "ProfilerStep#3", 50001),
        pytorch(5, 100, "nn.Module: Net_0", 50003),
        pytorch(10, 60, "aten::mm", 50001, types=ID["float;float"], shapes=ID["2,3;3,4"], chain=8, seq=4),
        pytorch(20, 50, "aclnnMm", 50001, link=1),
        pytorch(30, 40, "Enqueue", 50002, link=2),
        pytorch(50, 90, "Dequeue@aclnnMm", 50002, link=3, thread=TAKER),
    ],
    "PYTORCH_CALLCHAINS": [(8, ID["main.py(7): train"], 0), (8, ID["main.py(1): <module>"], 1)],
    "CONNECTION_IDS": [(1, 100), (2, 900), (3, 900)],
    "CANN_API": [
        (T0 + 60, T0 + 65, 10000, TAKER, 100, ID["launch"]),
        (T0 + 70, T0 + 75, 20000, TAKER, 101, ID["aclrtMemcpyAsync"]),
    ],
    "TASK": [
        (T0 + 100, T0 + 200, 5, 100, 1, ID["KERNEL_AICORE"], 2),
        (T0 + 90, T0 + 210, 5, 100, 2, ID["KERNEL_AICORE"], 2),
        (T0 + 220, T0 + 230, 5, 101, 3, ID["MEMCPY_ASYNC"], 2),
        (T0 + 300, T0 + 350, 5, 102, 4, ID["Notify Wait"], 4),
        (T0 + 350, T0 + 400, 5, 102, 5, ID["SDMA"], 4),
    ],
    "COMPUTE_TASK_INFO": [(ID["MatMulV2"], 1, 24, ID["AI_CORE"])],
    "COMMUNICATION_TASK_INFO": [
        (ID["hcom_allReduce__1_0_1"], 4, ID["Notify_Wait"], 1),
        (ID["hcom_allReduce__1_0_1"], 5, ID["SDMA"], 2),
    ],
    "COMMUNICATION_OP": [(ID["hcom_allReduce__1_0_1"], T0 + 300, T0 + 420, 102, ID["group 1"], 4, 1024)],
    "ENUM_HCCL_DATA_TYPE": [(4, "FP32")],
    "TASK_PMU_INFO": [(1, ID["cube_ratio"], 0.25)],
    "NPU_MEM": [(ID["app"], 0, 2048, T0 + 10, 5)],
    "OP_MEMORY": [(ID["aten::mm"], 512, T0 + 15, T0 + 500, 512, 4096, 0, 4096, 5)],
}


def database(folder, rows, name="ascend_pytorch_profiler_3.db"):
    path = folder / name
    with sqlite3.connect(path) as db:
        for table, columns in TABLES.items():
            if table in rows:
                db.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
                db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows[table])
    return path
