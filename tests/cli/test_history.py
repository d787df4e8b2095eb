from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow

N_STEPS = 8


def recorded(path, *, at_s: int, operator_us: int, shape: int = 64):
    """A recording of eight steps, in each of which one product of matrices takes so long. Returns its path."""
    events, start = [], 0
    for step in range(N_STEPS):
        took = operator_us + (step * 7 + at_s) % 5
        args = {"Input Dims": [[shape, 64], [64, 64]], "Input type": ["float", "float"]}
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1, "ts": start,
             "dur": took + 1000},
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": start + 500, "dur": took,
             "args": args},
        ]  # fmt: skip
        start += took + 1000
    document = {"schemaVersion": 1, "baseTimeNanoseconds": at_s * 10**9, "traceEvents": events}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return str(path)


@pytest.fixture
def store(tmp_path, run):
    """Six runs of 10 ms and three of 12 ms."""
    for i in range(9):
        path = recorded(tmp_path / f"run{i}.json", at_s=1000 + i, operator_us=9_000 if i < 6 else 11_000)
        assert run("history", "add", path, "--to", str(tmp_path / "store"), "--label", f"night {i}").code == 0
    return str(tmp_path / "store")


def test_a_regression_is_named_with_its_run_and_what_moved(store, run) -> None:
    out = run("history", store).out
    assert out.startswith("9 runs, 1970-01-01 · step 12 ms · 1 change, the last: 20 % slower since run 7 (night 6)")
    assert "operators +2 ms per step; most of it in aten::mm (host) +2 ms" in out
    assert "stepscope compare" in out


def test_the_gate_fails_a_recent_regression_only(store, run) -> None:
    failed = run("history", store, "--fail-on", "regression:5%")
    assert failed.code == 3
    assert "failed: 20 % slower since run 7" in failed.err
    assert run("history", store, "--fail-on", "regression:25%").code == 0
    assert run("history", store, "--fail-on", "regression", "--within", "2").code == 0


def test_json_has_all_runs_and_changes(store, run) -> None:
    document = json.loads(run("history", store, "--format", "json").out)
    assert document["schema"] == "stepscope.history/1"
    (change,) = document["changes"]
    assert (change["run"], change["kind"], round(change["change_ratio"], 2)) == (7, "regression", 0.2)
    assert [row["label"] for row in document["runs"]] == [f"night {i}" for i in range(9)]


@pytest.mark.parametrize("suffix", ["csv", "md", "html", "parquet"])
def test_other_formats_have_all_runs(store, run, tmp_path, suffix) -> None:
    target = tmp_path / f"series.{suffix}"
    assert run("history", store, "-o", str(target)).code == 0
    assert target.stat().st_size > 500


def test_other_sizes_are_no_regression(store, run, tmp_path) -> None:
    for i in range(3):
        path = recorded(tmp_path / f"larger{i}.json", at_s=2000 + i, operator_us=16_000, shape=96)
        run("history", "add", path, "--to", store)
    result = run("history", store, "--fail-on", "regression", "--within", "3")
    assert "Other work since run 10: 42 % slower" in result.out
    assert result.code == 0


def test_a_run_is_added_once(tmp_path, run) -> None:
    path = recorded(tmp_path / "run.json", at_s=1, operator_us=900)
    assert "added: 8 steps of 1.9 ms" in run("history", "add", path, "--to", str(tmp_path / "s")).err
    assert "is in" in run("history", "add", path, "--to", str(tmp_path / "s")).err
    assert "1 run," in run("history", str(tmp_path / "s")).out


def test_a_damaged_digest_is_left_out_with_a_warning(store, run, tmp_path) -> None:
    head = min((tmp_path / "store").glob("*.head.json"))
    head.write_bytes(head.read_bytes()[:30])
    result = run("history", store)
    assert result.code == 0
    assert "warning: left out:" in result.err
    assert result.out.startswith("8 runs")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "there is no run in nowhere"),
        (["add", "--to", "s"], 2, "name a run and a store"),
        (["add", "x.json"], 2, "name a run and a store"),
        (["one", "two"], 2, "name one store, not 2"),
        (["s", "--label", "x"], 2, "belong to 'stepscope history add"),
        (["s", "--fail-on", "slower"], 2, "not a condition"),
        (["add", "missing.json", "--to", "s"], 1, "missing.json"),
    ],
)
def test_wrong_calls_say_what_to_do(arguments, code, message, run, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("history", *arguments)
    assert result.code == code
    assert message in result.err
    assert not (tmp_path / "s").exists()
