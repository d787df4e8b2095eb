from __future__ import annotations

import pytest
from faulty_jobs import Job, Op, case_of
from msgspec.structs import replace

from stepscope.comparison.diagnosis.sizes import (
    amount,
    elements,
    plain,
    retyped,
    share_of_same_work,
    sizes,
    sizes_of_calls,
)

BASE = Job()


def pair(base, other):
    return case_of(base, other).pairs[0]


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        (None, None),
        ("", None),
        ("[]", 0),
        ("[[]]", 1),
        ("[[2,3],[4]]", 10),
        ("[[[2,3],[4]],[5]]", 15),
        ("[[2,3],null]", 6),
        ("grid 4×2×1, block 128×1×1", 8),
        ("grid None×2×1, block 128×1×1", None),
        ("not json", None),
        ("{}", None),
    ],
)
def test_elements_of_all_inputs(shapes, expected):
    assert elements(shapes) == expected


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("aten::mm", "[[2,3],[3,5]]", 30),
        ("aten::addmm", "[[5],[2,3],[3,5],[],[]]", 30),
        ("aten::bmm", "[[7,2,3],[7,3,5]]", 210),
        ("aten::linear", "[[7,2,3],[5,3],[5]]", 210),
        ("aten::mv", "[[2,3],[3]]", 9),
        ("aten::add", "[[2,3],[2,3]]", 12),
        ("aten::mm", None, None),
    ],
)
def test_products_of_matrices_count_multiplications(name, shapes, expected):
    assert amount(name, shapes) == expected


def test_types_in_plain_words():
    assert plain('["float","double","","Scalar"]') == "float and double"
    assert plain("[]") == ""


def test_sizes_stand_side_by_side():
    diagnosed = sizes(pair(BASE, BASE))
    assert (diagnosed["volume_base"] == diagnosed["volume_other"]).all()
    assert "matrix products" in diagnosed["name"].to_list()


def test_the_size_of_a_call_does_not_change_with_their_number():
    more = BASE.with_ops(Op("aten::mm", 22, 1e6, BASE.op("aten::mm").shapes))
    ratios = dict(sizes_of_calls(pair(BASE, more)).select("name", "ratio").iter_rows())
    assert ratios["aten::mm"] == pytest.approx(1)


@pytest.mark.slow
def test_work_on_the_same_shapes_as_often_is_kept():
    assert share_of_same_work(pair(BASE, BASE)) == pytest.approx(1)
    assert share_of_same_work(pair(BASE, BASE.with_ops(Op("aten::new", 5, 1e6)))) == pytest.approx(1)
    assert share_of_same_work(pair(BASE, BASE.with_ops(Op("aten::mm", 11, 4e6, "[[9,9],[9,9]]")))) < 0.7
    assert share_of_same_work(pair(Job(operators=()), Job(operators=()))) is None


def test_new_element_types_at_equal_sizes_are_seen():
    old = BASE.op("aten::mm")
    assert retyped(pair(BASE, BASE)) == ()
    assert retyped(pair(BASE, BASE.with_ops(Op(old.name, 11, 4e6, old.shapes, '["double","double"]')))) == ("aten::mm",)
    assert retyped(pair(BASE, BASE.with_ops(Op(old.name, 11, 4e6, "[[9,9]]", '["double","double"]')))) == ()


def test_calls_with_other_types_on_top_of_the_old_ones_are_added_work():
    old = next(op for op in BASE.operators if op.name == "aten::mm")
    masks = Op(old.name, 40, 1e6, old.shapes, '["bool","bool"]')
    instead = tuple(masks if op is old else op for op in BASE.operators)
    assert retyped(pair(BASE, replace(BASE, operators=(*BASE.operators, masks)))) == ()
    assert retyped(pair(BASE, replace(BASE, operators=instead))) == ("aten::mm",)
