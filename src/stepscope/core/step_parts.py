"""The parts of a step on the device, on the host and in a comparison: names, columns, and the command for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

COMPUTATION, COMMUNICATION, MEMCPY, IDLE = "computation", "exposed communication", "exposed memcpy", "idle"
OPERATORS, LOADING, OTHER = "operators", "data loading", "Python and other"

#: The column of each part in tables of steps and of devices.
DEVICE_COLUMNS: Mapping[str, str] = {
    COMPUTATION: "computation_ns",
    COMMUNICATION: "exposed_communication_ns",
    MEMCPY: "exposed_memcpy_ns",
    IDLE: "idle_ns",
}
HOST_COLUMNS: Mapping[str, str] = {OPERATORS: "operator_ns", LOADING: "dataloader_ns", OTHER: "other_host_ns"}
#: The command that shows the events of each part, without the leading `stepscope`.
ON_DEVICE: Mapping[str, str] = {
    COMPUTATION: "show kernels",
    COMMUNICATION: "show overlap --by collective",
    MEMCPY: "show spans --where \"category IN ('memcpy', 'memset')\" --sort -dur_ns",
    IDLE: "show idle --by gap --sort -dur_ns",
}
ON_HOST: Mapping[str, str] = {
    OPERATORS: "show operators",
    COMMUNICATION: "show communication",
    LOADING: "show spans --where \"category = 'dataloader'\" --sort -dur_ns",
    OTHER: "show steps --sort -other_host_ns",
}
#: A comparison has these parts of the host even if a device was recorded.
_ON_HOST_COMPARED: Mapping[str, str] = {
    OPERATORS: ON_HOST[OPERATORS],
    LOADING: ON_HOST[LOADING],
    "python and other": ON_HOST[OTHER],
    "launch and runtime calls": "show spans --where \"category IN ('runtime', 'driver')\" --sort -dur_ns",
    "synchronisation": "show spans --where \"lower(name) LIKE '%synchronize%'\" --sort -dur_ns",
}


def command_of(part: str, parts: Collection[str]) -> str:
    """The command that shows the events of a part, given the names of all parts of that step; empty if none does."""
    has_device = COMPUTATION in parts or IDLE in parts
    return {**_ON_HOST_COMPARED, **(ON_DEVICE if has_device else ON_HOST)}.get(part, "")
