"""Real files of Nsight Compute, and the statistics of two published kernel tables."""

from __future__ import annotations

import csv
import importlib.util
import json
from typing import TYPE_CHECKING

import polars as pl
import pytest

from stepscope import analyses, exports
from stepscope.cli import main
from stepscope.core.errors import MissingExtra, StepscopeError, UnknownFormat
from stepscope.core.trace import Run, Trace
from stepscope.readers import open_trace
from stepscope.reports.overview import overview

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Every file of ncu: format, launches, summed duration in ns as counted by hand from the file's own text, null: none.
FILES = {
    "ncu-csv/sm100-cublaslt-fp8-gemm.details.csv": ("ncu-csv", 1, 406_240, 47),
    "ncu-csv/sm75-windows-resnet-metrics.csv": ("ncu-csv", 5, None, 30),
    "ncu-csv/sm86-sigmoid.metrics.csv": ("ncu-csv", 1, 376_704, 3),
    "ncu-csv/sm86-vectoradd.details.csv": ("ncu-csv", 1, 5_536, 41),
    "ncu-csv/t4-numba-copy_blocked.details.csv": ("ncu-csv", 1, 21_058_944, 71),
    "ncu-raw-derived/a100-80gb-cutlass-gemm.raw.csv": ("ncu-csv", 3, 26_112 + 11_040 + 10_784, None),
    "ncu-raw-derived/gh200-rms_norm_triton.raw.csv": ("ncu-csv", 1, 549_184, None),
    "ncu-raw-derived/gh200-silu-triton.raw.csv": ("ncu-csv", 1, 141_920, None),
    "ncu-raw-derived/rtx2060s-parallel_strategy.raw.csv": ("ncu-csv", 10, None, None),
    "ncu-text/a100-mgn_linears-bulksync.txt": ("ncu-text", 3, None, 15),
    "ncu-text/a100-mgn_linears-pipelined.txt": ("ncu-text", 1, 3_510_000, 5),
    "ncu-text/gh200-silu-pytorch.details.txt": ("ncu-text", 10, None, None),
    "ncu-text/kmer-ecoli-k8.details.txt": ("ncu-text", 5, None, None),
}
REPORTS = ("a100-80gb-cutlass-gemm", "gh200-rms_norm_triton", "gh200-silu-triton", "rtx2060s-parallel_strategy")
REFUSED = {
    "ncu-csv/nopermission-ERR_NVGPUCTRPERM.csv": (StepscopeError, "ERR_NVGPUCTRPERM"),
    "ncu-csv/flashattn-postprocessed-wide.csv": (UnknownFormat, "without a table"),
}
TABLES = ("moondream_eval", "bert_pytorch_train")
HAS_PACKAGE = importlib.util.find_spec("ncu_report") is not None
METRICS = (
    "gpu__time_duration.sum", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
)  # fmt: skip


def counted(path: Path) -> tuple[int, float, int]:
    """Launches, summed duration and metrics of a CSV, by a plain reading of it."""
    lines = path.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith('"ID",'))
    rows = list(csv.reader(lines[start:]))
    header, body = rows[0], rows[1:]
    if "Metric Name" in header:
        at, to, unit = (header.index(name) for name in ("Metric Name", "Metric Value", "Metric Unit"))
        found = [(row[0], row[at], row[unit], row[to]) for row in body if row[at]]
    else:
        units = body[0]
        found = [(row[0], header[i], units[i], row[i]) for row in body[1:] for i in range(11, len(header)) if row[i]]
    numbers = [(number, name, value.replace(",", "")) for number, name, _, value in found]
    times = [float(value) for _, name, value in numbers if name in ("Duration", METRICS[0])]
    is_number = [value == "n/a" or value.replace(".", "", 1).lstrip("-").isdigit() for *_, value in numbers]
    return len({number for number, *_ in found}), sum(times), sum(is_number)


@pytest.mark.parametrize("path", FILES)
def test_every_file_loads(shared, path):
    kind, n_launches, total_ns, n_metrics = FILES[path]
    trace = open_trace(str(shared / "nsight" / path))
    assert (trace.meta.format, trace.spans.height, trace.has_clock) == (kind, n_launches, False)
    assert set(trace.spans["category"]) == {"kernel"}
    if total_ns is not None:
        assert trace.spans["dur_ns"].sum() == total_ns
    if n_metrics is not None:
        assert trace.kernel_metrics.height == n_metrics
    assert trace.kernels["grid_x"].null_count() == 0
    assert overview(trace).headline.startswith("Nsight Compute · ")


@pytest.mark.parametrize("path", [path for path in FILES if path.endswith(".csv")])
def test_csv_holds_what_a_plain_reading_counts(shared, path):
    trace = open_trace(str(shared / "nsight" / path))
    n_launches, total_ns, n_metrics = counted(shared / "nsight" / path)
    assert (trace.spans.height, trace.kernel_metrics.height) == (n_launches, n_metrics)
    assert (trace.spans["dur_ns"].sum() or 0) == total_ns


@pytest.mark.parametrize("path", REFUSED)
def test_files_without_launches_are_refused_in_one_line(shared, path, capsys):
    kind, words = REFUSED[path]
    with pytest.raises(kind, match=words):
        open_trace(str(shared / "nsight" / path))
    assert main(["report", str(shared / "nsight" / path)]) == 1
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")


def test_every_file_of_ncu_is_listed(shared):
    folder = shared / "nsight"
    found = {str(p.relative_to(folder)) for p in folder.glob("ncu*/*")}
    assert found == {*FILES, *REFUSED, *(f"ncu-rep/{name}.ncu-rep" for name in REPORTS)}


#: The other files, in whose folders this is the only test; and the folders of which others list every file.
PROTON, NO_PROFILE = "proton/tritonbench.hatchet", "other/casio-gemms.csv"
LISTED_ELSEWHERE = {"nsys-sqlite", "nsys-csv", "rocprof"}


def test_every_folder_is_listed(shared):
    folder = shared / "nsight"
    files = {str(p.relative_to(folder)) for p in folder.glob("*/*") if p.parent.name not in LISTED_ELSEWHERE}
    assert {name for name in files if not name.startswith("ncu-")} == {PROTON, NO_PROFILE}
    assert {p.name for p in folder.iterdir()} >= LISTED_ELSEWHERE


def test_a_tree_of_proton_holds_what_its_json_counts(shared):
    tree = json.loads((shared / "nsight" / PROTON).read_text())[:-1]
    leaves = []
    while tree:
        node = tree.pop()
        tree += node["children"]
        if not node["children"]:
            leaves.append((node["frame"]["name"], node["metrics"]["count"], node["metrics"]["time (ns)"]))
    trace = open_trace(str(shared / "nsight" / PROTON))
    kernels = trace.spans.filter(pl.col("category") == "kernel").with_columns(pl.col("name").cast(pl.String))
    assert (len(leaves), kernels.height, kernels["dur_ns"].sum()) == (18, sum(n for _, n, _ in leaves), 91_711)
    sums: dict[str, list[float]] = {}
    for name, n, ns in leaves:
        known = sums.setdefault(name, [0, 0])
        known[0] += n
        known[1] += ns
    ours = kernels.group_by("name").agg(pl.len(), pl.col("dur_ns").sum())
    assert sorted(ours.rows()) == sorted((name, n, ns) for name, (n, ns) in sums.items())


def test_a_table_that_is_no_profile_is_refused(shared):
    with pytest.raises(UnknownFormat, match="without a table of a known format"):
        open_trace(str(shared / "nsight" / NO_PROFILE))


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_is_what_its_raw_page_says(shared, name):
    path = shared / "nsight" / "ncu-rep" / f"{name}.ncu-rep"
    if not HAS_PACKAGE:
        with pytest.raises(MissingExtra, match=r"\.ncu-rep"):
            open_trace(str(path))
        return
    report, page = open_trace(str(path)), open_trace(str(shared / "nsight" / "ncu-raw-derived" / f"{name}.raw.csv"))
    columns = ["name", "dur_ns"]
    assert report.spans.select(columns).rows() == page.spans.select(columns).rows()
    assert report.kernels.drop("est_occupancy_ratio").equals(page.kernels.drop("est_occupancy_ratio"))
    assert report.devices.drop("index").equals(page.devices.drop("index"))
    both = page.kernel_metrics.join(report.kernel_metrics, on=["span_id", "metric", "unit"], how="left", suffix="_own")
    apart = (pl.col("value") - pl.col("value_own")).abs() > 1e-6 * pl.col("value").abs() + 1e-6
    assert both.filter(apart).is_empty()
    # The page was made with the 0 that the package gives for samples that were not taken.
    unknown = both.filter(pl.col("value_own").is_null() & pl.col("value").is_not_null())
    assert unknown["metric"].cast(pl.String).str.starts_with("pmsampling:").all()


# The kernel tables


@pytest.fixture(scope="module")
def tables(shared) -> dict[str, Trace]:
    folder = shared / "reference"
    return {name: open_trace(str(folder / f"kernel_table_{name}.txt")) for name in TABLES}


def rebuilt(table: str) -> Iterator[str]:
    """The lines of a CSV of `ncu --metrics` from which the table may have been made."""
    head = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size",
            "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value"]  # fmt: skip
    yield "==PROF== Connected to process 7 (/usr/bin/python3)"
    yield ",".join(f'"{column}"' for column in head)
    for i, line in enumerate(table.splitlines()[1:]):
        latency, tensor, dram = line[51:].split()
        values = (f"{int(latency):,}", f"{float(tensor) * 100:.2f}", f"{float(dram) * 100:.2f}")
        for metric, value in zip(METRICS, values, strict=True):
            unit = "ns" if metric == METRICS[0] else "%"
            fields = (i, 7, "python3", "127.0.0.1", line[:50].rstrip(), 1, 7, "(128, 1, 1)", "(64, 1, 1)", 0, "8.0",
                      "Command line profiler metrics", metric, unit, value)  # fmt: skip
            yield ",".join(f'"{field}"' for field in fields)


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("source", ["csv", "table"])
def test_the_export_gives_the_table_back_byte_for_byte(shared, tmp_path, name, source):
    path = shared / "reference" / f"kernel_table_{name}.txt"
    text = path.read_text()
    if source == "csv":
        path = tmp_path / "ncu.csv"
        path.write_text("\n".join(rebuilt(text)) + "\n")
    assert main(["export", str(path), "--to", "kernel-table", "-o", str(tmp_path / "out.txt")]) == 0
    assert (tmp_path / "out.txt").read_text() == text
    assert exports.find("kernel-table")(Run((str(path),), open_trace), None) == text


#: Of each table, in the order of TABLES. Percentages and ratios are as printed.
PRINTED = {
    "calls": (971, 1626),
    "n_names": (15, 20),
    "total_ns": (32_061_824, 57_191_968),
    "mean_ns": ("33019", "35173"),
    "p50_ns": (15_104, 16_672),
    "p10_ns": (9_344, 8_640),
    "p90_ns": (64_896, 81_120),
    "min_ns": (3_712, 3_648),
    "max_ns": (751_712, 1_624_224),
    "tensor_ratio": ("0.2458", "0.2483"),
    "dram_ratio": ("0.1847", "0.2436"),
    "plain_tensor_ratio": ("0.0827", "0.0860"),
    "plain_dram_ratio": ("0.1701", "0.2181"),
    "max_ratio": ("0.3640", "0.4383"),
    "low_calls": (392, 228),
    "low_ratio": ("16.76%", "3.79%"),
    "thirds_low_ratio": ("41.78%", "39.15%"),
    "thirds_dram_low_ratio": ("45.56%", "35.85%"),
    "thirds_tensor_low_ratio": ("12.65%", "25.01%"),
    "thirds_high_ratio": ("0.00%", "0.00%"),
    "max_50_ratio": ("0.36", "0.45"),
    "max_60_ratio": ("0.37", "0.51"),
    "max_70_ratio": ("0.45", "0.65"),
    "max_80_ratio": ("0.51", "0.68"),
    "max_90_ratio": ("0.69", "0.71"),
    "tensor_half_ratio": ("25.65%", "25.58%"),
    "dram_half_ratio": ("2.96%", "15.52%"),
    "both_half_calls": (0, 0),
    "under_10us_calls": (147, 169),
    "under_10us_ratio": ("4.08%", "1.45%"),
    "under_20us_calls": (632, 971),
    "under_20us_ratio": ("25.95%", "22.70%"),
}


def as_printed(value: float, like: float | str) -> float | str:
    """The value with as many digits as another was printed with."""
    if not isinstance(like, str):
        return value
    digits = len(like.rstrip("%").partition(".")[2])
    return f"{value:.{digits}%}" if like.endswith("%") else f"{value:.{digits}f}"


def shown(path: Path, capsys, *words: str) -> list[dict[str, object]]:
    assert main(["show", *words, str(path), "--format", "json", "--limit", "0"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(("i", "name"), list(enumerate(TABLES)))
@pytest.mark.parametrize("source", ["csv", "table"])
def test_statistics_of_the_tables(shared, tmp_path, capsys, i, name, source):
    path = shared / "reference" / f"kernel_table_{name}.txt"
    if source == "csv":
        text, path = path.read_text(), tmp_path / "ncu.csv"
        path.write_text("\n".join(rebuilt(text)) + "\n")
    (got,) = shown(path, capsys, "utilisation")
    expected = {column: both[i] for column, both in PRINTED.items()}
    assert {column: as_printed(got[column], like) for column, like in expected.items()} == expected

    rules = shown(path, capsys, "kernel-classes", "--by", "rule")
    gemm = {row["rule"]: row for row in rules if row["kernel_class"] == "gemm"}
    so_far = [(rule, [gemm[r] for r in ("gemm", "kernel", "splitk")[: n + 1] if r in gemm])
              for n, rule in enumerate(("gemm", "kernel", "splitk"))]  # fmt: skip
    assert [(f"{sum(r['share_ratio'] for r in rows):.2%}", sum(r["calls"] for r in rows)) for _, rows in so_far] == [
        [("47.57%", 169), ("51.50%", 193), ("51.50%", 193)], [("0.02%", 1), ("46.34%", 294), ("47.45%", 343)],
    ][i]  # fmt: skip
    by_gemm = {row["is_gemm"]: row for row in shown(path, capsys, "kernel-classes", "--by", "gemm")}
    used = (by_gemm[True]["tensor_ratio"], by_gemm[True]["dram_ratio"], by_gemm[False]["dram_ratio"])
    assert [f"{v:.4f}" for v in used] == [["0.4723", "0.1290", "0.2438"], ["0.5139", "0.1180", "0.3571"]][i]

    (runs,) = shown(path, capsys, "kernel-runs", "--states", "tensor-dram")
    assert f"{runs['mean_calls']:.2f}" == ("2.50", "2.39")[i]

    third = shown(path, capsys, "amdahl", "--top", "3")[-1]
    assert [f"{third['cumulative_ratio']:.2%}", f"{third['speedup_2']:.2f}", f"{third['speedup_10']:.2f}"] == [
        ["47.05%", "1.31", "1.73"], ["73.27%", "1.58", "2.94"],
    ][i]  # fmt: skip
    merged = shown(path, capsys, "amdahl", "--merge-gemm")
    mix = shown(path, capsys, "kernel-mix")
    for rows in (merged, mix):
        assert [next(r["rank"] for r in rows if r["cumulative_ratio"] >= part) for part in (0.8, 0.9)] == [4, 5]


#: The first families of each table: share in percent, tensor, DRAM, launches.
FAMILIES = (
    [
        ("ampere_fp16_s16816gemm_fp16_64x128_ldg8_relu_f2...", "19.32", ".37", ".08", 96),
        ("vectorized_elementwise_kernel", "13.97", ".00", ".38", 267),
        ("ampere_fp16_s16816gemm_fp16_256x64_ldg8_relu_f2...", "13.77", ".51", ".12", 24),
        ("elementwise_kernel", "13.71", ".01", ".18", 241),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_relu_f...", "10.14", ".70", ".16", 24),
        ("unrolled_elementwise_kernel", "7.55", ".00", ".25", 74),
        ("CatArrayBatchedCopy", "5.79", ".00", ".05", 96),
        ("softmax_warp_forward", "4.31", ".02", ".43", 24),
        ("Kernel", "3.93", ".22", ".20", 24),
        ("ampere_fp16_s16816gemm_fp16_256x128_ldg8_relu_f...", "2.34", ".78", ".18", 1),
    ],
    [
        ("Kernel", "46.33", ".53", ".12", 293),
        ("elementwise_kernel", "14.90", ".02", ".18", 389),
        ("vectorized_elementwise_kernel", "12.04", ".01", ".39", 494),
        ("multi_tensor_apply_kernel", "11.04", ".00", ".70", 48),
        ("reduce_kernel", "8.83", ".00", ".19", 242),
        ("fused_dropout_kernel_vec", "2.43", ".00", ".31", 61),
    ],
)


def twice_rounded(ratio: float) -> str:
    """To three digits and then to two, as the families' figures were: .1149 by .115 to .12."""
    return f"{round(ratio, 3):.2f}".lstrip("0")


@pytest.mark.parametrize(("i", "name"), list(enumerate(TABLES)))
def test_families_of_the_tables(tables, i, name):
    got = analyses.find("kernels")(tables[name]).head(len(FAMILIES[i]))
    rows = got.select("name", "share_ratio", "tensor_ratio", "dram_ratio", "calls").rows()
    assert [(n, f"{100 * s:.2f}", twice_rounded(t), twice_rounded(d), calls) for n, s, t, d, calls in rows] == FAMILIES[
        i
    ]


def test_the_longest_launches_of_the_tables(tables):
    longest = {name: tables[name].spans.sort("dur_ns", descending=True).head(10) for name in TABLES}
    one, other = (longest[name] for name in TABLES)
    assert one["span_id"][0] == 969
    assert one.filter(pl.col("span_id") == 970)["dur_ns"].to_list() == [189_824]
    assert one["name"].cast(pl.String).str.starts_with("ampere_fp16").sum() == 9
    assert other["span_id"].to_list()[:7] == [483, 482, 466, 480, 469, 481, 467]
    assert other["name"].to_list()[7:] == ["multi_tensor_apply_kernel"] * 3


def test_analyses_that_need_times_say_so(shared, capsys):
    for name in ("steps", "timeline", "idle", "overlap", "launches", "operators"):
        path = shared / "reference" / "kernel_table_moondream_eval.txt"
        assert main(["show", name, str(path)]) == 1
        assert f"{name} needs start times" in capsys.readouterr().err
