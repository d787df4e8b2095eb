from __future__ import annotations

from stepscope import analyses
from stepscope.core.result_tables import NSYS, RESULTS
from stepscope.core.schema import TABLES


def test_tables_of_results_have_names_of_their_own():
    assert all(table.name == name for name, table in RESULTS.items())
    assert set(NSYS) < set(RESULTS)
    # What LatencyPrism's files hold is what these two analyses compute.
    assert set(RESULTS) & {*TABLES, *analyses.names("trace")} == {"attribution", "cycles"}


def test_columns_are_told_once():
    for table in RESULTS.values():
        names = [column.name for column in table.columns]
        assert len(names) == len(set(names))
        assert all(column.doc for column in table.columns)
