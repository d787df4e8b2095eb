from __future__ import annotations

import pytest

from stepscope.core.errors import StepscopeError, UnknownName
from stepscope.web.pages.table_query import Question, answered, arranged, choices, question_of


def test_an_address_becomes_a_question():
    answer = question_of(
        "idle", (0,), {"o.by": "gap", "o.min_gap_ns": "5", "where": " dur_ns > 3 ", "sort": "-dur, ts", "x": "y"}
    )
    assert answer == Question("idle", (0,), (("by", "gap"), ("min_gap_ns", 5)), "dur_ns > 3", sort=("-dur", "ts"))


@pytest.mark.parametrize(
    "words", [{"o.by": "nothing"}, {"o.min_gap_ns": "many"}, {"o.min_gap_ns": "1e999"}, {"where": "x" * 501}]
)
def test_values_that_do_not_fit_are_refused(words):
    with pytest.raises(StepscopeError):
        question_of("idle", (0,), words)


def test_unknown_tables_are_named():
    with pytest.raises(UnknownName):
        question_of("nothing", (0,), {})


def test_switches_are_read_from_words():
    assert question_of("kernels", (0,), {"o.linked_only": "true"}).options == (("linked_only", True),)
    assert question_of("kernels", (0,), {"o.linked_only": "false"}).options == (("linked_only", False),)


def test_a_form_offers_each_option_with_its_values():
    answer = {choice.name: choice for choice in choices("kernels", {"by": "op"})}
    assert answer["by"].value == "op"
    assert "stream" in answer["by"].values
    assert answer["linked_only"].values == ("true", "false")
    assert answer["communication"].values == ()


def test_rows_are_searched_grouped_sorted_and_cut(session):
    answer = answered(session, Question("operators", (0, 1)))
    assert set(answer.frame["name"].cast(str)) == {"aten::mm", "aten::add"}
    only = arranged(answer, Question("operators", (0, 1), search="MM"))
    assert set(only.frame["name"].cast(str)) == {"aten::mm"}
    literal = arranged(answer, Question("operators", (0, 1), search=".*"))
    assert literal.frame.is_empty()
    both = arranged(
        answer, Question("operators", (0, 1), group=("name",), sort=("+n_rows",), columns=("name", "n_rows"))
    )
    assert both.frame.columns == ["name", "n_rows"]
    assert both.frame["n_rows"].to_list() == [2, 2]


def test_a_condition_chooses_rows(session):
    answer = answered(session, Question("steps", (1,), where="step > 1"))
    assert answer.frame["step"].to_list() == [2, 3]


def test_inputs_that_lack_the_data_are_named(folder):
    from web_traces import document, event, written

    from stepscope.web.session import Session

    written(folder / "rank2.json", document([event("aten::mm", 0, 5)], rank=2))
    session = Session([str(folder)])
    answer = answered(session, Question("kernels", (0, 1, 2)))
    assert "rank2 is left out" in answer.remarks[0]
    session.close()


def test_a_comparison_needs_two(session):
    with pytest.raises(StepscopeError, match="two traces"):
        answered(session, Question("diff", (0,)))
    assert answered(session, Question("diff", (0, 1))).frame.height > 0
