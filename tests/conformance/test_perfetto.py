"""Perfetto files against an independent decode, and windows of real Kineto traces against their Chrome JSON."""

from __future__ import annotations

import gzip
import json
import random
import runpy
from collections import Counter, defaultdict

import perfetto_traces as made
import polars as pl
import pytest

import stepscope

WINDOWS = (
    "traces/more/kineto-multirank/megatron-tp8-a100/megatron_kineto_1.json.gz",
    "traces/more/kineto-recent/t4-amp-vs-fp32/fp32.pt.trace.json.gz",
    "traces/hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "faultlab/ddp_straggler/abnormal/rank1/trace.json.gz",
)


@pytest.fixture(scope="module")
def pb():
    """The protobuf modules of Perfetto's own package."""
    return pytest.importorskip(
        "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="needs the package perfetto, of the extra dev"
    )


@pytest.fixture(scope="module")
def generated(pb, shared, tmp_path_factory):
    """What the generator of PyTorch's layout writes, 200,000 spans with half a million packets and more, shuffled."""
    folder = tmp_path_factory.mktemp("generated")
    source = (shared.parent / "tools" / "make_torch_like_pftrace.py").read_text(encoding="utf-8")
    script = folder / "make.py"
    script.write_text(source.replace("N=200000", "N=100000").replace("open('t.pftrace','wb').write", "write"), "utf-8")
    written = []
    runpy.run_path(str(script), {"write": written.append})
    trace = pb.Trace()
    trace.ParseFromString(written[0])
    packets = list(trace.packet)
    random.Random(3).shuffle(packets)
    path = folder / "rank0.pftrace"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"".join(made.packet(packet.SerializeToString()) for packet in packets))
    return path, packets


def independent(packets):
    """Spans (track, name, start, duration, correlation) and arrows (their two starts), event by event."""
    names = {entry.iid: entry.name for packet in packets for entry in packet.interned_data.event_names}
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    by_track, flows = defaultdict(list), defaultdict(list)
    for packet in packets:
        if packet.HasField("track_event"):
            by_track[packet.track_event.track_uuid].append((packet.timestamp, packet.track_event.type == 1, packet))
            for flow in packet.track_event.flow_ids:
                flows[flow].append(packet.timestamp)
    spans = Counter()
    for uuid, events in by_track.items():
        stack = []
        for ts, begins, packet in sorted(events, key=lambda event: event[:2]):
            if begins:
                stack.append(packet)
                continue
            opened = stack.pop()
            [correlation] = [a.int_value for a in opened.track_event.debug_annotations if a.name == "correlation"]
            name = names[opened.track_event.name_iid]
            spans[tracks[uuid].thread.thread_name, name, opened.timestamp, ts - opened.timestamp, correlation] += 1
        assert not stack
    return spans, Counter((min(times), max(times)) for times in flows.values())


@pytest.mark.slow
def test_spans_arguments_and_arrows_are_those_of_an_independent_decode(generated):
    path, packets = generated
    trace = stepscope.load(path)
    spans, arrows = independent(packets)
    assert sum(spans.values()) == 200_000
    labelled = trace.spans.join(trace.tracks.select("track_id", "label"), on="track_id").with_columns(
        pl.col("ts_ns") + trace.meta.origin_recorded_ns, pl.col("name", "label").cast(pl.String)
    )
    assert Counter(labelled.select("label", "name", "ts_ns", "dur_ns", "correlation").rows()) == spans
    launches = labelled.join(labelled.select("span_id", begin="ts_ns"), left_on="launch_id", right_on="span_id")
    assert Counter(launches.select("begin", "ts_ns").rows()) == arrows


@pytest.mark.slow
@pytest.mark.parametrize("with_categories", [False, True], ids=["bare", "categories"])
@pytest.mark.parametrize("window", WINDOWS)
def test_a_window_gives_the_same_tables_as_its_chrome_json(shared, tmp_path, window, with_categories):
    document = json.loads(gzip.decompress((shared / window).read_bytes()))
    left_out = ("Trace", "cuda_profiler_range")
    events = [e for e in document["traceEvents"] if e["ph"] in "XM" and e.get("cat") not in left_out]
    window = {"traceEvents": events, "schemaVersion": 1}
    (tmp_path / "rank0.json").write_text(json.dumps(window), "utf-8")
    (tmp_path / "rank0.pftrace").write_bytes(b"".join(made.as_pytorch(window, with_categories=with_categories)))
    json_, own = (stepscope.load(tmp_path / name) for name in ("rank0.json", "rank0.pftrace"))
    columns = ["name", "ts_ns", "dur_ns", "category", "correlation", "external_id", "step", "linked", "operator"]

    def spans(trace):
        frame = trace.spans.with_columns(
            pl.col("name", "category").cast(pl.String),
            linked=pl.col("launch_id").is_not_null(),
            operator=pl.col("op_id").is_not_null(),
        )
        return frame.select(columns).sort(columns)

    assert spans(own).equals(spans(json_))
    for name in ("ops", "kernels", "transfers", "collectives", "steps", "stacks"):
        assert (name in own.tables) == (name in json_.tables), name
        if name in own.tables:
            ours, theirs = own.tables[name], json_.tables[name]
            assert ours.height == theirs.height, name
            kept = [c for c in ours.columns if c not in ("span_id", "stack_id")]
            assert ours.null_count().select(kept).equals(theirs.null_count().select(kept)), name
