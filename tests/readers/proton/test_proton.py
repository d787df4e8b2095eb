from __future__ import annotations

import json

import polars as pl
import polars.selectors as cs
import pytest

from stepscope.core.errors import CorruptInput
from stepscope.readers import open_trace, reader_for


def node(name, *children, **metrics):
    return {"frame": {"name": name, "type": "function"}, "metrics": metrics, "children": list(children)}


def kernel(name, total, *, count=1, **more):
    return node(name, count=count, device_id="0", device_type="CUDA", **{"time (ns)": total}, **more)


MACHINE = {"CUDA": {"0": {"arch": "90", "num_sms": 132, "clock_rate": 1980000}}}


def read(tmp_path, *trees, machine=MACHINE):
    path = tmp_path / "a.hatchet"
    path.write_text(json.dumps([node("ROOT", *trees), machine], indent=1))
    return open_trace(str(path))


def test_scopes_and_kernels_keep_the_order_of_the_tree(tmp_path):
    trace = read(tmp_path, node("outer", node("inner", kernel("sgemm", 50)), kernel("add", 20)), kernel("alone", 5))
    spans = trace.spans
    names = dict(zip(spans["span_id"], spans["name"], strict=True))
    rows = [(r["name"], r["dur_ns"], names.get(r["parent_id"]), names.get(r["op_id"])) for r in spans.to_dicts()]
    assert rows == [
        ("outer", None, None, None), ("inner", None, "outer", None), ("sgemm", 50, None, "inner"),
        ("add", 20, None, "outer"), ("alone", 5, None, None),
    ]  # fmt: skip
    assert not trace.has_clock
    assert trace.devices.drop(cs.starts_with("recorded_")).rows()[1:] == [(1, "cuda", 0, None, 132, None, "9.0")]
    assert trace.meta.format == "proton"


def test_totals_become_launches_of_the_mean_whose_sum_is_exact(tmp_path):
    trace = read(tmp_path, kernel("k", 10, count=3, flops16=300, bytes=9))
    assert trace.spans["dur_ns"].to_list() == [4, 3, 3]
    assert trace.kernel_metrics.select("metric", "unit", "value").unique().sort("metric").rows() == [
        ("bytes", "bytes", 3.0), ("flops16", "FLOP", 100.0),
    ]  # fmt: skip
    assert trace.issues.select("code", "count").rows() == [("mean_durations", 3)]


def test_other_machines(tmp_path):
    trace = read(tmp_path, kernel("k", 10), machine={})
    assert trace.devices.drop(cs.starts_with("recorded_")).rows()[1:] == [(1, "cuda", 0, None, None, None, None)]


def test_it_is_known_by_content():
    text = json.dumps([node("ROOT", kernel("k", 1)), MACHINE]).encode()
    assert reader_for("x", text).name == "proton"
    assert reader_for("x", b'[{"ph":"X","name":"\\"children\\" \\"frame\\" \\"metrics\\""}]').name == "kineto"


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-40],
        lambda text: text.replace('"metrics"', '"metrix"', 1),
        lambda text: text.replace('"count": 2', '"count": -2'),
        lambda text: text.replace('"count": 2', '"count": 1e99'),
    ],
)
def test_damage_is_one_clear_line(tmp_path, damage):
    text = json.dumps([node("ROOT", node("scope", kernel("k", 10, count=2))), MACHINE], indent=1)
    path = tmp_path / "a.hatchet"
    path.write_text(damage(text))
    with pytest.raises(CorruptInput, match=r"a\.hatchet: not a tree of Proton"):
        open_trace(str(path))


def test_deep_trees_are_walked(tmp_path):
    tree = kernel("k", 1)
    for i in range(300):
        tree = node(f"s{i}", tree)
    trace = read(tmp_path, tree)
    assert trace.spans.filter(pl.col("category") == "kernel")["op_id"].to_list() == [299]


def test_halves_of_characters_in_names_are_replaced(tmp_path):
    trace = read(tmp_path, node("a\ud800", kernel("k\udfff", 10, **{"by\ud800": 1})))
    assert trace.spans["name"].to_list() == ["a?", "k?"]
    assert trace.kernel_metrics["metric"].to_list() == ["by?"]
