from __future__ import annotations

import polars as pl
import pytest

from stepscope.analyses.ranks.expert_load import expert_load
from stepscope.core.errors import MissingTable
from stepscope.core.request_tables import EXPERT_TOKENS


def counted(*rows, phase="decode"):
    """Rows of layer, rank, expert, tokens."""
    frame = pl.DataFrame(rows, schema=["layer", "rank", "expert", "n_tokens"], orient="row")
    return EXPERT_TOKENS.conform(frame.with_columns(phase=pl.lit(phase, pl.String)))


#: Two layers on two ranks of two experts: rank 0 has 30 of 40 tokens in layer 0, rank 1 has 24 of 40 in layer 1.
TOKENS = counted(
    (0, 0, 0, 20), (0, 0, 1, 10), (0, 1, 0, 10), (0, 1, 1, 0),
    (1, 0, 0, 8), (1, 0, 1, 8), (1, 1, 0, 12), (1, 1, 1, 12),
)  # fmt: skip


def test_a_layer_has_its_busiest_rank_and_the_imbalance_of_ranks_and_experts():
    rows = expert_load(TOKENS).rows()
    assert rows == [("decode", 0, 0, 4, 1, 40, 1.5, 2.0), ("decode", 1, 1, 4, 0, 40, 1.2, 1.2)]


def test_a_phase_takes_the_busiest_rank_of_each_layer():
    (row,) = expert_load(TOKENS, by="phase").rows(named=True)
    assert (row["n_layers"], row["n_experts"], row["n_idle"], row["n_tokens"]) == (2, 4, 1, 80)
    assert row["imbalance_ratio"] == pytest.approx((30 + 24) / 40)
    assert row["expert_imbalance_ratio"] == pytest.approx((20 + 12) / 20)


def test_ranks_and_experts_have_their_load():
    assert expert_load(TOKENS, by="rank").select("rank", "n_tokens", "load_ratio").rows() == [
        (0, 46, 46 / 40), (1, 34, 34 / 40),
    ]  # fmt: skip
    top = expert_load(TOKENS, by="expert").row(0, named=True)
    assert (top["layer"], top["rank"], top["expert"], top["load_ratio"]) == (0, 0, 0, 2.0)


def test_without_a_phase_and_without_tokens_ratios_are_unknown():
    (row,) = expert_load(counted((0, 0, 0, 0), phase=None)).rows(named=True)
    assert (row["phase"], row["n_idle"], row["imbalance_ratio"]) == (None, 1, None)


def test_without_counts_it_says_what_to_name():
    with pytest.raises(MissingTable, match="tokens by expert"):
        expert_load(TOKENS.clear())
