from __future__ import annotations

import pytest
from jobs import part

from stepscope.analyses.ranks.experts import experts
from stepscope.core.errors import MissingTable


def job(*layers, steps=None):
    """Two ranks that send 60 bytes each to experts: what rank 0 gets in each layer of 120; it computes 1 ns a byte."""
    parts = []
    for rank in (0, 1):
        rows, sent, got, at = [], [], [], 0
        for of_first in layers:
            own, most = (of_first, 120 - of_first)[rank], max(of_first, 120 - of_first)
            rows += [(at, at + 10, "alltoall"), (at + 10 + own, at + 20 + most, "alltoall")]
            sent += [60, own]
            got += [own, 60]
            at += 20 + most
        parts.append(part(rank, *rows, in_bytes=sent, out_bytes=got, step=steps or [None] * len(rows)))
    return parts


def test_of_each_layer_the_largest_load_and_the_wait_for_it_are_known():
    table = experts(job(90, 60, 75))
    assert table.select("layer", "rank", "n", "imbalance_ratio", "wait_ns").rows() == [
        (0, 0, 1, 1.5, 30.0),  # rank 1 waits 60 ns, rank 0 not
        (1, 0, 1, 1.25, 15.0),
    ]
    assert table.select("received_bytes", "most_bytes").rows() == [(60, 90), (60, 75)]


def test_layers_are_those_of_a_step():
    table = experts(job(90, 80, 80, 90, steps=[1, 1, 1, 1, 2, 2, 2, 2]))
    assert table.select("layer", "n", "imbalance_ratio", "total_wait_ns").rows() == [
        (0, 2, pytest.approx(170 / 120), 50.0), (1, 2, pytest.approx(170 / 120), 50.0),
    ]  # fmt: skip


def test_by_rank_says_who_gets_more_and_who_waits():
    table = experts(job(90, 75), by="rank")
    assert table.select("rank", "n", "load_ratio", "total_wait_ns").rows() == [
        (0, 2, pytest.approx(165 / 120), 0), (1, 2, pytest.approx(75 / 120), 90.0),
    ]  # fmt: skip


def test_even_messages_are_not_those_of_experts():
    with pytest.raises(MissingTable, match="receive different amounts"):
        experts(job(60, 60))
