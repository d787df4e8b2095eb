from __future__ import annotations

import json

import pytest

from stepscope.core.errors import StepscopeError
from stepscope.core.hardware import Accelerator, known, with_file


@pytest.mark.parametrize(
    ("name", "facts", "product"),
    [
        ("Tesla V100-SXM2-16GB", {}, "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", {"units": 80}, "V100 PCIe"),
        ("NVIDIA A100-SXM4-40GB", {"units": 108, "memory_bytes": 42297524224}, "A100 40GB SXM"),
        ("A100-SXM4-80GB", {"memory_bytes": 85_520_809_984}, "A100 80GB SXM"),
        ("NVIDIA A100-PCIE-40GB", {}, "A100 40GB PCIe"),
        ("NVIDIA A100 80GB PCIe", {}, "A100 80GB PCIe"),
        ("NVIDIA A10", {}, "A10"),
        ("NVIDIA L4", {}, "L4"),
        ("NVIDIA L40S", {}, "L40S"),
        ("NVIDIA H100 80GB HBM3", {"units": 132}, "H100 SXM"),
        ("NVIDIA H100 PCIe", {}, "H100 PCIe"),
        ("NVIDIA H100 NVL", {}, "H100 NVL"),
        ("NVIDIA H200", {}, "H200 SXM"),
        ("NVIDIA B200", {"units": 148}, "B200"),
        ("NVIDIA GeForce RTX 3090", {}, "RTX 3090"),
        ("NVIDIA GeForce RTX 4090", {}, "RTX 4090"),
        ("NVIDIA GeForce RTX 5090", {}, "RTX 5090"),
        ("AMD Instinct MI210", {}, "MI210"),
        ("AMD Instinct MI250X / MI250", {"units": 110}, "MI250X (one of two dies)"),
        ("AMD Instinct MI300X", {"units": 304}, "MI300X"),
        ("AMD Instinct MI300X VF", {}, "MI300X"),
        ("AMD Instinct MI325X", {}, "MI325X"),
        ("AMD Instinct MI350X", {"units": 256}, "MI350X"),
        ("MLU370-X8", {}, "MLU370-X8"),
    ],
)
def test_a_device_is_found_by_the_name_that_recorders_give(name, facts, product):
    found = known().find(name, **facts)
    assert isinstance(found, Accelerator), found
    assert found.name == product


@pytest.mark.parametrize(
    ("name", "facts", "reason"),
    [
        (None, {}, "does not name its device"),
        ("NVIDIA H100", {}, "may be H100 SXM, H100 PCIe, H100 NVL"),
        ("NVIDIA A100-SXM4", {}, "may be A100 40GB SXM, A100 80GB SXM"),
        ("NVIDIA GeForce RTX 3090 Ti", {}, "is not a known accelerator (like RTX 3090"),
        ("NVIDIA GeForce RTX 4090 D", {}, "is not a known accelerator"),
        ("NVIDIA A10G", {}, "a cloud provider's own kind"),
        ("AMD Instinct MI300X", {"units": 38}, "should have 304 units and has 38"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", {}, "a part (MIG) of a GPU"),
        ("Ascend910B3", {}, "disagree"),
        ("MLU590", {}, "no complete public data sheet"),
        ("Voodoo 2", {}, "'Voodoo 2' is not a known accelerator: give its peaks with --hardware FILE"),
    ],
)
def test_what_is_not_sure_is_not_guessed(name, facts, reason):
    found = known().find(name, **facts)
    assert isinstance(found, str)
    assert reason in found


def test_facts_decide_among_products_of_one_name():
    names = {
        units: known().find("NVIDIA H100", units=units, memory_bytes=memory).name
        for units, memory in ((114, None), (132, 85_520_809_984))
    }
    assert names == {114: "H100 PCIe", 132: "H100 SXM"}


@pytest.mark.parametrize("accelerator", known().accelerators, ids=lambda a: a.name)
def test_every_product_has_sources_and_plausible_rates(accelerator):
    assert accelerator.source
    assert 1e11 < accelerator.memory_bytes_per_s < 1e13
    assert accelerator.tensor
    rates = {**accelerator.tensor, **accelerator.vector}
    assert all(1e11 <= rate <= 2e16 for rate in rates.values())
    assert set(rates) <= {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8"}
    if {"fp16", "fp32"} <= set(rates):
        assert accelerator.tensor["fp16"] > accelerator.vector["fp32"]
    found = known().find(accelerator.name)
    assert isinstance(found, str) or found.name == accelerator.name


@pytest.mark.parametrize("name", ["V100 SXM2", "A100 40GB SXM", "H100 SXM", "RTX 4090", "MI210", "MI300X", "MI350X"])
def test_vector_rates_follow_from_units_and_clock(name):
    """Two operations for each lane of each unit and cycle: the data sheets agree with themselves."""
    product = known().find(name)
    lanes = product.vector["fp32"] / (product.units * product.boost_clock_hz) / 2
    assert lanes == pytest.approx(round(lanes / 64) * 64, rel=0.01)


def test_peaks_by_precision_and_units():
    h100, mi300 = known().find("H100 SXM"), known().find("MI300X")
    assert h100.peak("bf16", matrix=True) == 989.4e12
    assert h100.peak("fp32", matrix=True) == h100.peak("fp32", matrix=False) == 66.9e12
    assert h100.peak("fp32", matrix=True, tensor_core=True) == 494.7e12
    assert mi300.peak("fp32", matrix=True) == 163.4e12
    assert mi300.peak("bf16", matrix=False) == 163.4e12
    assert h100.peak(None, matrix=True) is None
    assert h100.peak("fp4", matrix=True) is None
    assert known().find("V100 SXM2").peak("bf16", matrix=True) is None


def test_a_file_adds_and_replaces(tmp_path):
    path = tmp_path / "mine.json"
    mine = {
        "name": "MI300X", "memory_bytes_per_s": 5.3e12, "tensor": {"bf16": 708e12}, "vector": {"fp32": 81e12},
    }  # fmt: skip
    path.write_text(
        json.dumps({"accelerators": [mine, {"name": "Toy 1", "match": ["toy.*"], "memory_bytes_per_s": 1e9}]})
    )
    hardware = with_file(str(path))
    assert hardware.find("AMD Instinct MI300X", units=304).tensor == {"bf16": 708e12}
    assert hardware.find("Toy GPU").name == "Toy 1"
    assert hardware.find("NVIDIA H100 PCIe").name == "H100 PCIe"
    assert with_file(None) is known()


@pytest.mark.parametrize(
    "text",
    [
        "{", '{"accelerators": [{"name": "X"}]}', '{"accelerators": [{"name": "X", "memory_bytes_per_s": 0}]}',
        '{"accelerators": [{"name": "X", "memory_bytes_per_s": 1, "match": ["("]}]}',
        '{"accelerators": [{"name": "X", "memory_bytes_per_s": 1, "tensor": {"bf16": -1}}]}',
    ],
)  # fmt: skip
def test_a_file_of_another_form_is_refused_with_an_example(tmp_path, text):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(StepscopeError, match=r"mine\.json does not describe accelerators") as caught:
        with_file(str(path))
    assert "memory_bytes_per_s" in caught.value.hint


def test_a_file_that_is_not_there_is_said(tmp_path):
    with pytest.raises(StepscopeError, match="cannot read"):
        with_file(str(tmp_path / "none.json"))
