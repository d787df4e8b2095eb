from __future__ import annotations

import gzip
import random
import zlib
from itertools import chain

import perfetto_traces as made
import polars as pl
import pytest
import zstandard
from chrome_traces import issues
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto_traces import CPU, GPU, HOST, NAMES, TRAINING, WORK
from protobuf_writer import content, double, number

from stepscope.core.errors import CorruptInput, StepscopeError
from stepscope.core.files import files_in
from stepscope.readers import expand, open_trace


def spans(trace, *columns):
    return trace.spans.select(pl.col(pl.Categorical).cast(str), pl.col("*").exclude(pl.Categorical)).select(
        "name", "ts_ns", "dur_ns", *columns
    ).rows()  # fmt: skip


def test_pytorchs_spans_have_categories_links_and_arguments_although_none_is_recorded(read):
    trace = read(TRAINING, "rank0.pftrace")
    assert issues(trace) == {}
    assert spans(trace, "category", "correlation", "launch_id", "op_id", "step") == [
        ("ProfilerStep#3", 0, 200, "step", None, None, None, 3),
        ("aten::mm", 10, 50, "operator", None, None, None, 3),
        ("cudaLaunchKernel", 20, 20, "runtime", 5, None, 1, 3),
        ("gemm", 100, 80, "kernel", 5, 2, 1, 3),
    ]
    assert trace.spans["flow"].to_list() == [None, None, None, True]
    ops = trace.tables["ops"].select("input_shapes", "sequence").rows()
    assert ops == [(None, None), ("[[32,3],[]]", 9)]  # an empty list is written as nothing
    kernel = trace.tables["kernels"].row(0, named=True)
    assert [kernel[c] for c in ("grid_x", "grid_y", "block_x", "registers", "shared_bytes")] == [3, 2, 64, 40, 1024]
    assert (trace.meta.format, trace.meta.framework, trace.meta.rank, trace.meta.n_events) == (
        "perfetto", "PyTorch", 0, 4,
    )  # fmt: skip
    assert trace.devices["type"].to_list() == ["cpu", "cuda"]
    assert trace.tracks.select("process", "label", "pid", "tid", "stream", "kind").rows() == [
        ("python", "thread main", 100, 101, None, "thread"),
        ("GPU 0", "stream 7", 0, 7, 7, "stream"),
    ]


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
@settings(max_examples=20, deadline=None)
def test_the_order_of_packets_changes_nothing(tmp_path_factory, random_):
    packets = [CPU, GPU, NAMES, *HOST, *WORK]
    random_.shuffle(packets)
    path = tmp_path_factory.mktemp("x") / "a.pftrace"
    path.write_bytes(b"".join(packets))
    trace = open_trace(str(path))
    assert set(issues(trace)) <= {"texts_out_of_order"}
    assert [row[:3] for row in spans(trace)] == [
        ("ProfilerStep#3", 0, 200), ("aten::mm", 10, 50), ("cudaLaunchKernel", 20, 20), ("gemm", 100, 80),
    ]  # fmt: skip
    assert trace.spans["launch_id"].to_list() == [None, None, None, 2]


def nested(rows, first, last, depth=0):
    """Spans within [first, last), none of which ends or begins with another one."""
    if last - first < 4 or depth > 3:
        return
    at = first + 1
    while at < last - 3:
        end = rows.randint(at + 2, last - 1)
        yield at, end
        yield from nested(rows, at, end, depth + 1)
        at = end + 1


@pytest.mark.slow
@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=30, deadline=None)
def test_begins_and_ends_in_any_order_are_paired_as_they_nest(tmp_path_factory, random_, two_passes):
    known = [(f"s{i}", start, end - start) for i, (start, end) in enumerate(nested(random_, 0, 60))]
    begins = [made.event(made.BEGIN, 2, start, name) for name, start, _ in known]
    ends = [made.event(made.END, 2, start + dur) for _, start, dur in known]
    packets = [*begins, *ends]
    if not two_passes:
        random_.shuffle(packets)
    path = tmp_path_factory.mktemp("x") / "a.pftrace"
    path.write_bytes(CPU + b"".join(packets))
    first = min(start for _, start, _ in known)
    assert sorted(spans(open_trace(str(path)))) == sorted((name, start - first, dur) for name, start, dur in known)


def test_pairs_that_were_written_in_two_passes_are_exact_where_spans_touch_or_are_empty(read):
    known = [("a", 0, 40), ("b", 0, 10), ("c", 10, 10), ("d", 10, 15), ("e", 15, 20), ("f", 50, 60), ("g", 60, 60)]
    begins = [made.event(made.BEGIN, 2, start, name) for name, start, _ in known]
    ends = [made.event(made.END, 2, end) for _, _, end in known]
    trace = read(CPU + b"".join(begins + ends), "a.pftrace")
    assert sorted(spans(trace)) == [(name, start, end - start) for name, start, end in known]


def test_at_one_instant_the_order_of_a_file_that_is_in_order_counts_else_ends_come_first(read):
    a, empty = made.event(made.BEGIN, 2, 0, "a"), made.span(2, 5, 5, "empty")
    end = made.event(made.END, 2, 9)
    assert spans(read(CPU + a + empty + end)) == [("a", 0, 9), ("empty", 5, 0)]
    one, two = made.event(made.BEGIN, 2, 5, "two"), made.event(made.END, 2, 5)
    late = made.event(made.BEGIN, 2, 0, "one")
    assert spans(read(CPU + one + late + end + two)) == [("one", 0, 5), ("two", 5, 4)]


def test_begins_without_an_end_are_counted(read):
    trace = read(TRAINING + made.event(made.BEGIN, 2, 300, "cut") + made.event(made.END, 4, 500))
    assert issues(trace) == {"unpaired_events": 2}
    assert trace.spans.height == 4


@pytest.mark.parametrize(
    "packed",
    [
        gzip.compress(TRAINING),
        zstandard.compress(TRAINING),
        made.packet(content(50, zlib.compress(TRAINING))),
        made.packet(content(133, zstandard.compress(TRAINING))),
        made.packet(content(50, zlib.compress(CPU + GPU + NAMES))) + b"".join(HOST + WORK),
    ],
)
def test_packed_files_and_packed_packets_are_the_same_trace(read, packed):
    trace = read(packed, "rank0.pftrace")
    assert spans(trace) == spans(read(TRAINING, "rank0.pftrace"))
    assert issues(trace) == {}


def test_packed_packets_are_bounded_and_their_damage_is_counted(tmp_path, read):
    bomb = made.packet(content(50, zlib.compress(bytes(10**7))))
    path = tmp_path / "bomb.pftrace"
    path.write_bytes(TRAINING + bomb)
    with pytest.raises(StepscopeError, match="unpacks to more than"):
        open_trace(str(path), max_bytes=1_000_000)
    trace = read(TRAINING + made.packet(content(50, b"not packed")) + made.packet(content(133, b"neither")))
    assert issues(trace) == {"damaged_bundles": 2}
    assert trace.spans.height == 4


def test_texts_belong_to_their_sequence_until_it_is_cleared(read):
    blocks = []
    for sequence, text, start in ((1, "a", 0), (2, "b", 10), (1, "c", 20)):
        blocks += [
            made.names(text, sequence=sequence),
            made.event(made.BEGIN, 2, start, 1, sequence=sequence),
            made.event(made.END, 2, start + 5, sequence=sequence),
        ]
    trace = read(CPU + b"".join(blocks))
    assert [row[0] for row in spans(trace)] == ["a", "b", "c"]
    assert issues(trace) == {}
    lost = read(CPU + made.span(2, 0, 5, 7))
    assert ([row[0] for row in spans(lost)], issues(lost)) == ([""], {"no_texts": 1})


def test_keys_and_texts_of_arguments_may_be_interned_also_within_others(read):
    texts = content(3, number(1, 1) + content(2, "Input Dims")) + content(3, number(1, 2) + content(2, "Call stack"))
    texts += content(29, number(1, 1) + content(2, "f;g"))
    state = made.packet(content(12, texts), number(10, 1), number(13, 1))
    dims = content(12, content(12, number(4, 8)) + content(12, number(3, 4)))
    arguments = content(4, number(1, 1) + dims) + content(4, number(1, 2) + number(17, 1))
    trace = read(CPU + state + made.span(2, 0, 5, "aten::add", arguments))
    assert trace.tables["ops"]["input_shapes"].to_list() == ["[[8,4]]"]
    assert trace.tables["stacks"]["frames"].to_list() == [["g", "f"]]


def test_rocprofv3s_tracks_are_streams_of_devices_and_its_words_are_read(read):
    tracks = made.process(1, 9, "app") + made.thread(2, 1, 9, 9, "app")
    tracks += made.track(5, 1, "COMPUTE AGENT [1] STREAM [2] (GPU)") + made.track(
        6, 1, "COPY to AGENT [0] STREAM [2] (CPU)"
    )
    words = made.names("hip_api", "kernel_dispatch", "memory_copy", kind=1)
    about = {"corr_id": 11, "agent": "Agent 1", "tid": 9}
    events = made.span(2, 0, 10, "hipLaunchKernel", number(3, 1), args={"corr_id": 11}, flows=[77])
    events += made.span(5, 20, 50, "vecadd(float*)", number(3, 2), args=about, flows=[77])
    events += made.span(
        6, 60, 70, "MEMORY_COPY_DEVICE_TO_HOST", number(3, 3), args={"copy_bytes": 64, "src_agent": "Agent 1"}
    )
    trace = read(tracks + words + events)
    assert spans(trace, "category", "recorded_category", "launch_id") == [
        ("hipLaunchKernel", 0, 10, "runtime", "hip_api", None),
        ("vecadd(float*)", 20, 30, "kernel", "kernel_dispatch", 0),
        ("MEMORY_COPY_DEVICE_TO_HOST", 60, 10, "memcpy", "memory_copy", None),
    ]
    assert trace.tables["transfers"].select("bytes", "kind").rows() == [(64, "DtoH")]
    assert trace.devices.select("type", "index").rows() == [("cpu", None), ("rocm", 1)]


def test_lanes_of_xla_are_what_they_are_in_a_chrome_trace(read):
    tracks = made.process(1, 1, "/device:GPU:0") + made.thread(2, 1, 1, 13, "Stream #13(Compute)")
    tracks += (
        made.thread(3, 1, 1, 5, "XLA Modules") + made.process(4, 701, "/host:CPU") + made.thread(5, 4, 701, 9, "python")
    )
    events = made.span(2, 0, 5, "fusion.1") + made.span(3, 0, 8, "jit_f(1)") + made.span(5, 0, 3, "PjitFunction(f)")
    trace = read(tracks + events)
    assert dict(trace.spans.select(pl.col("name").cast(str), pl.col("category").cast(str)).rows()) == {
        "fusion.1": "kernel", "jit_f(1)": "device_range", "PjitFunction(f)": "other",
    }  # fmt: skip
    assert trace.meta.framework == "JAX/XLA"


def test_arrows_without_ids_tie_work_to_its_launch_and_host_threads_to_each_other(read):
    other = made.thread(9, 1, 100, 102, "autograd")
    events = made.span(2, 0, 10, "aten::mm", flows=[1, 2]) + made.span(4, 20, 30, "gemm", flows=[1])
    events += made.span(9, 50, 60, "MmBackward0", flows=[2])
    trace = read(CPU + GPU + other + events)
    rows = {row[0]: row[3:] for row in spans(trace, "span_id", "launch_id", "op_id")}
    mm = rows["aten::mm"][0]
    assert rows["gemm"][1:] == (mm, mm)
    assert trace.tables["arrows"].select("from_ts_ns", "to_ts_ns").rows() == [(0, 50)]


def test_counters_are_summed_where_they_count_up_and_have_their_unit(read):
    plain = made.track(7, 1, "power", content(8, number(4, 1000)))
    growing = made.track(8, 1, "bytes", content(8, number(5, 1)))
    values = [
        made.event(made.COUNTER, 7, 5, None, number(30, 3)),
        made.event(made.COUNTER, 7, 9, None, double(44, 0.5)),
    ]
    values += [made.event(made.COUNTER, 8, at, None, number(30, 2)) for at in (20, 10)]
    trace = read(CPU + plain + growing + made.span(2, 0, 30, "f") + b"".join(values))
    rows = (
        trace.tables["counters"].select(pl.col("metric").cast(str), "ts_ns", "value", pl.col("device").cast(str)).rows()
    )
    assert rows == [
        ("power", 5, 3000.0, "python"), ("power", 9, 500.0, "python"), ("bytes", 10, 2.0, "python"),
        ("bytes", 20, 4.0, "python"),
    ]  # fmt: skip


def test_clocks_that_count_from_the_packet_before_and_others_are_compared_to_the_traces(read):
    def clock(number_, value, more=b""):
        return content(1, number(1, number_) + number(2, value) + more)

    began = 1_700_000_000_000_000_000
    snapshot = content(6, clock(6, 5_000) + clock(64, 100, number(3, 1) + number(4, 10)) + clock(1, began))
    packets = made.packet(snapshot, number(10, 1)) + made.packet(
        content(59, number(58, 64)), number(10, 1), number(13, 1)
    )
    packets += made.event(made.BEGIN, 2, 7, "a") + made.event(made.END, 2, 3)
    packets += made.event(made.BEGIN, 2, 6_000, "b", more=number(58, 6)) + made.event(made.END, 2, 100)
    trace = read(CPU + packets)
    assert trace.meta.origin_recorded_ns == 5_070
    assert spans(trace) == [("a", 0, 30), ("b", 930, 100)]
    assert trace.meta.origin_unix_ns == began + 70
    lost = read(CPU + made.span(2, 0, 5, "a", more=number(58, 99)))
    assert issues(lost) == {"unknown_clocks": 1}


def test_defaults_give_events_their_track_and_events_without_one_have_that_of_their_sequence(read):
    defaults = made.packet(content(59, content(11, number(11, 2))), number(10, 3), number(13, 1))
    events = [(made.BEGIN, 0), (made.END, 5)]
    bare = [
        made.packet(number(8, at), content(11, number(9, kind) + content(23, "f")), number(10, sequence))
        for sequence in (3, 4)
        for kind, at in events
    ]
    trace = read(CPU + defaults + b"".join(bare))
    assert sorted(trace.tracks["label"].to_list()) == ["sequence 4", "thread main"]


def test_packets_of_other_kinds_are_counted_and_those_of_the_recording_itself_are_not(read):
    other = made.packet(content(53, number(1, 1))) + made.packet(content(1, b"")) + made.packet(content(900, b""))
    own = made.packet(content(33, b"config")) + made.packet(content(36, b"sync"), number(3, 9999))
    trace = read(TRAINING + other + own)
    assert issues(trace) == {"unknown_packets": 3}


def test_memory_events_are_instants(read):
    about = {"Device Type": 1, "Device Id": 0, "Addr": 77, "Bytes": 512, "Total Allocated": 1024}
    instants = made.event(made.INSTANT, 2, 30, "[memory]", args=about) + made.event(made.INSTANT, 2, 31, "mark")
    trace = read(TRAINING + instants)
    assert trace.tables["allocations"].select("ts_ns", "bytes", "address", "device_id").rows() == [(30, 512, 77, 1)]
    assert issues(trace) == {"instants_dropped": 1}


@pytest.mark.slow
def test_a_truncated_file_keeps_what_is_whole_and_no_file_crashes(read):
    for length in range(0, len(TRAINING), 7):
        data = TRAINING[:length]
        try:
            trace = read(data, "a.pftrace")
        except StepscopeError:
            continue
        assert trace.spans.height <= 4
    with pytest.raises(CorruptInput, match="not one of its events"):
        read(b"\n\x50\x08\x01", "a.pftrace")


@pytest.mark.slow
def test_mutated_bytes_never_crash(read):
    random_ = random.Random(7)
    packed = TRAINING + made.packet(content(50, zlib.compress(TRAINING)))
    for _ in range(60):
        data = bytearray(random_.choice((TRAINING, packed)))
        for _ in range(random_.randint(1, 8)):
            data[random_.randrange(len(data))] = random_.choice((0, 1, 10, 127, 128, 255, random_.randrange(256)))
        try:
            read(bytes(data), "a.pftrace")
        except StepscopeError:
            continue


def test_the_format_is_known_by_its_first_packet_and_a_folder_takes_it(tmp_path, read):
    for first in chain(
        [made.span(2, 0, 1, "x"), NAMES, CPU], [made.packet(content(33, b"c")), made.packet(content(6, b""))]
    ):
        assert read(first + TRAINING, "anything").meta.format == "perfetto"
    (tmp_path / "run").mkdir()
    for name in ("rank0.pftrace", "rank1.perfetto-trace"):
        (tmp_path / "run" / name).write_bytes(TRAINING)
    assert sorted(expand([str(tmp_path / "run")])) == sorted(files_in(str(tmp_path / "run"), deep=False))
