from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from module_traces import BACKWARD, MAIN, STREAM, arrows_of, frames_of, spans_of

from stepscope.analyses.program.modules import (
    ANALYSIS,
    MODULES,
    classes_of,
    module_calls,
    module_of_work,
    module_tree,
    modules,
)
from stepscope.core.errors import MissingTable
from stepscope.core.schema import ARROWS, FRAMES
from stepscope.core.trace import Meta, Trace

ENGINE = "autograd::engine::evaluate_function: MmBackward0"
NO_ARROWS = ARROWS.empty()

TRAINING = spans_of(
    (MAIN, 0, 100, "nn.Module: Net_0", "module"),
    (MAIN, 10, 30, "nn.Module: Linear_0", "module"),
    (MAIN, 12, 20, "aten::linear", "operator"),
    (MAIN, 14, 15, "aten::mm", "operator"),
    (MAIN, 15, 5, "cudaLaunchKernel", "runtime"),
    (MAIN, 50, 10, "aten::relu", "operator"),
    (MAIN, 52, 5, "cudaLaunchKernel", "runtime"),
    (MAIN, 70, 20, "nn.Module: Linear_0", "module"),
    (BACKWARD, 200, 50, ENGINE, "operator"),
    (BACKWARD, 205, 40, "MmBackward0", "operator"),
    (BACKWARD, 210, 5, "cudaLaunchKernel", "runtime"),
    (BACKWARD, 260, 10, "ReluBackward0", "operator"),
    (BACKWARD, 262, 5, "cudaLaunchKernel", "runtime"),
    (STREAM, 300, 7, "gemm", "kernel"),
    (STREAM, 310, 20, "relu", "kernel"),
    (STREAM, 340, 400, "gemm", "kernel"),
    (STREAM, 800, 3000, "relu", "kernel"),
    launches={300: 15, 310: 52, 340: 210, 800: 262},
)
FRAMES_OF_TRAINING = frames_of(TRAINING)
BACK = arrows_of((MAIN, 14, BACKWARD, 205), (MAIN, 50, BACKWARD, 260))


def of(frame: pl.DataFrame, path: str) -> dict[str, object]:
    return frame.row(by_predicate=pl.col("path") == path, named=True)


def test_time_is_that_of_a_module_with_or_without_those_inside_it() -> None:
    got = modules(TRAINING, FRAMES_OF_TRAINING, NO_ARROWS)
    net, linear = of(got, "Net_0"), of(got, "Net_0/Linear_0")
    assert (net["calls"], net["host_total_ns"], net["host_self_ns"]) == (1, 100, 50)
    assert (net["device_total_ns"], net["device_self_ns"], net["n_operators"]) == (27, 20, 1)
    assert (linear["calls"], linear["host_total_ns"], linear["host_self_ns"]) == (2, 50, 50)
    assert (linear["device_total_ns"], linear["device_self_ns"], linear["n_operators"]) == (7, 7, 1)
    assert (linear["depth"], linear["module_id"]) == (1, 0)


def test_work_belongs_to_the_innermost_module_whose_forward_launched_it() -> None:
    work = TRAINING.filter(pl.col("category") == "kernel").sort("ts_ns")
    assert module_of_work(TRAINING, FRAMES_OF_TRAINING, work).to_list() == ["Net_0/Linear_0", "Net_0", None, None]


def test_backward_time_belongs_to_the_module_of_the_forward() -> None:
    got = modules(TRAINING, FRAMES_OF_TRAINING, BACK)
    assert got.select("path", "backward_device_ns", "backward_host_ns").rows() == [
        ("Net_0", 3400, 60),
        ("Net_0/Linear_0", 400, 50),
    ]


def test_other_arrows_and_arrows_that_hit_nothing_say_nothing_of_the_backward() -> None:
    for arrows in (NO_ARROWS, arrows_of((MAIN, 14, BACKWARD, 205), kind="async"), arrows_of((MAIN, 13, BACKWARD, 205))):
        got = modules(TRAINING, FRAMES_OF_TRAINING, arrows)
        assert got["backward_device_ns"].null_count() == got["backward_host_ns"].null_count() == got.height


def test_work_inside_two_backward_operators_counts_once() -> None:
    both = arrows_of((MAIN, 14, BACKWARD, 205), (MAIN, 50, BACKWARD, 205), (MAIN, 50, BACKWARD, 200))
    got = modules(TRAINING, FRAMES_OF_TRAINING, both)
    assert got["backward_device_ns"].to_list() == [400, 400]
    assert got["backward_host_ns"].to_list() == [50, 50]


def test_by_class_a_call_inside_one_of_its_class_counts_once_in_totals() -> None:
    spans = spans_of(
        (MAIN, 0, 100, "nn.Module: Sequential_0", "module"),
        (MAIN, 10, 50, "nn.Module: Sequential_1", "module"),
        (MAIN, 20, 10, "nn.Module: ReLU_0", "module"),
        (MAIN, 21, 5, "cudaLaunchKernel", "runtime"),
        (STREAM, 50, 9, "relu", "kernel"),
        launches={50: 21},
    )
    got = modules(spans, frames_of(spans), NO_ARROWS, by="class")
    columns = ("module_class", "calls", "host_total_ns", "host_self_ns", "device_total_ns", "device_self_ns")
    assert got.select(columns).rows() == [("ReLU", 1, 10, 10, 9, 9), ("Sequential", 2, 100, 90, 9, 0)]


def test_without_device_work_its_columns_are_unknown() -> None:
    host = TRAINING.filter(pl.col("track_id") != STREAM)
    got = modules(host, FRAMES_OF_TRAINING, BACK)
    assert got["host_total_ns"].to_list() == [100, 50]
    assert got["backward_host_ns"].to_list() == [60, 50]
    for column in ("device_total_ns", "device_self_ns", "backward_device_ns"):
        assert got[column].null_count() == got.height, column


def test_lightnings_ranges_count_where_they_are_asked_for_or_alone() -> None:
    model = (MAIN, 0, 100, "[pl][module]torch.nn.Linear: model.head", "operator")
    inside = (MAIN, 10, 20, "aten::mm", "operator")
    alone = spans_of(model, inside)
    got = modules(alone, FRAMES.empty(), NO_ARROWS)
    assert got.select("path", "n_operators", "host_total_ns").rows() == [("model/head", 1, 100)]
    both = spans_of(model, inside, (MAIN, 5, 50, "nn.Module: Linear_0", "module"))
    assert modules(both, frames_of(both), NO_ARROWS)["path"].to_list() == ["Linear_0"]
    assert modules(both, frames_of(both), NO_ARROWS, by="lightning")["path"].to_list() == ["model/head"]


def test_missing_modules_and_unknown_groupings_are_refused() -> None:
    with pytest.raises(MissingTable, match="modules needs calls of modules") as caught:
        modules(spans_of((MAIN, 0, 5, "aten::mm", "operator")), FRAMES.empty(), NO_ARROWS)
    assert caught.value.topic == "stacks"


@pytest.mark.parametrize("by", ["module", "class"])
def test_the_analysis_returns_what_its_table_declares(by: str) -> None:
    trace = Trace(Meta("x", "kineto"), {"spans": TRAINING, "frames": FRAMES_OF_TRAINING, "arrows": BACK})
    got = ANALYSIS(trace, by=by)
    assert dict(got.schema) == {name: MODULES.dtypes[name] for name in got.columns}


@st.composite
def nested(draw: st.DrawFn, low: int = 0, high: int = 64, depth: int = 0) -> list[tuple[int, int, str, int]]:
    """Calls (ts, dur, name, device time of a launch in it or 0) that nest, with room for a launch at each start."""
    found: list[tuple[int, int, str, int]] = []
    while high - low >= 4 and depth < 4 and draw(st.booleans()):
        start = draw(st.integers(low, high - 4))
        end = draw(st.integers(start + 4, high))
        found.append((start, end - start, draw(st.sampled_from(["A_0", "B_0"])), draw(st.integers(0, 5))))
        found += draw(nested(start + 2, end, depth + 1))
        low = end
    return found


@pytest.mark.slow
@given(nested())
def test_totals_and_own_times_equal_those_of_a_walk_through_the_calls(calls: list[tuple[int, int, str, int]]) -> None:
    if not calls:
        return
    rows: list[tuple[int, int, int, str, str]] = []
    launches = {}
    for i, (ts, dur, name, work) in enumerate(calls):
        rows.append((MAIN, ts, dur, f"nn.Module: {name}", "module"))
        rows.append((MAIN, ts + 1, 1, "cudaLaunchKernel", "runtime"))
        rows.append((STREAM, 1_000 + 10 * i, work, "k", "kernel"))
        launches[1_000 + 10 * i] = ts + 1
    spans = spans_of(*rows, launches=launches)
    got = modules(spans, frames_of(spans), NO_ARROWS)

    def inside(inner: tuple[int, int, str, int], outer: tuple[int, int, str, int]) -> bool:
        return outer[0] < inner[0] < outer[0] + outer[1]

    expected: dict[str, list[int]] = {}
    for call in calls:
        around = [other for other in calls if inside(call, other)]
        path = "/".join(other[2] for other in [*around, call])
        within = [other for other in calls if inside(other, call)]
        direct = [o for o in within if not any(inside(o, other) for other in within)]
        sums = expected.setdefault(path, [0] * 5)
        own = call[1] - sum(o[1] for o in direct)
        values = (1, call[1], own, call[3] + sum(o[3] for o in within), call[3])
        expected[path] = [a + b for a, b in zip(sums, values, strict=True)]
    columns = ("calls", "host_total_ns", "host_self_ns", "device_total_ns", "device_self_ns")
    assert {row[0]: list(row[1:]) for row in got.select("path", *columns).iter_rows()} == expected
    assert got["path"].to_list() == list(dict.fromkeys(got["path"]))
    for at, path in enumerate(got["path"]):
        parent = path.rpartition("/")[0]
        assert not parent or parent in got["path"].to_list()[:at]


def tree(*rows: tuple[int, int, int, str, str], lightning: bool = False) -> list[tuple[object, ...]]:
    spans = spans_of(*rows)
    calls = module_calls(spans, frames_of(spans), lightning=lightning)
    assert calls is not None
    return module_tree(calls)[0].rows()


def module(ts: int, dur: int, name: str, track: int = MAIN) -> tuple[int, int, int, str, str]:
    return (track, ts, dur, f"nn.Module: {name}", "module")


def test_modules_are_told_apart_by_those_around_them_in_order_of_first_calls() -> None:
    rows = (
        module(0, 100, "Net_0"),
        (MAIN, 5, 80, "net.py(7): forward", "python"),
        module(10, 20, "Block_1"),
        module(12, 5, "ReLU_0"),
        module(40, 20, "Block_0"),
        module(42, 5, "ReLU_0"),
        module(65, 5, "Block_1"),
        module(200, 20, "Block_1", BACKWARD),
    )
    assert tree(*rows) == [
        ("Net_0", "Net", 0, 0),
        ("Net_0/Block_1", "Block", 1, 1),
        ("Net_0/Block_1/ReLU_0", "ReLU", 0, 2),
        ("Net_0/Block_0", "Block", 0, 1),
        ("Net_0/Block_0/ReLU_0", "ReLU", 0, 2),
        ("Block_1", "Block", 1, 0),
    ]


def test_what_comes_first_in_time_comes_first_whatever_its_thread() -> None:
    assert [row[0] for row in tree(module(50, 5, "A_0", MAIN), module(10, 5, "B_0", BACKWARD))] == ["B_0", "A_0"]


def test_a_module_whose_name_lacks_its_number_gets_it() -> None:
    spans = spans_of(module(0, 10, "Net"), module(20, 10, "Net"), module(40, 5, "Other"))
    frames = FRAMES.conform(pl.DataFrame({"span_id": [0, 1], "module_id": [3, 4]}))
    calls = module_calls(spans, frames, lightning=False)
    assert calls is not None
    assert module_tree(calls)[0].rows() == [("Net_3", "Net", 3, 0), ("Net_4", "Net", 4, 0), ("Other", "Other", None, 0)]


def test_names_of_lightning_continue_those_around_them() -> None:
    rows = (
        (MAIN, 0, 100, "[pl][module]torchvision.models.ResNet: model", "operator"),
        (MAIN, 10, 50, "[pl][module]torch.nn.modules.container.Sequential: model.layer1", "operator"),
        (MAIN, 20, 10, "[pl][module]torch.nn.modules.conv.Conv2d: model.layer1.0.conv1", "operator"),
        (MAIN, 70, 10, "[pl][module]Plain", "operator"),
        (MAIN, 80, 10, "[pl][profile]step", "operator"),
        (MAIN, 90, 5, "[pl][module]x: y", "python"),
    )
    assert tree(*rows, lightning=True) == [
        ("model", "ResNet", None, 0),
        ("model/layer1", "Sequential", None, 1),
        ("model/layer1/0/conv1", "Conv2d", None, 2),
        ("model/Plain", "Plain", None, 1),
    ]


def test_each_call_knows_its_row_and_each_span_its_call() -> None:
    spans = spans_of(
        module(0, 50, "A_0"), (MAIN, 5, 5, "aten::mm", "operator"), module(60, 5, "A_0"), module(70, 5, "B_0")
    )
    calls = module_calls(spans, frames_of(spans), lightning=False)
    assert calls is not None
    assert module_tree(calls)[1].tolist() == [0, 0, 1]
    assert calls.of_span.tolist() == [0, 0, 1, 2]
    rows, of_call = classes_of(calls)
    assert (rows["module_class"].to_list(), of_call.tolist()) == (["A", "B"], [0, 0, 1])


def test_a_trace_without_modules_has_no_calls() -> None:
    assert module_calls(spans_of((MAIN, 0, 5, "aten::mm", "operator")), FRAMES.empty(), lightning=False) is None
    assert module_calls(spans_of((MAIN, 0, 5, "aten::mm", "operator")), FRAMES.empty(), lightning=True) is None
