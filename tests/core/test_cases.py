from __future__ import annotations

import pytest

from stepscope.core.cases import Case, cases
from stepscope.core.errors import StepscopeError


def run(case, side, name="result_perf_data.csv"):
    return f"{case}/{side}_perf_data/{name}"


def pairs(*paths):
    return [(case.label, case.base, case.other) for case in cases(paths)]


def test_a_case_has_a_normal_and_an_abnormal_run():
    assert cases([run("x/clock", "abnormal"), run("x/clock", "normal")]) == [
        Case("clock", run("x/clock", "normal"), run("x/clock", "abnormal"))
    ]


def test_several_cases_are_paired_each():
    paths = [run(case, side) for case in ("a", "b", "c") for side in ("abnormal", "normal")][:-1]
    assert [label for label, _, _ in pairs(*paths)] == ["a", "b"]


def test_folders_of_traces_are_cases_too():
    paths = [f"job/{side}/rank{rank}.json" for side in ("Normal-1", "abnormal_run") for rank in (0, 1)]
    assert pairs(*paths) == [
        ("job", f"job/Normal-1/rank{rank}.json", f"job/abnormal_run/rank{rank}.json") for rank in (0, 1)
    ]


def test_of_several_normal_runs_the_first_is_paired():
    paths = ["x/abnormal/t.json", "x/normal0/t.json", "x/normal1/t.json"]
    assert pairs(*paths) == [("x", "x/normal0/t.json", "x/abnormal/t.json")]


@pytest.mark.parametrize(
    ("normal", "abnormal", "paired"),
    [
        ("r_prefill_perf_data.csv", "r_prefill_perf_data.csv.gz", True),
        ("r_perf_data.csv", "r_decode_perf_data.csv", True),
        ("r_decode_perf_data.csv.gz", "r_perf_data.csv", True),
        ("r_prefill_perf_data.csv", "r_perf_data.csv", False),
        ("r_layer_perf_data.csv", "r_layer_perf_data.csv", False),
        ("r_prefill_decode_perf_data.csv", "r_prefill_decode_perf_data.csv", False),
        ("r_perf_data.csv", "s_perf_data.csv", False),
    ],
)
def test_files_are_paired_by_their_phase(normal, abnormal, paired):
    paths = [run("x", "normal", normal), run("x", "abnormal", abnormal), "x/other.csv"]
    if paired:
        assert [(base, other) for _, base, other in pairs(*paths)] == [tuple(paths[:2])]
    else:
        with pytest.raises(StepscopeError, match="no pair of a normal and an abnormal run among 3 files") as caught:
            cases(paths)
        assert "normal" in caught.value.hint


def test_the_phase_is_part_of_the_label():
    names = ("r_prefill_perf_data.csv", "r_decode_perf_data.csv")
    paths = [run("x", side, name) for side in ("abnormal", "normal") for name in names]
    assert [label for label, _, _ in pairs(*paths)] == ["x_prefill", "x_decode"]


def test_the_same_name_goes_before_one_that_is_alike():
    names = ("r_decode_perf_data.csv", "r_perf_data.csv")
    paths = [run("x", side, name) for side in ("abnormal", "normal") for name in names]
    assert [other for _, _, other in pairs(*paths)] == paths[:2]


def test_two_files_alone_are_a_pair_in_the_order_given():
    assert pairs("b/one.csv", "a/two.csv") == [("one.csv and two.csv", "b/one.csv", "a/two.csv")]
    layers = [run("x", side, "r_layer_perf_data.csv") for side in ("abnormal", "normal")]
    assert pairs(*layers) == [("x_layer", layers[1], layers[0])]
    assert pairs("normality/a.json", "abnormals/b.json")[0][1:] == ("normality/a.json", "abnormals/b.json")


def test_a_case_named_by_a_dot_has_the_name_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pairs(run(".", "abnormal"), run(".", "normal"))[0][0] == tmp_path.name
