from __future__ import annotations

from stepscope.renderers.figures import COLOURS
from stepscope.renderers.figures.bars import bars, colour_of


def test_bars_of_a_report_are_stacked_with_the_first_on_top():
    figure = bars([("Step", [("computation", 0.75), ("idle", 0.25)]), ("Host", [("idle", 1.0)])])
    first, second = figure["data"]
    assert (first["name"], first["y"], first["x"]) == ("computation", ["Host", "Step"], [None, 0.75])
    assert second["x"] == [1.0, 0.25]
    assert first["marker"]["color"] == COLOURS["computation"]


def test_parts_without_a_colour_get_one_by_their_place():
    assert colour_of("something", 0) != colour_of("something", 1)
