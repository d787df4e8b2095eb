"""What holds more memory in one snapshot than in another."""

from __future__ import annotations

import polars as pl

from stepscope.analyses.memory.growth import grown

SCHEMA = {"device": pl.String, "category": pl.String, "line": pl.String, "stack": pl.String, "bytes": pl.Int64,
          "n_blocks": pl.Int64}  # fmt: skip


def holders(*rows):
    rows = [("cuda:0", "activations", line, stack, n_bytes, 1) for line, stack, n_bytes in rows]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def changes(base, other, by="line"):
    return dict(grown(base, other, by=by).select("line", "delta_bytes").iter_rows())


def test_what_one_side_lacks_counts_as_nothing_and_changes_add_up():
    base, other = holders(("f (a.py:1)", "f (a.py:1)", 5)), holders(("g (a.py:9)", "g (a.py:9)", 7))
    assert changes(base, other) == {"g (a.py:9)": 7, "f (a.py:1)": -5}
    assert grown(base, other)["delta_bytes"].sum() == 2


def test_a_stack_elsewhere_or_some_lines_further_down_is_the_same_stack():
    base = holders(("f (/home/a/m.py:1)", "main (/home/a/t.py:3) > f (/home/a/m.py:1)", 5))
    other = holders(("f (/srv/b/m.py:4)", "main (/srv/b/t.py:3) > f (/srv/b/m.py:4)", 8))
    assert changes(base, other) == {"f (/srv/b/m.py:4)": 3}


def test_two_lines_of_one_function_stay_apart_where_the_other_side_has_neither():
    other = holders(("f (m.py:1)", "f (m.py:1)", 5), ("f (m.py:2)", "f (m.py:2)", 6))
    assert changes(holders(), other) == {"f (m.py:1)": 5, "f (m.py:2)": 6}


def test_what_has_no_stack_is_one_row():
    rows = grown(holders((None, None, 5)), holders((None, None, 9)))
    assert rows.select("line", "delta_bytes").rows() == [(None, 4)]
