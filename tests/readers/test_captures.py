"""Kernels of replayed graphs get the operators under which they were captured."""

from __future__ import annotations

import json

import polars as pl
import pytest

import stepscope
from stepscope.core.errors import StepscopeError
from stepscope.readers import open_trace, side_files
from stepscope.readers.captures import graphs_of

GEMM, NORM, COPY = "gemm_kernel", "norm_kernel", "Memcpy DtoD"
#: What the captured layer launches: operator, kernel.
LAYER = [("aten::mm", GEMM), ("aten::layer_norm", NORM), ("aten::mm", GEMM)]


def span(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def work(name, ts, correlation):
    cat = "gpu_memcpy" if name == COPY else "kernel"
    return span(cat, name, ts, 1.0, tid=7, device=0, stream=7, correlation=correlation)


def capture(*layers, size=32, named=True, begins=0.0):
    """Events of a capture: a graph for each layer, under one module; kernels are named as by ROCm."""
    ts, events = begins + 10.0, []
    for number, layer in enumerate(layers):
        first = ts
        events.append(span("cuda_runtime", "hipStreamBeginCapture", ts, 1.0, correlation=1000 + number))
        module = ts + 2
        for k, (op, kernel) in enumerate(layer):
            ts += 10
            name = "hipMemcpyAsync" if kernel == COPY else "hipLaunchKernel"
            called = {"kernel": kernel} if named and kernel != COPY else {}
            events += [
                span("cpu_op", op, ts, 8.0, **{"Input Dims": [[k + 1, 4], [4, 4]], "Sequence number": k}),
                span("cuda_runtime", name, ts + 2, 1.0, correlation=2000 + 100 * number + k, **called),
            ]
        ts += 10
        events += [
            span("python_function", f"nn.Module: Layer_{number}", module, ts - module, **{"Python module id": number}),
            span("cuda_runtime", "hipStreamEndCapture", ts, 1.0, correlation=3000 + number),
        ]
        ts += 10
        if size is not None:
            events.append(span("user_annotation", f"capture_{size}_FULL", first - 1, ts - first))
    return events


def replay(*layers, annotation="execute_32_context_0(sq0)_generation_32(sq32)", begins=0.0):
    """Events of a step that launches a graph for each layer."""
    ts, events = begins + 10.0, []
    for number, kernels in enumerate(layers):
        launch = 10 + number
        events.append(span("cuda_runtime", "hipGraphLaunch", ts, 5.0, correlation=launch))
        for k, kernel in enumerate(kernels):
            events.append(work(kernel, ts + 20 + k, launch))
        ts += 100
    if annotation:
        events.append(span("user_annotation", annotation, begins, ts - begins))
    return events


@pytest.fixture
def recorded(tmp_path):
    """Writes a profile and its captures; the trace, opened."""

    def write(profile, captures=(), details=None, profile_name="profile.json"):
        folder = tmp_path / "capture_traces"
        folder.mkdir(exist_ok=True)
        for name, events in dict(captures).items():
            (folder / name).write_text(json.dumps({"traceEvents": events}))
        if details is not None:
            (folder / "execution_details.json").write_text(json.dumps(details))
        path = tmp_path / profile_name
        path.write_text(json.dumps({"traceEvents": profile}))
        return open_trace(str(path))

    return write


def operators(trace):
    """Of each piece of device work in order of time: its operator and the modules around that."""
    spans = trace.spans
    rows = []
    for op in spans.filter(pl.col("category").is_in(["kernel", "memcpy"])).sort("ts_ns")["op_id"]:
        names = [] if op is None else [spans["name"][op]]
        at = None if op is None else spans["parent_id"][op]
        while at is not None:
            if spans["category"][at] == "module":
                names.append(spans["name"][at])
            at = spans["parent_id"][at]
        rows.append(" in ".join(names))
    return rows


def issue(trace, code):
    rows = trace.issues.filter(pl.col("code") == code)
    return None if rows.is_empty() else (rows["count"][0], rows["example"][0])


KERNELS = [kernel for _, kernel in LAYER]
JOINED = [f"{op} in nn.Module: Layer_0" for op, _ in LAYER]


def test_each_kernel_has_the_operator_and_module_of_its_position_in_the_capture(recorded):
    trace = recorded(replay(KERNELS), {"bs_32_rank0.json": capture(LAYER)})
    assert operators(trace) == JOINED
    assert issue(trace, "graphs_joined") == (
        3,
        "of 3 kernels and copies in replayed graphs have the operator of their capture",
    )
    assert issue(trace, "no_operator") is None


def test_tables_speak_of_the_operators_and_give_them_no_time_on_the_host(recorded):
    trace = recorded(replay(KERNELS), {"bs_32_rank0.json": capture(LAYER)})
    rows = trace.show("operators", by="shape").select("name", "input_shapes", "calls", "device_self_ns", "host_self_ns")
    assert sorted(rows.rows()) == [
        ("aten::layer_norm", "[[2,4],[4,4]]", 1, 1000, 0),
        ("aten::mm", "[[1,4],[4,4]]", 1, 1000, 0),
        ("aten::mm", "[[3,4],[4,4]]", 1, 1000, 0),
    ]
    assert trace.show("modules").select("path", "device_total_ns", "host_total_ns").rows() == [("Layer_0", 3000, 0)]
    assert trace.show("kernels", by="op").select("op", "name", "calls").sort("op").rows() == [
        ("aten::layer_norm", NORM, 1),
        ("aten::mm", GEMM, 2),
    ]


def test_a_graph_that_is_launched_often_has_its_operators_each_time(recorded):
    trace = recorded(replay(KERNELS, KERNELS, KERNELS), {"capture_rank_0.json": capture(LAYER)})
    assert operators(trace) == JOINED * 3
    assert trace.show("operators").filter(pl.col("name") == "aten::mm")["calls"].to_list() == [6]


def test_layers_with_the_same_kernels_are_taken_in_turn(recorded):
    layers = [LAYER, LAYER, LAYER]
    whole = recorded(replay(*[KERNELS] * 3), {"capture.json": capture(*layers)})
    assert operators(whole)[::3] == [f"aten::mm in nn.Module: Layer_{i}" for i in range(3)]
    # A recording that begins at the second layer.
    part = recorded(replay(*[KERNELS] * 2, [NORM], *[KERNELS] * 3), {"capture.json": capture(*layers, [("x", NORM)])})
    layer = [text[-1] for text in operators(part) if text.startswith("aten::layer_norm")]
    assert layer == ["1", "2", "0", "1", "2"]


@pytest.mark.slow
def test_kernels_keep_their_operators_where_streams_change_their_order(recorded):
    trace = recorded(replay([NORM, GEMM, GEMM]), {"capture.json": capture(LAYER)})
    assert [text.partition(" ")[0] for text in operators(trace)] == ["aten::layer_norm", "aten::mm", "aten::mm"]


def test_without_names_the_order_counts(recorded):
    trace = recorded(replay(KERNELS), {"capture.json": capture(LAYER, named=False)})
    assert operators(trace) == JOINED


def test_copies_in_a_graph_are_part_of_its_order(recorded):
    layer = [("aten::copy_", COPY), *LAYER]
    trace = recorded(replay([COPY, *KERNELS]), {"capture.json": capture(layer, named=False)})
    assert operators(trace)[0] == "aten::copy_ in nn.Module: Layer_0"
    named = recorded(replay([COPY, *KERNELS]), {"capture.json": capture(layer)})
    assert operators(named)[0] == "aten::copy_ in nn.Module: Layer_0"


def test_a_capture_in_the_recording_itself_serves_too(recorded):
    trace = recorded([*capture(LAYER), *replay(KERNELS, begins=5000.0)])
    assert operators(trace) == JOINED


def test_modules_around_the_launch_are_not_repeated(recorded):
    around = span("python_function", "nn.Module: Layer_0", 5.0, 80.0, **{"Python module id": 0})
    trace = recorded([around, *replay(KERNELS)], {"capture.json": capture(LAYER)})
    assert operators(trace) == JOINED


@pytest.mark.parametrize(
    ("size", "joined"),
    [(32, True), (16, False), (64, False)],
)
def test_a_capture_of_another_batch_size_is_refused(recorded, size, joined):
    trace = recorded(replay(KERNELS), {"capture.json": capture(LAYER, size=size)})
    assert (operators(trace) == JOINED) is joined
    if not joined:
        assert operators(trace) == [""] * 3
        assert issue(trace, "capture_refused") == (
            1, f"launches of graphs without operators: a size of 32 ran, captured were {size}",
        )  # fmt: skip


def test_a_batch_is_filled_up_to_the_next_captured_size(recorded):
    captures = {f"bs_{n}_rank0.json": capture(LAYER, size=n) for n in (8, 16, 32, 64)}
    trace = recorded(replay(KERNELS, annotation="step[DECODE bs=20]"), captures)
    assert operators(trace) == JOINED


@pytest.mark.parametrize(
    ("annotation", "joined"),
    [
        ("step[DECODE bs=20]", True),
        ("execute_context_0(0)_generation_20(20)", True),
        ("decode[bs=20/32 tok=20 d=20]", True),
        ("step[TARGET_VERIFY bs=20]", False),
        (None, False),
    ],
)
def test_of_captures_of_several_sizes_none_is_guessed(recorded, annotation, joined):
    captures = {f"Runner_bs_{n}_rank0.json": capture(LAYER, size=None) for n in (8, 16, 32, 64)}
    trace = recorded(replay(KERNELS, annotation=annotation), captures)
    assert (operators(trace) == JOINED) is joined
    assert joined or "no range states the size" in issue(trace, "capture_refused")[1]


def test_a_capture_of_all_sizes_in_one_file_states_them_by_the_tokens_that_are_embedded(recorded, tmp_path):
    events = []
    for number, size in enumerate((64, 32, 16)):
        graph = capture(LAYER, size=None, begins=1000.0 * number)
        tokens = span("cpu_op", "aten::embedding", graph[0]["ts"] + 3, 1.0, **{"Input Dims": [[100, 4], [size], []]})
        events += [*graph, tokens]
    recorded(replay(KERNELS, annotation="step[DECODE bs=30]"), {"cuda_graph_capture-Runner-TP-0.json": events})
    (tmp_path / "capture_traces").rename(tmp_path / "graph_capture_profile")
    run = tmp_path / "1763"
    run.mkdir()
    (tmp_path / "profile.json").rename(run / "1763-TP-0.trace.json")
    trace = open_trace(str(run / "1763-TP-0.trace.json"))
    assert operators(trace) == JOINED
    captured = open_trace(str(tmp_path / "graph_capture_profile" / "cuda_graph_capture-Runner-TP-0.json"))
    assert [graph.size for graph in graphs_of(captured)] == [64, 32, 16]


def test_captures_of_other_kernels_are_refused(recorded):
    other = [("aten::mm", "another_gemm"), *LAYER[1:]]
    trace = recorded(replay(KERNELS), {"capture.json": capture(other)})
    assert operators(trace) == [""] * 3
    assert "other names" in issue(trace, "capture_refused")[1]
    shorter = recorded(replay(KERNELS), {"capture.json": capture(LAYER[:2])})
    assert "no capture has 3 launches" in issue(shorter, "capture_refused")[1]


def test_details_that_contradict_a_capture_refuse_it(recorded):
    details = [{"file": "bs_32_rank0.json", "batch_size": 16}]
    trace = recorded(replay(KERNELS), {"bs_32_rank0.json": capture(LAYER)}, details)
    assert operators(trace) == [""] * 3
    assert "different batch sizes" in issue(trace, "capture_refused")[1]


def test_a_rank_takes_the_captures_of_its_own(recorded):
    captures = {"bs_32_rank0.json": capture(LAYER[:1]), "bs_32_rank1.json": capture(LAYER)}
    trace = recorded(replay(KERNELS), captures, profile_name="rank1.json")
    assert operators(trace) == JOINED


@pytest.mark.parametrize("text", ["", "{", "[]", '{"traceEvents": [1, null, {"ph": "X"}]}'])
def test_a_capture_that_cannot_be_read_is_counted(recorded, tmp_path, text):
    path = tmp_path / "capture_traces"
    path.mkdir()
    (path / "capture.json").write_text(text)
    trace = recorded(replay(KERNELS))
    assert operators(trace) == [""] * 3


@pytest.mark.parametrize("details", [1, [1], [{"file": 1}], {"a": 1}, [{"file": "capture.json", "batch_size": "x"}]])
def test_odd_details_are_passed_over(recorded, details):
    assert operators(recorded(replay(KERNELS), {"capture.json": capture(LAYER)}, details)) == JOINED


def test_eager_traces_are_left_as_they_are(recorded, tmp_path):
    launch = span("cuda_runtime", "hipLaunchKernel", 1.0, 1.0, correlation=5)
    events = [span("cpu_op", "aten::mm", 0.0, 5.0), launch, work(GEMM, 9.0, 5)]
    trace = recorded(events, {"capture.json": capture(LAYER)})
    assert operators(trace) == ["aten::mm"]
    assert side_files(str(tmp_path / "profile.json")) == [str(tmp_path / "capture_traces" / "capture.json")]


def test_of_several_begins_before_one_end_the_last_counts(tmp_path):
    events = capture(LAYER)
    path = tmp_path / "capture.json"
    path.write_text(json.dumps({"traceEvents": [{**events[0], "ts": i / 100} for i in range(900)] + events}))
    (graph,) = graphs_of(open_trace(str(path)))
    assert graph.launches.height == 3


def test_of_very_many_modules_around_a_call_the_innermost_count(tmp_path):
    deep = [span("python_function", f"nn.Module: M_{i}", i / 1000, 2000 - i / 500) for i in range(3000)]
    path = tmp_path / "capture.json"
    path.write_text(json.dumps({"traceEvents": deep + capture(LAYER, begins=100.0)}))
    (graph,) = graphs_of(open_trace(str(path)))
    assert 3 < graph.nodes.height < 1100
    assert graph.nodes["name"].is_in(["aten::mm"]).sum() == 2


def test_a_capture_elsewhere_is_named(recorded, tmp_path):
    recorded(replay(KERNELS), {"bs_32_rank0.json": capture(LAYER)})
    (tmp_path / "capture_traces").rename(tmp_path / "elsewhere")
    profile = str(tmp_path / "profile.json")
    file = tmp_path / "elsewhere" / "bs_32_rank0.json"
    assert operators(stepscope.load(profile)) == [""] * 3
    for path in (file, file.parent):
        assert operators(stepscope.load(profile, capture=path)) == JOINED
    other = tmp_path / "bs_16_rank0.json"
    other.write_text(json.dumps({"traceEvents": capture(LAYER, size=16)}))
    refused = issue(stepscope.load(profile, capture=other), "capture_refused")
    assert refused == (1, "launches of graphs without operators: a size of 32 ran, captured were 16")
    with pytest.raises(StepscopeError, match="holds no capture"):
        stepscope.load(profile, capture=profile)
    with pytest.raises(StepscopeError):
        stepscope.load(profile, capture=tmp_path / "none.json")
    assert issue(stepscope.load(str(file), capture=file), "capture_refused")[1].endswith("is in the recording")
