from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepscope
from stepscope.core.errors import CorruptInput
from stepscope.readers import reader_for
from stepscope.readers.expert_counts.reader import layers_of

TWO_BLOCKS = [[[5, 1], [0, 6], [3, 3]], [[9, 3], [1, 11], [6, 6]]]


def dump(folder, phase, rank, blocks, end=""):
    """A hotspot file; each block is a list of layers, each a list of what its experts got by then."""
    place = folder / phase
    place.mkdir(exist_ok=True)
    rows = [",".join(map(str, row)) for block in blocks for row in block]
    (place / f"{phase}_{rank}.csv").write_text("\n".join(rows) + "\n" + end)


def rows_of(path):
    trace = stepscope.load(path)
    return trace.table("expert_tokens").select("phase", "layer", "rank", "expert", "n_tokens").rows()


def issues_of(path):
    return dict(stepscope.load(path).issues.select("code", "count").iter_rows())


def test_totals_are_those_of_the_last_block_and_ranks_and_phases_are_read_together(tmp_path):
    dump(tmp_path, "decode", 0, TWO_BLOCKS)
    dump(tmp_path, "decode", 10, [[[1, 5], [6, 0], [2, 4]], [[3, 9], [11, 1], [5, 7]]])
    dump(tmp_path, "prefill", 0, [[[7], [8], [2]]])
    (tmp_path / "decode" / "decode_topk_0.csv").write_text("1,2\n")
    rows = rows_of(tmp_path)
    assert [row for row in rows if row[:3] == ("decode", 1, 0)] == [("decode", 1, 0, 0, 1), ("decode", 1, 0, 1, 11)]
    assert sorted({row[2] for row in rows}) == [0, 10]
    assert [row[4] for row in rows if row[0] == "prefill"] == [7, 8, 2]
    assert not issues_of(tmp_path)


def test_torn_and_unsound_rows_are_dropped_and_counted(tmp_path):
    dump(tmp_path, "decode", 0, TWO_BLOCKS, end="10,4\n2,x\n")
    assert [row[4] for row in rows_of(tmp_path)] == [9, 3, 1, 11, 6, 6]
    assert stepscope.load(tmp_path).issues["count"].sum() == 2
    dump(tmp_path, "decode", 0, TWO_BLOCKS, end="-1,5\n")
    assert issues_of(tmp_path) == {"rows_dropped": 1}


def test_counts_that_fall_later_are_said_to_have_begun_anew(tmp_path):
    blocks = [[[i + 1, i], [0, 2 * i + 1]] for i in range(5000)]
    dump(tmp_path, "decode", 0, [[[10_000, 0], [0, 10_000]]] * 5000 + blocks)
    assert issues_of(tmp_path) == {"counts_began_anew": 1}


def test_packed_files_and_empty_ones(tmp_path):
    (tmp_path / "decode").mkdir()
    (tmp_path / "decode" / "decode_3.csv.gz").write_bytes(gzip.compress(b"4,5\n3,6\n"))
    (tmp_path / "decode" / "decode_4.csv").write_bytes(b"")
    assert {row[2] for row in rows_of(tmp_path / "decode" / "decode_3.csv.gz")} == {3}
    assert issues_of(tmp_path / "decode" / "decode_3.csv.gz") == {"empty_files": 1}


@given(st.integers(1, 6), st.integers(2, 5), st.integers(0, 2**32 - 1))
def test_the_number_of_layers_is_found_where_layers_differ(n_layers, n_blocks, seed):
    random = np.random.default_rng(seed)
    # Each layer hands out as many tokens, so a row with more for one expert has less for another.
    each = np.array([[random.multinomial(1000, share) for share in random.dirichlet(np.ones(8), n_layers)]
                     for _ in range(n_blocks)])  # fmt: skip
    totals = each.cumsum(axis=0).reshape(-1, 8)
    assert layers_of([totals[:, :4], totals[:, 4:]]) == n_layers


def test_a_table_of_counts_is_summed_by_expert(tmp_path):
    path = tmp_path / "experts.csv"
    path.write_text("rank,layer,expert,tokens,phase\n1,0,0,5,decode\n1,0,0,6,decode\n0,0,1,2,decode\n0,0,x,2,decode\n")
    assert rows_of(path) == [("decode", 0, 0, 1, 2), ("decode", 0, 1, 0, 11)]
    assert issues_of(path) == {"rows_dropped": 1}
    path.write_text("layer,expert,tokens\n0,0,3\n")
    assert rows_of(path) == [(None, 0, 0, 0, 3)]


def test_without_one_sound_row_it_is_corrupt(tmp_path):
    path = tmp_path / "experts.csv"
    path.write_text("layer,expert,tokens\nx,y,z\n")
    with pytest.raises(CorruptInput, match="not one row"):
        stepscope.load(path)


def test_they_are_known_by_name_and_content():
    assert reader_for("dump/decode/decode_3.csv", b"1,2,3\n").name == "expert-hotspots"
    assert reader_for("x.csv", b"layer,expert,tokens\n").name == "expert-counts"
