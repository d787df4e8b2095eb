from __future__ import annotations

from itertools import pairwise

import pytest

from stepscope.renderers.figures._lanes import lane, lane_axes


def test_lanes_lie_below_each_other_on_the_axis_of_the_lowest():
    axes = lane_axes(["<a>", "", "c"], "time", apart=0.1, range=[0, 1])
    domains = [axes[name]["domain"] for name in ("yaxis", "yaxis2", "yaxis3")]
    assert domains[0][1] == 1
    assert domains[2][0] == pytest.approx(0)
    for upper, lower in pairwise(domains):
        assert upper[0] - lower[1] == pytest.approx(0.1)
    assert axes["xaxis"]["anchor"] == lane(2) == "y3"
    assert axes["yaxis2"]["range"] == [0, 1]
    assert [note["text"] for note in axes["annotations"]] == ["&lt;a&gt;", "c"]
