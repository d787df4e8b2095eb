from __future__ import annotations

import pytest

from stepscope.exports.tensorboard import _names


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", True),
        ("enumerate(DataPipe)#MyPipe", True),
        ("enumerate(DataLoader)#x", False),
        ("aten::to", False),
    ],
)
def test_data_loading_is_told_by_name(name, found):
    assert _names.is_data_loading(name) is found


@pytest.mark.parametrize(
    ("name", "found"),
    [("nccl:all_reduce", "nccl"), ("gloo:broadcast", "gloo"), ("cncl:reduce", "cncl"), ("nccl:_all_gather_base", None),
     ("nccl", None), ("mpi:reduce", None)],
)  # fmt: skip
def test_collectives_name_their_library(name, found):
    assert _names.library(name) == found
    assert _names.is_collective(name) is (found is not None)


def test_optimizers_kernels_and_operators_are_told_by_name():
    assert _names.is_optimizer("Optimizer.step#SGD.step")
    assert not _names.is_optimizer("Optimizer.zero_grad#SGD.zero_grad")
    assert _names.uses_tensor_cores("volta_h884gemm_64x64")
    assert not _names.uses_tensor_cores("nvjet_hsh_64x8")
    assert _names.is_eligible("aten::mm")
    assert not _names.is_eligible("aten::add")
