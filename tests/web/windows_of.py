"""Reads what the server packs for the timeline, as the browser does."""

from __future__ import annotations

import json

import numpy as np

KINDS = {
    "Uint8Array": "u1",
    "Uint16Array": "<u2",
    "Uint32Array": "<u4",
    "Int32Array": "<i4",
    "Float32Array": "<f4",
    "Float64Array": "<f8",
}


def unpacked(data):
    """Header and arrays (as lists) of a packed answer."""
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    body = data[4 + length :]
    arrays = {
        a["name"]: np.frombuffer(body, KINDS[a["type"]], a["length"], a["offset"]).tolist() for a in header["arrays"]
    }
    return header, arrays
