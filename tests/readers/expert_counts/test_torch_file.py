"""Files as `torch.save` writes them, made by hand: a zip of a pickle and the numbers that it names."""

from __future__ import annotations

import struct
import time
import zipfile

import numpy as np
import pytest

import stepscope
from stepscope import load
from stepscope.core.errors import CorruptInput, MissingTable
from stepscope.readers import expand
from stepscope.readers.common.source import Source
from stepscope.readers.expert_counts.reader import read_recorded
from stepscope.readers.expert_counts.torch_file import Call, described, tensor_of


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode() + b"q\x01"


def whole(*numbers):
    return b"".join(b"J" + struct.pack("<i", n) for n in numbers)


def pickle_of(name, shape, steps, n, kind="LongStorage", offset=0):
    """What a file says of a dictionary with one tensor."""
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text("0") + text("cpu") + whole(n) + b"tQ"
    sizes = b"(" + whole(*shape) + b"t(" + whole(*steps) + b"t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + whole(offset) + sizes
    return b"\x80\x02}(" + text(name) + tensor + b"\x89ccollections\nOrderedDict\n)RtRq\x02" + text("rank") + b"K\x00u."


def written(folder, counts, name="expert_distribution_recorder_1.5.pt", order="little", pickle=None, **stated):
    values = np.array(counts, dtype=np.int64)
    steps = [x // values.itemsize for x in values.strides]
    described_by = pickle or pickle_of("logical_count", values.shape, steps, values.size, **stated)
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("a/data.pkl", described_by)
        archive.writestr("a/byteorder", order)
        archive.writestr("a/data/0", values.astype(">i8" if order == "big" else "<i8").tobytes())
    return str(folder / name)


STEPS = [[[1, 2, 3], [0, 0, 9]], [[1, 0, 3], [0, 0, 1]]]


@pytest.mark.parametrize("order", ["little", "big"])
def test_dumps_of_sglang_are_added_up_over_steps_and_files(tmp_path, order):
    path = written(tmp_path, STEPS, order=order)
    assert tensor_of(path, "logical_count").tolist() == STEPS
    written(tmp_path, [[[10, 0, 0], [0, 0, 0]]], "expert_distribution_recorder_2.5.pt")
    assert expand([str(tmp_path)]) == [path]
    rows = load(path).expert_tokens.select("layer", "rank", "expert", "n_tokens").rows()
    assert rows == [(0, None, 0, 12), (0, None, 1, 2), (0, None, 2, 6), (1, None, 0, 0), (1, None, 1, 0),
                    (1, None, 2, 10)]  # fmt: skip


def test_without_ranks_only_experts_are_compared(tmp_path):
    run = stepscope.load_run(written(tmp_path, STEPS))
    (row,) = stepscope.show(run, "expert-load", by="phase").to_dicts()
    assert (row["imbalance_ratio"], row["expert_imbalance_ratio"]) == (None, (6 + 10) / (10 / 3 + 10 / 3))
    with pytest.raises(MissingTable, match="ranks of experts"):
        stepscope.show(run, "expert-load", by="rank")


def test_what_a_file_would_call_is_noted_and_not_called():
    assert described(b"\x80\x02cos\nsystem\n" + text("echo") + b"\x85R.") == Call("os system", ("echo",))


@pytest.mark.parametrize(
    "stated",
    [
        {"pickle": pickle_of("logical_count", (2, 9), (9, 1), 12)},
        {"pickle": pickle_of("logical_count", (-1, 3), (3, 1), 12)},
        {"pickle": pickle_of("logical_count", (2, 3), (3, 1), 12, offset=7)},
        {"pickle": pickle_of("logical_count", (2, 3), (3, 1), 2**31 - 1)},
        {"pickle": pickle_of("logical_count", (12,), (1,), 12)},
        {"pickle": pickle_of("other", (2, 3), (3, 1), 12)},
        {"kind": "BFloat16Storage"},
        {"pickle": b"\x80\x02."},
    ],
)
def test_files_that_say_what_cannot_be_are_refused(tmp_path, stated):
    path = written(tmp_path, STEPS, **{"pickle": None, **stated})
    with pytest.raises(CorruptInput):
        read_recorded(Source(path))


def test_torn_descriptions_are_refused():
    data = pickle_of("logical_count", (2, 3), (3, 1), 6)
    assert set(described(data)) == {"logical_count", "rank"}
    for end in range(len(data)):
        with pytest.raises(ValueError, match="damaged"):
            described(data[:end])


def nested(depth):
    """A tuple of twice a tuple of twice a tuple …, which is short as a pickle and endless for whoever walks it."""
    return b"K\x01" + b"".join(b"q" + bytes([i]) + b"h" + bytes([i]) + b"\x86" for i in range(depth))


def storage_of(shape, n, kind=b"ctorch\nLongStorage\n"):
    storage = b"(" + text("storage") + kind + text("0") + text("cpu") + whole(n) + b"tQ"
    sizes = b"(" + shape + b"t(" + whole(0) + b"t"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + whole(0) + sizes
    return b"\x80\x02}(" + text("logical_count") + tensor + b"\x89ccollections\nOrderedDict\n)RtRq\x02u."


@pytest.mark.parametrize(
    "pickle",
    [
        b"\x80\x02}(" + nested(60) + b"K\x01u.",
        b"\x80\x02}" + nested(60) + b"K\x01s.",
        storage_of(whole(1), 1, kind=nested(60)),
        storage_of(text("x" * 1000) + whole(10**6), 1),
        storage_of(whole(1 << 28), 1),  # each number is the same
        b"\x80\x02](" + b"e" + b"K\x01a" * 100_000 + b".",
    ],
    ids=["keys", "key", "kind", "shape", "no steps", "list"],
)
def test_small_descriptions_of_endless_values_cost_no_time(tmp_path, pickle):
    began = time.process_time()
    with pytest.raises(CorruptInput):
        tensor_of(written(tmp_path, STEPS, pickle=pickle), "logical_count")
    assert time.process_time() - began < 5
