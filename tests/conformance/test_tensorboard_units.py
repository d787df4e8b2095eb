"""The plugin's small traces with all that it computes of them, section by section.

Compared as the cases' README says: times within 1e-7, tables by their key columns, ranges of about no efficiency left
out. What a case says in more words than our views hold (types of inputs, sizes of blocks before rounding) is left out
of the comparison, each by name below.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from plugin_units import difference, figures, opened, together

from stepscope.exports.tensorboard._devices import utilization
from stepscope.exports.tensorboard._events import Dialect
from stepscope.exports.tensorboard._json import shown
from stepscope.exports.tensorboard._roles import merged

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.core.trace import Trace

#: Sections that are compared; `computed` has some more, which others contain.
SECTIONS = (
    "flags", "step_count", "steps", "avg_costs", "compute_communication", "operators", "kernels", "device_use",
    "tensor_core", "devices", "communication", "dataloader_ranges_us", "call_tree", "recommendations", "views",
    "displayed_overview", "modules", "memory",
)  # fmt: skip
KEYS = ("name", "input_shape", "op", "grid", "block", "dim", "kernel_type", "step", "start_us")


def cases(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def differences(expected: Any, found: Any, where: str = "") -> list[str]:
    """Where what was found differs from what is expected; keys that are expected but not kept are passed over."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [k for k in expected if k in found]
        return [line for key in keys for line in differences(expected[key], found[key], f"{where}.{key}")]
    if isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            return [f"{where}: {len(expected)} expected, {len(found)} found"]
        pairs = zip(expected, found, strict=True)
        return [line for i, (a, b) in enumerate(pairs) for line in differences(a, b, f"{where}[{i}]")]
    return [] if same(expected, found) else [f"{where}: {expected!r} expected, {found!r} found"]


def same(expected: Any, found: Any) -> bool:
    numbers = (int, float)
    if isinstance(expected, bool) or isinstance(found, bool) or not isinstance(expected, numbers):
        return bool(expected == found)
    return found is not None and math.isclose(expected, found, rel_tol=0, abs_tol=1e-7)


def by_keys(table: Any) -> Any:
    """Tables in order of their keys: the order of rows is not part of the cases."""
    if isinstance(table, dict):
        return {k: sorted(v) if k == "device_us" else by_keys(v) for k, v in table.items()}
    if isinstance(table, list) and table and all(isinstance(row, dict) for row in table):
        return sorted((by_keys(row) for row in table), key=lambda row: [str(row.get(k)) for k in KEYS])
    return table


def expected_of(computed: dict[str, Any]) -> dict[str, Any]:
    """The case's figures in the form of ours."""
    found = {k: computed[k] for k in SECTIONS if k in computed}
    for row in found["kernels"]["by_name_op"]:
        for key in ("grid", "block", "dim"):
            row[key] = None if key not in row or row[key] is None else str(row[key])
        for key in ("grid", "block"):
            row[key] = row[key] or "None"
        row.pop("dim") if "kernel_type" not in row else None
    for use in found["device_use"].values():
        use["sm_efficiency_ranges"] = [r for r in use["sm_efficiency_ranges"] if r[2] >= 1e-9]
    for rows in found.get("memory", {}).get("events", {}).values():
        for row in rows:
            row["shown_kb"] = shown(row["bytes"] / 1024)
    return found


def compared(computed: dict[str, Any], trace: Trace) -> list[str]:
    found, expected = figures(trace), expected_of(computed)
    lines = []
    for section in expected:
        assert section in found or not expected[section], section
        lines += differences(by_keys(expected[section]), by_keys(found.get(section, expected[section])), section)
    return lines


def test_every_trace_computes_equal(shared: Path, tmp_path: Path):
    wrong, n_compared = {}, 0
    for case in cases(shared / "golden" / "tbplugin-units"):
        if case["kind"] in ("intervals", "counters"):
            continue
        traces = {"": case["trace"]} if "trace" in case else case["traces"]
        for worker, document in traces.items():
            computed = case["computed"]["ranks"][worker] if worker and case["kind"] != "diff" else case["computed"]
            if "flags" not in computed:  # of a pair that is only compared
                continue
            n_compared += 1
            lines = compared(computed, opened(document, tmp_path))
            if lines:
                wrong[f"{case['id']} {worker}"] = lines
    assert wrong == {}, "\n".join(f"{k}: {line}" for k, lines in wrong.items() for line in lines)
    assert n_compared == 42


@pytest.mark.parametrize("kind", ["communication", "diff"])
def test_every_pair_of_traces_computes_equal(shared: Path, tmp_path: Path, kind: str):
    n_compared = 0
    for case in cases(shared / "golden" / "tbplugin-units"):
        if case["kind"] != kind or "traces" not in case:
            continue
        traces = {w: opened(t, tmp_path, f"{w}.pt.trace.json") for w, t in case["traces"].items()}
        key = "diff" if kind == "diff" else "distributed"
        found = difference(traces["left"], traces["right"]) if kind == "diff" else together(traces)
        assert differences(case["computed"][key], found, case["id"]) == []
        assert (found is None) == (case["computed"][key] is None)
        n_compared += 1
    assert n_compared == {"communication": 4, "diff": 2}[kind]


def test_counter_tracks_and_intervals_are_equal(shared: Path):
    n_compared = 0
    for case in cases(shared / "golden" / "tbplugin-units"):
        if case["kind"] == "counters":
            points = case["given"]["utilization_timeline"]["0"]
            times, values = ([point[i] for point in points] for i in range(2))
            found = list(utilization(0, times, values, Dialect("mlu")))
            assert differences(case["computed"]["appended_counter_events"], found, case["id"]) == []
            n_compared += 1
        elif case["kind"] == "intervals":
            starts, ends = (np.array([r[i] for r in case["given"]["a"]]) for i in range(2))
            ranges = merged(starts, ends)
            found = {"intervals": np.stack(ranges, axis=1).tolist(), "length": (ranges[1] - ranges[0]).sum()}
            assert differences(case["computed"], found, case["id"]) == []
            n_compared += 1
    assert n_compared == 3
