"""Every format that can be read: how it is recognised, what it provides, and the module that reads it.

Recognising is data, so that opening a file imports the module of its own format and no other.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.result_tables import ASCEND, NSYS, RESULTS
from stepscope.core.schema import ISSUES, TABLES
from stepscope.readers import ascend
from stepscope.readers.common.source import DUMP_AS_JSON, SQLITE_MAGIC, family_of_dump
from stepscope.readers.nsight import nsys_stats_files
from stepscope.readers.rocm import rocprof_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepscope.core.trace import Trace
    from stepscope.readers.common.source import IssueLog, Source


#: Each kind of side file, by the names that it may have.
COUNTER_FILES = ("counters.parquet", "counters.csv", "counters.csv.gz", "counters.csv.zst")
_TEXTS = dict.fromkeys(("metric", "unit", "device"), pl.String())
COUNTER_COLUMNS = {"ts_ns": pl.Int64(), **_TEXTS, "value": pl.Float64()}
STACK_FILES = ("stacks.tsv.gz", "stacks.tsv")
SCHEDULING = "sched.ring"
RECORDING = "meta.json"


def side_file(path: str, names: Sequence[str]) -> str | None:
    """The side file of one of these names in the folder of a trace, if there is one."""
    folder, _ = files.split(path)
    if files.is_url(path):  # one listing, which fsspec keeps, in place of a question for each name
        try:
            listed = set(files.files_in(folder, deep=False))
        except StepscopeError:  # a web server, or a bucket whose objects may be read and not listed
            return None
        return next((file for name in names if (file := files.joined(folder, name)) in listed), None)
    return next((file for name in names if files.exists(file := files.joined(folder, name))), None)


def with_issues(trace: Trace, issues: IssueLog) -> Trace:
    """The trace with further issues."""
    table = issues.table()
    return trace if table.is_empty() else trace.with_tables(issues=pl.concat([ISSUES.conform(trace.issues), table]))


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
#: Formats that only their own tools can open, by suffix, and the suffix of what those tools make of them.
UNSUPPORTED = {".nsys-rep": ".sqlite", ".qdrep": ".sqlite", ".qdstrm": None}
_KERNEL_METRICS = ("devices", "tracks", "spans", "kernels", "kernel_metrics", "issues")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_OBJECT = re.compile(rb"[\xef\xbb\xbf \t\r\n]*\{")
_LIST = re.compile(rb"[\xef\xbb\xbf \t\r\n]*\[")
_LIST_OF_OBJECTS = re.compile(rb"[\xef\xbb\xbf \t\r\n]*\[\s*\{")
_SQLITE = re.compile(re.escape(SQLITE_MAGIC))
_NSYS_TABLES = re.compile(rb"CUPTI_ACTIVITY_KIND_|EXPORT_META_DATA|META_DATA_EXPORT|TARGET_INFO_|ENUM_NSYS_")
_PERFETTO_FILE = re.compile(r"(?i)\.(?:pftrace|perfetto-trace|perfetto)(?:\.(?:gz|zst|xz|bz2))?\Z")
#: The first field of a profile is the version of its schema, three numbers with dots; then comes the cycle's index.
PADDLE_PROTOBUF = re.compile(rb"\n[\x05-\x0b]\d{1,3}\.\d{1,3}\.\d{1,3}(?:\x10|\x1a|\"|\*|\Z)")
#: A message of a plane (its id, which may be missing, and its name) begins a profile of XLA.
XPLANE = re.compile(rb"\n[\x80-\xff]{0,4}[\0-\x7f](?:\x08[\x80-\xff]{0,9}[\0-\x7f])?\x12[\1-\x7f]/(?:host|device):")
#: A packet begins a trace of Perfetto: its first field is its time, clock, writer, flags or one of the usual contents.
PERFETTO = re.compile(
    rb"\n[\x80-\xff]{0,4}[\1-\x7f](?:[\x40\x50\x18\x68]|[\x5a\x62\x32][\0-\xff]|\xd0\x03|\xe2\x03|\xda\x03|\x8a\x02|\xa2\x02"
    rb"|\x92\x03|\xaa\x08|\xca\x05|\xb8\x05|\xf8\x04|\xc8\x02)",
)
_ASCEND_PART = re.compile(r"(?P<what>task_time|hccl|step_trace)_(?P<of>\d+_\d+)_(?P<iteration>\d+)(?P<suffix>\.json.*)")
#: Columns that LatencyPrism's tables must have, perf_data.csv and counters_data.csv.
LATENCYPRISM_COLUMNS = (
    "cycle", "pid", "beta_pct", "function_name", "metric_name", "device", "mu_pct", "anchor_dur_us",
)  # fmt: skip
LATENCYPRISM_COUNTERS = ("counter_name", "timestamp", "value")


@dataclass(frozen=True, slots=True)
class Sign:
    """One way to recognise a format. All that is given must hold of a file's first unpacked bytes and its name."""

    #: How sure it is, 0 to 1.
    sure: float
    #: How the bytes begin.
    begins: re.Pattern[bytes] | None = None
    #: Texts that they hold, all of them, and a pattern that they hold somewhere; within the first so many bytes.
    holds: tuple[bytes, ...] = ()
    pattern: re.Pattern[bytes] | None = None
    within: int | None = None
    #: Columns that their first line names, as CSV.
    columns: tuple[str, ...] = ()
    #: What else must hold of them, where that takes code.
    test: Callable[[bytes], bool] | None = None
    #: A pattern that the file's path holds.
    path: re.Pattern[str] | None = None
    #: How sure it is of a file that is superseded by another one.
    superseded: float | None = None

    def fits(self, path: str, head: bytes) -> bool:
        """Whether it holds."""
        head = head[: self.within]
        return (
            (self.path is None or self.path.search(path) is not None)
            and (self.begins is None or self.begins.match(head) is not None)
            and all(text in head for text in self.holds)
            and (self.pattern is None or self.pattern.search(head) is not None)
            and (not self.columns or set(self.columns).issubset(header_of(head)))
            and (self.test is None or self.test(head))
        )


@dataclass(frozen=True, slots=True)
class Format:
    """A format of ours. `module`, in this package, has the function `function(source) -> Trace`.

    The first of the `signs` that fits says how sure it is; with `utf16` they also hold of text in that encoding.
    `companion_files(path)` are the files that are read together with one, itself among them; reading the first reads
    all. `is_superseded(path)` says whether another file of the folder is read in its place.
    A format is `cacheable` if its module reads nothing but the file itself.
    """

    name: str
    doc: str
    module: str
    signs: tuple[Sign, ...]
    provides: tuple[str, ...]
    companion_files: Callable[[str], list[str]] | None = None
    is_superseded: Callable[[str], bool] | None = None
    cacheable: bool = False
    utf16: bool = False
    function: str = "read"

    def sniff(self, path: str, head: bytes) -> float:
        """How sure it is that a file has this format, 0 to 1, by its first unpacked bytes and its name."""
        if self.utf16 and head.startswith(_UTF16):
            head = head[2:].replace(b"\0", b"")
        sign = next((sign for sign in self.signs if sign.fits(path, head)), None)
        if sign is None:
            return 0.0
        if sign.superseded is not None and self.is_superseded is not None and self.is_superseded(path):
            return sign.superseded
        return sign.sure

    def read(self, source: Source) -> Trace:
        """The trace in a source. Raises what the format's module raises: CorruptInput, UnknownFormat and others."""
        trace: Trace = getattr(import_module(f"stepscope.readers.{self.module}"), self.function)(source)
        return trace


@dataclass(frozen=True, slots=True)
class Reader:
    """A format of another package. `sniff(path, head)` gives 0..1 from the first unpacked bytes and never raises.

    `companion_files(path)` are the files that are read together with one, itself among them; reading the first reads
    all. It is `cacheable` if `read` depends on the file and on stepscope's own code alone.
    """

    name: str
    doc: str
    sniff: Callable[[str, bytes], float]
    read: Callable[[Source], Trace]
    provides: tuple[str, ...]
    companion_files: Callable[[str], list[str]] | None = None
    cacheable: bool = False


def header_of(head: bytes) -> list[str]:
    """The fields of a file's first line, from its first bytes; none if that is no line of text."""
    line = head.removeprefix(BYTE_ORDER_MARK).partition(b"\n")[0]
    try:
        return csv_fields(line.decode("utf-8").rstrip("\r"))
    except UnicodeDecodeError:
        return []


def csv_fields(line: str) -> list[str]:
    """The fields of a line of CSV; none if it is not CSV."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _is_text(head: bytes) -> bool:
    return head != b"" and b"\0" not in head


def _is_in_another(path: str) -> bool:
    """Whether another file of Ascend's profiler has all that this one has, of an iteration (msprof) or of all steps."""
    folder, name = files.split(path)
    part = _ASCEND_PART.fullmatch(name)
    if part is None:
        return False
    names = [f"msprof_{part['of']}_{part['iteration']}"]
    if part["what"] == "step_trace":
        names = [f"step_trace_{part['of']}_{i}" for i in range(min(int(part["iteration"]), 100))]
    return any(files.exists(files.joined(folder, name + part["suffix"])) for name in names)


def _is_list_of_packets(head: bytes) -> bool:
    """Whether a message of field 1 follows the one before, as far as the first few are in the bytes."""
    at = 0
    for _ in range(4):
        size = re.compile(rb"\n([\x80-\xff]{0,4}[\0-\x7f])").match(head, at)
        if size is None:
            return at >= len(head)
        at = size.end() + sum((byte & 127) << 7 * i for i, byte in enumerate(size[1]))
    return True


def unsupported_suffix(path: str) -> str | None:
    """The suffix by which a path is one of them."""
    return next((suffix for suffix in UNSUPPORTED if path.lower().endswith(suffix)), None)


def _is_converted(path: str) -> bool:
    """Whether the file that can be read was already made of one that cannot, and is in the same folder."""
    made = UNSUPPORTED.get(unsupported_suffix(path) or "")
    return made is not None and Path(path).with_suffix(made).exists()


#: In order of preference among equally sure ones.
FORMATS = (
    Format(
        name="stepscope",
        doc="what `stepscope export --to parquet` wrote: a folder of Parquet files for each trace",
        module="stored",
        signs=(Sign(1.0, holds=(b'"stepscope": "trace"',), within=200, path=re.compile(r"(?:^|[/\\])meta\.json\Z")),),
        provides=(*TABLES, *RESULTS),
    ),
    Format(
        name="paddle",
        doc="PaddlePaddle profiles: .pb and Chrome-tracing .json, also packed; neither Paddle nor protobuf is needed",
        module="paddle",
        signs=(
            Sign(1.0, PADDLE_PROTOBUF),
            Sign(1.0, _OBJECT, (b'"schemaVersion"',), re.compile(rb'"span_ind(?:e)?x"\s*:'), within=4096),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "allocations", "reservations",
            "stacks", "steps", "issues",
        ),
        cacheable=True,
    ),
    Format(
        name="xplane",
        doc="XPlane of JAX, TensorFlow and PyTorch/XLA (.xplane.pb), also packed: GPU and CPU; TPU by its schema alone",
        module="xplane",
        signs=(Sign(1.0, XPLANE), Sign(0.9, re.compile(rb"\n"), path=re.compile(r"\.xplane\.pb"))),
        provides=(
            "devices", "tracks", "spans", "kernels", "transfers", "hlo_ops", "kernel_metrics", "allocations", "steps",
            "issues",
        ),
        cacheable=True,
    ),
    Format(
        name="ascend",
        doc="Ascend's profilers: a rank's folder as text or as SQLite (ascend_pytorch_profiler_*.db, msprof_*.db)",
        module="ascend.folder",
        signs=(
            # The tables of these databases are listed anywhere in the file.
            Sign(1.0, _SQLITE, path=ascend.DATABASE),
            Sign(1.0, _SQLITE, (b"COMPUTE_TASK_INFO", b"STRING_IDS")),
            Sign(1.0, _SQLITE, path=re.compile(r"(?:^|[/\\])analysis\.db\Z"), superseded=0.35),
            Sign(1.0, re.compile(_OBJECT.pattern + b"|" + _LIST.pattern), (b'"ph"',), path=ascend.TIMELINE_PATH),
            Sign(1.0, _OBJECT, (b'"Communication Time Info"',), superseded=0.35),
            Sign(1.0, _OBJECT, (b'"Transport Type"', b'"Transit Size(MB)"'), superseded=0.35),
            *(Sign(1.0, columns=columns, superseded=0.35) for columns in ascend.HEADERS.values()),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "kernel_metrics", "allocations",
            "counters", "stacks", "arrows", "steps", "issues", *ASCEND,
        ),
        companion_files=ascend.family,
        is_superseded=ascend.is_superseded,
    ),
    Format(
        name="perfetto",
        doc="Perfetto's protobuf (.pftrace, .perfetto-trace), also packed: PyTorch, rocprofv3, and other track events",
        module="perfetto",
        signs=(
            Sign(0.95, PERFETTO, path=_PERFETTO_FILE),
            Sign(0.9, PERFETTO, test=_is_list_of_packets),
            Sign(0.5, re.compile(rb"\n"), path=_PERFETTO_FILE),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "allocations", "counters",
            "stacks", "steps", "issues",
        ),
        cacheable=True,
    ),
    Format(
        name="kineto",
        doc="PyTorch profiler (Kineto) and other Chrome traces: .json, also gzip, zstd, xz, bz2 or zip",
        module="chrome.kineto",
        signs=(
            Sign(1.0, _OBJECT, (b'"traceEvents"',), superseded=0.3),
            Sign(0.4, _OBJECT, pattern=re.compile(rb'"schemaVersion"|"deviceProperties"')),
            Sign(0.9, _LIST_OF_OBJECTS, (b'"ph"',), superseded=0.3),
            Sign(0.1, re.compile(_OBJECT.pattern + b"|" + _LIST.pattern)),
        ),
        provides=(
            "devices", "tracks", "spans", "ops", "kernels", "transfers", "collectives", "kernel_metrics", "allocations",
            "counters", "stacks", "steps", "issues",
        ),
        is_superseded=_is_in_another,
        cacheable=True,
    ),
    Format(
        name="nsys",
        doc="NVIDIA Nsight Systems, exported to SQLite (`nsys export --type sqlite`)",
        module="nsight.nsys",
        signs=(
            # The first bytes of a database list its tables.
            Sign(1.0, _SQLITE, pattern=_NSYS_TABLES),
            Sign(0.1, _SQLITE),
        ),
        provides=("devices", "tracks", "spans", "ops", "kernels", "transfers", "counters", "steps", "issues"),
        cacheable=True,
    ),
    Format(
        name="nsys-stats",
        doc="Nsight Systems: what `nsys stats --format csv` writes, summaries as results, cuda_gpu_trace as a trace",
        module="nsight.nsys_stats",
        signs=(
            Sign(0.5, nsys_stats_files.NUMBERED_KERNELS),
            Sign(1.0, test=nsys_stats_files.has_table, superseded=0.35),
            Sign(
                1.0,
                pattern=re.compile(
                    rb"^(?:Generating SQLite file |Processing \[|Running \[.*\.py|SKIPPED: .* does not contain)",
                    re.MULTILINE,
                ),
                superseded=0.35,
            ),
            Sign(0.3, pattern=nsys_stats_files.FOR_PEOPLE),
        ),
        provides=("devices", "tracks", "spans", "kernels", "transfers", "steps", "issues", *NSYS),
        companion_files=nsys_stats_files.family,
        is_superseded=nsys_stats_files.is_superseded,
        utf16=True,
    ),
    Format(
        name="rocprof",
        doc="AMD rocprofv3 (CSV folder, JSON, rocpd database), rocmProfileData (.rpd), rocprof-compute (pmc_perf.csv)",
        module="rocm.rocprof",
        signs=(
            Sign(1.0, _SQLITE, (b"rocpd_",)),
            Sign(1.0, re.compile(rb"\s*\{"), (b'"rocprofiler-sdk-tool"',)),
            Sign(1.0, re.compile(rb"(?!\s*\{)"), test=rocprof_files.is_csv, superseded=0.3),
        ),
        provides=("devices", "tracks", "spans", "ops", "kernels", "transfers", "kernel_metrics", "issues"),
        companion_files=rocprof_files.family,
        is_superseded=rocprof_files.is_superseded,
    ),
    Format(
        name="proton",
        doc="Triton Proton: trees of scopes and kernels with times and user metrics (.hatchet)",
        module="proton",
        signs=(
            Sign(
                0.95,
                re.compile(rb"\s*\["),
                (b'"children"', b'"frame"', b'"metrics"'),
                test=lambda head: b'"ph"' not in head,
            ),
        ),
        provides=_KERNEL_METRICS,
        cacheable=True,
    ),
    Format(
        name="unsupported",
        doc="Nsight Systems reports: recognised, and refused with the command that converts them",
        module="unsupported",
        signs=(
            Sign(
                0.9,
                re.compile(rb"(?!SQLite|\{|\[)"),
                path=re.compile("(?:" + "|".join(map(re.escape, UNSUPPORTED)) + r")\Z", re.IGNORECASE),
                superseded=0.3,
            ),
        ),
        provides=(),
        is_superseded=_is_converted,
    ),
    Format(
        name="ncu-csv",
        doc="Nsight Compute: output of `ncu --csv`, details, chosen metrics or --page raw, among other printed lines",
        module="nsight.ncu_csv",
        signs=(
            Sign(1.0, pattern=re.compile(rb'"?ID"?,"?Process ID"?,[^\n]*Kernel Name')),
            # The header may be far below the messages of the program.
            Sign(0.6, pattern=re.compile(rb"^==(?:PROF|ERROR|WARNING)== ", re.MULTILINE)),
            Sign(0.05, test=_is_text, path=re.compile(r"\.(?:csv|txt|log|out)(?:\.\w+)?$", re.IGNORECASE)),
        ),
        provides=_KERNEL_METRICS,
        cacheable=True,
        utf16=True,
    ),
    Format(
        name="ncu-text",
        doc="Nsight Compute: the text that `ncu` prints, details or chosen metrics",
        module="nsight.ncu_csv",
        function="read_text",
        signs=(
            # The title of a launch.
            Sign(
                0.9,
                pattern=re.compile(
                    rb"^ {1,4}\S.*, Context \d+, Stream \d+(?:, Device \d+)?(?:, CC [\d.]+)?\s*$", re.MULTILINE
                ),
            ),
        ),
        provides=_KERNEL_METRICS,
        cacheable=True,
        utf16=True,
    ),
    Format(
        name="ncu-rep",
        doc="Nsight Compute reports: .ncu-rep (needs the extra `ncu`)",
        module="nsight.ncu_rep",
        signs=(Sign(1.0, re.compile(rb"NVR\0")),),
        provides=_KERNEL_METRICS,
    ),
    Format(
        name="kernel-table",
        doc="tables of kernels as text: `Kernel | Latency Tensor DRAM`, a line for each launch",
        module="kernel_table",
        signs=(Sign(1.0, re.compile(rb"[^\S\n]*Kernel[^\S\n]+Latency[^\S\n]+Tensor[^\S\n]+DRAM[ \t\r]*(?:\n|\Z)")),),
        provides=_KERNEL_METRICS,
        cacheable=True,
    ),
    Format(
        name="latencyprism",
        doc="LatencyPrism's perf_data.csv, also packed: results; read with the counters_data.csv next to it",
        module="latencyprism",
        signs=(Sign(1.0, columns=LATENCYPRISM_COLUMNS),),
        provides=("cycles", "attribution", "counters", "issues"),
    ),
    Format(
        name="flight-recorder",
        doc="dumps of PyTorch's flight recorder, pickle or JSON: all ranks of a folder together; see hangs.md",
        module="flight_recorder",
        signs=(
            Sign(1.0, _PICKLE, (b"pg_config", b"pg_status")),
            Sign(1.0, _OBJECT, pattern=DUMP_AS_JSON),
            Sign(0.5, path=files.DUMP),  # empty, or torn in its first bytes
        ),
        provides=("collective_records", "group_status", "stacks", "issues"),
        companion_files=family_of_dump,
    ),
    Format(
        name="memory-snapshot",
        doc="memory snapshots of PyTorch (.pickle), also packed, read as plain data; see memory.md",
        module="memory_snapshot",
        signs=(Sign(1.0, _PICKLE, (b"segments", b"total_size")), Sign(0.3, _PICKLE)),
        provides=("devices", "memory_events", "memory_segments", "memory_blocks", "stacks", "issues"),
        cacheable=True,
    ),
    # Side files are not so sure that they would be taken for a trace of their folder.
    Format(
        name="latencyprism-counters",
        doc="LatencyPrism's counters_data.csv, also packed: samples of resources; read with perf_data.csv next to it",
        module="latencyprism",
        function="read_counters_data",
        signs=(Sign(0.3, columns=LATENCYPRISM_COUNTERS),),
        provides=("counters", "issues"),
        cacheable=True,
    ),
    Format(
        name="step_costs",
        doc="Costs of steps from a training loop's timer, as JSON: for the Perf Summary of export --to paddle-summary",
        module="recorded.step_costs",
        signs=(Sign(0.3, _OBJECT, pattern=re.compile(rb'"batch_cost_s"\s*:'), within=4096),),
        provides=("step_costs",),
    ),
    Format(
        name="counters",
        doc="counters that `stepscope record` wrote without a profile (counters.csv, .gz, .zst, .parquet)",
        module="recorded.counters",
        signs=(
            Sign(0.3, re.compile(rb"PAR1"), path=re.compile(r"(?:^|/)counters\.parquet/*\Z")),
            Sign(0.3, columns=tuple(COUNTER_COLUMNS)),
        ),
        provides=("devices", "counters", "issues"),
    ),
)  # fmt: skip
