from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stepscope.api import comparing

DEMO = Path(__file__).parents[2] / "examples" / "demo-slow-loader"
SIDES = [str(DEMO / name) for name in ("normal0", "abnormal")]


@pytest.fixture(autouse=True, scope="module")
def compared_once():
    """Each two runs are compared once: what the command makes of a comparison is tested here."""
    compare, made = comparing.compare_two_runs, {}

    def remembered(base, other, *, anchor=None):
        key = (base.paths, other.paths, anchor)
        if key not in made:
            made[key] = compare(base, other, anchor=anchor)
        return made[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "compare_two_runs", remembered)
        yield


@pytest.mark.slow
def test_the_cause_comes_first_on_the_screen(run):
    out = run("compare", str(DEMO)).out
    assert out.startswith("Different: slower · step 58.2 ms → 88.8 ms, +53 %")
    assert "1  data_loading (likely)" in out
    assert "Where the difference went, per step" in out


@pytest.mark.slow
def test_json_has_its_facts_at_the_top(run):
    found = json.loads(run("compare", *SIDES, "--format", "json").out)
    assert (found["schema"], found["verdict"], found["causes"][0]["category"]) == (
        "stepscope.comparison/1", "different", "data_loading",
    )  # fmt: skip
    step = found["step_time"]
    assert step["delta_ns"] == pytest.approx(sum(row["delta_ns"] for row in found["parts"]), rel=1e-3)
    assert step["low_ns"] < step["delta_ns"] < step["high_ns"]
    assert found["attribution"][0]["name"].startswith("enumerate")
    assert [row["base"][0]["n_cycles"] for row in found["processes"]] == [10]


@pytest.mark.slow
def test_equal_runs_are_no_difference_and_have_no_cause(run):
    found = json.loads(run("compare", str(DEMO / "normal0"), str(DEMO / "normal1"), "--format", "json").out)
    assert (found["verdict"], found["causes"]) == ("no_difference", [])
    out = run("compare", str(DEMO / "normal0"), str(DEMO / "normal1")).out
    assert out.startswith("No difference: within what healthy runs differ")
    assert "would show in 8 of 10 cases" in " ".join(out.split())


@pytest.mark.slow
def test_repeats_are_named_with_base_and_other(run):
    words = ["--base", *(str(DEMO / name) for name in ("normal0", "normal1")), "--other", str(DEMO / "abnormal")]
    found = json.loads(run("compare", *words, "--format", "json").out)
    assert [len(found["processes"][0][side]) for side in ("base", "other")] == [2, 1]


@pytest.mark.parametrize(
    ("condition", "code"), [("slower:3%", 3), ("slower", 3), ("slower:90%", 0), ("faster:1%", 0), ("different", 3)]
)
def test_a_gate_fails_only_beyond_its_threshold(run, condition, code):
    result = run("compare", *SIDES, "--fail-on", condition)
    assert result.code == code
    assert ("failed: " in result.err) == (code == 3)
    assert result.out.startswith("Different")


@pytest.mark.slow
def test_a_gate_stays_open_for_what_is_no_difference(run):
    words = [str(DEMO / name) for name in ("normal0", "normal1")]
    assert [run("compare", *words, "--fail-on", condition).code for condition in ("slower", "different")] == [0, 0]


def test_a_gate_that_cannot_be_read_is_a_wrong_use(run):
    result = run("compare", *SIDES, "--fail-on", "slower:lots")
    assert result.code == 2
    assert "not a condition: slower:lots" in result.err


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parts", "attribution", "resources", "effects", "ruled-out"])
def test_every_table_of_the_comparison_can_be_had_as_csv(run, name):
    head = run("compare", *SIDES, "--table", name, "--format", "csv").out.split("\n")[0]
    assert "," in head


@pytest.mark.slow
def test_any_result_table_of_two_runs_stands_side_by_side(run):
    out = run("compare", *SIDES, "--table", "operators", "--format", "csv").out
    assert out.startswith("name,base_host_self_ns,other_host_self_ns,delta_host_self_ns,ratio_host_self_ns")
    assert run("compare", *SIDES, "--table", "nonsense").code == 2


def test_a_comparison_is_not_written_as_csv_without_a_table(run):
    result = run("compare", *SIDES, "--format", "csv")
    assert result.code == 2
    assert "name a table with --table" in result.err


def test_the_suffix_of_the_file_says_how_to_write(run, tmp_path):
    target = tmp_path / "found.md"
    assert run("compare", *SIDES, "-o", target).code == 0
    text = target.read_text()
    assert text.startswith("# stepscope compare")
    assert "## What caused it" in text


def test_a_side_alone_is_a_wrong_use(run):
    assert "--other is missing" in run("compare", "--base", SIDES[0]).err
    assert "--base is missing" in run("compare", "--other", SIDES[0]).err
    assert "is neither base nor other" in run("compare", SIDES[0], "--base", SIDES[0], "--other", SIDES[1]).err
    assert "BASE and OTHER are needed" in run("compare").err


def test_one_recording_alone_has_nothing_to_be_compared_with(run):
    result = run("compare", str(DEMO / "normal0"))
    assert result.code == 1
    assert "nothing to compare it with" in result.err


@pytest.mark.slow
def test_several_runs_are_grouped_by_what_they_do(run, tmp_path):
    for name in ("a", "b", "c"):
        side = "abnormal" if name == "c" else "normal0"
        shutil.copytree(DEMO / side, tmp_path / name)
    words = [tmp_path / name for name in ("a", "b", "c")]
    out = run("compare", *words).out
    assert out.startswith("3 processes, in 2 groups that do not do the same")
    found = json.loads(run("compare", *words, "--format", "json").out)
    assert [group["n_processes"] for group in found["groups"]] == [2, 1]
    assert run("compare", *words, "--format", "csv").code == 2


def test_a_folder_of_several_cases_names_them(run, tmp_path):
    for case in ("one", "two"):
        shutil.copytree(DEMO, tmp_path / case)
    result = run("compare", str(tmp_path))
    assert result.code == 1
    assert "2 cases: one, two" in result.err


@pytest.mark.slow
def test_the_calls_of_a_function_may_mark_the_cycles(run):
    found = json.loads(run("compare", *SIDES, "--anchor", "Optimizer.step#AdamW.step", "--format", "json").out)
    assert found["processes"][0]["base"][0]["anchor"] == "Optimizer.step#AdamW.step"
    assert found["causes"][0]["category"] == "data_loading"


@pytest.mark.slow
def test_a_run_beside_itself_is_no_difference(run):
    found = json.loads(run("compare", SIDES[0], SIDES[0], "--format", "json").out)
    assert found["verdict"] == "no_difference"
    assert found["step_time"]["delta_ns"] == 0


@pytest.mark.slow
def test_a_page_has_the_verdict_its_figure_and_what_was_named(run, tmp_path):
    assert run("compare", *SIDES, "-o", str(tmp_path / "out.html")).code == 0
    text = (tmp_path / "out.html").read_text()
    assert "Different: slower" in text
    assert "<title>normal0 – stepscope comparison</title>" in text
    assert "data-figure" in text
    assert run("compare", *SIDES, "--table", "parts", "-o", str(tmp_path / "parts.html")).code == 0
    assert 'id="figure-parts"' in (tmp_path / "parts.html").read_text()


def served(folder, ttft, n=2):
    """A profile, and requests to the engine in another place."""
    folder.mkdir()
    span = {"ph": "X", "cat": "user_annotation", "name": "x", "pid": 1, "tid": 1, "ts": 5.0, "dur": 2e6}
    (folder / "profile.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": [span]}))
    measured = folder.parent / f"{folder.name}.jsonl"
    measured.write_text("\n".join([json.dumps({"ttft": ttft, "e2e_latency": 2 * ttft})] * n))
    return str(folder), str(measured)


def test_each_run_has_requests_of_its_own_or_both_have_the_same(run, tmp_path):
    (before, slow), (after, fast) = served(tmp_path / "before", 0.4), served(tmp_path / "after", 0.1)
    words = ("compare", before, after, "--table", "requests", "--format", "csv", "--requests")

    def ttft(*paths):
        lines = [line.split(",") for line in run(*words, *paths).out.splitlines()]
        row = dict(zip(lines[0], next(line for line in lines[1:] if line[0] == "ttft"), strict=True))
        return float(row["base_mean_ns"]), float(row["other_mean_ns"])

    assert ttft(slow, "--requests", fast) == (400e6, 100e6)
    assert ttft(slow) == (400e6, 400e6)
    assert run(*words, *[slow, "--requests"] * 2, slow).code == 2
