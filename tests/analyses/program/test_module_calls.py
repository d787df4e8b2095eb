from __future__ import annotations

import polars as pl
from module_traces import BACKWARD, MAIN, frames_of, spans_of

from stepscope.analyses.program.module_calls import classes_of, module_calls, module_tree
from stepscope.core.schema import FRAMES


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
