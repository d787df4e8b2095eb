"""Counters joined to real timelines: of one launch in ten, as a sampling ncu measures them, beside a plain search."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from stepscope.cli import main

if TYPE_CHECKING:
    from pathlib import Path

EXPORTS = (
    "nsight/nsys-sqlite/a100-tf-nerf-casio.2021.5.sqlite",
    "nsight/nsys-sqlite/t4-power-iteration-nvtx-2025.3.sqlite",
    "traces/more/nsys-multigpu/h100_2gpu_1s.sqlite",
)
HEAD = (
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size",
    "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value",
)  # fmt: skip
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
SQL = (
    'SELECT value, gridX, gridY, gridZ, blockX, blockY, blockZ, "end" - start FROM CUPTI_ACTIVITY_KIND_KERNEL'
    " JOIN StringIds ON id = demangledName ORDER BY start"
)


def launches_of(path: Path) -> list[tuple[str, tuple[int, ...], int]]:
    """Name, grid with block, and duration of each kernel."""
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return [(name, tuple(size), ns) for name, *size, ns in db.execute(SQL)]


def percent_of(i: int) -> float:
    return i * 7919 % 1000 / 10


def sampled(
    launches: list[tuple[str, tuple[int, ...], int]], path: Path
) -> dict[str, list[tuple[tuple[int, ...], float]]]:
    """Writes what ncu would of every tenth launch; by name the sizes and values."""
    found = defaultdict(list)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(HEAD)
        for i, (name, size, _) in list(enumerate(launches))[::10]:
            grid, block = (f"({', '.join(map(str, part))})" for part in (size[:3], size[3:]))
            where = (i, 7, "python", "host", name, 1, 7, block, grid, 0, "8.0", "Command line profiler metrics")
            writer.writerow((*where, DRAM, "%", f"{percent_of(i):.1f}"))
            found[name].append((size, percent_of(i)))
    return found


def threads(size: tuple[int, ...]) -> int:
    product = 1
    for side in size:
        product *= side
    return product


@pytest.mark.parametrize("export", EXPORTS)
def test_kernels_get_the_counters_that_a_plain_search_finds(shared: Path, tmp_path: Path, capsys, export: str) -> None:
    launches = launches_of(shared / export)
    known = sampled(launches, tmp_path / "ncu.csv")
    weighted: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])
    by_rule = {"name, grid and block": 0, "name and nearest size": 0}
    for name, size, ns in launches:
        if name not in known:
            continue
        same = [value for other, value in known[name] if other == size]
        if not same:
            near = min(known[name], key=lambda row: abs(threads(row[0]) - threads(size)))[0]
            same = [value for other, value in known[name] if other == near]
            by_rule["name and nearest size"] += ns
        else:
            by_rule["name, grid and block"] += ns
        weighted[name][0] += ns * sum(same) / len(same)
        weighted[name][1] += ns
    words = ["show", "kernels", str(shared / export), "--with", str(tmp_path / "ncu.csv"), "--format", "json"]
    assert main(words) == 0
    ours = {row["name"]: row["dram_ratio"] for row in json.loads(capsys.readouterr().out)}
    for name, ratio in ours.items():
        total, ns = weighted[name]
        assert ratio == (pytest.approx(total / ns / 100) if ns else None)
    assert main(["show", "issues", *words[2:], "--where", "code = 'counters_stitched'"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["count"] == sum(name in known for name, _, _ in launches)
    whole = sum(ns for _, _, ns in launches)
    for rule, ns in by_rule.items():
        told = re.search(rf"([<>]?)([\d.]+) % by {rule}", row["example"])
        assert (told is not None) == bool(ns)
        if told is not None and not told[1]:
            assert float(told[2]) == pytest.approx(100 * ns / whole, abs=0.5)
    assert main(["report", *words[2:5]]) == 0
    assert f"Counters of {tmp_path / 'ncu.csv'} cover" in " ".join(capsys.readouterr().out.split())
