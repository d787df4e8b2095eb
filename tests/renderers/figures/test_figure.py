from __future__ import annotations

import polars as pl
import pytest

from stepscope.core.errors import MissingTable
from stepscope.renderers.figures.figure import Figure

DRAWN = Figure("x", "X", "a picture", lambda frame, link: [frame.height, link], ("a", "b"), {"by": "time"})


def test_a_figure_is_called_with_a_frame():
    frame = pl.DataFrame({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    assert DRAWN.fits(frame)
    assert DRAWN(frame) == [2, None]
    assert DRAWN(frame, str) == [2, str]


def test_columns_that_are_missing_are_named_with_the_options_that_give_them():
    frame = pl.DataFrame({"b": [1]})
    assert not DRAWN.fits(frame)
    with pytest.raises(MissingTable, match="the figure of x needs columns a") as caught:
        DRAWN(frame)
    assert caught.value.hint == "ask for x with by=time"
    with pytest.raises(MissingTable) as caught:
        Figure("x", "X", "a picture", lambda *_: None, ("a",))(frame)
    assert "ask for" not in caught.value.hint
