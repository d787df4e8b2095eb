from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from stepscope.timing import BENCH

DOCS = Path(__file__).parents[2] / "docs"
MODULE = """
import numpy as np


def double(x):
    return x * 2


def twice(x, n=2):
    return x + x


def off(x):
    return x * np.float32(2.5)


def short(x):
    return x[:1]


def nothing(x):
    return None


def deep(n):
    return 1 / (n - n)


def fails(n=3):
    return deep(n)


def chatty(n=1):
    print("said by the function")
    return n


def threads():
    import os
    return os.environ["OPENBLAS_NUM_THREADS"]


seven = 7
"""
X = 'x={"shape": [3, 4]}'
FAST = ("--repeats", "7", "--warmup", "0")


@pytest.fixture
def bench(run, tmp_path, monkeypatch):
    """`stepscope bench` in a folder that holds a module of functions."""
    (tmp_path / "functions_to_time.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)

    def call(function, *words):
        words = [word.replace("@", "functions_to_time:") for word in words]
        return run("bench", function.replace("@", "functions_to_time:"), *words)

    yield call
    sys.modules.pop("functions_to_time", None)


def test_a_function_is_timed_in_each_case_of_a_sweep(bench, tmp_path):
    (tmp_path / "s.toml").write_text('[variables]\nn = [2, 3]\n[arguments]\nx = {shape = ["n", 4]}\n')
    result = bench("@double", "--against", "@twice", "--sweep", "s.toml", *FAST)
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert [line.split()[:2] for line in lines if line.startswith("functions_to_time:")] == [
        ["functions_to_time:double", "2"], ["functions_to_time:twice", "2"],
        ["functions_to_time:double", "3"], ["functions_to_time:twice", "3"],
        ["functions_to_time:double", "2"], ["functions_to_time:double", "3"],
    ]  # fmt: skip
    assert "100 %" in result.out
    assert "bound the median at 95 % or more" in result.out


def test_programs_get_every_column_unrounded(bench, tmp_path):
    words = ("@double", "--against", "@twice", "--arg", X, *FAST)
    rows = json.loads(bench(*words, "--format", "json").out)
    assert [row["role"] for row in rows] == ["function", "reference"]
    assert rows[0]["equal_ratio"] == 1
    assert set(rows[0]) == {*BENCH.dtypes, "x"}
    table = list(csv.DictReader(io.StringIO(bench(*words, "--format", "csv").out)))
    assert table[0]["x"] == "float32[3, 4]"
    assert float(table[0]["median_ns"]) > 0
    assert bench(*words, "-o", "out.parquet").out == ""
    assert pl.read_parquet(tmp_path / "out.parquet")["speedup_confidence_ratio"][0] >= 0.95
    assert bench(*words, "-o", "out.md").code == 0
    assert (tmp_path / "out.md").read_text().count("| function |") == 2


def test_a_file_is_refused_before_the_work_if_it_exists(bench, tmp_path):
    (tmp_path / "out.csv").write_text("precious")
    result = bench("@fails", "-o", "out.csv")
    assert (result.code, "out.csv exists already" in result.err) == (1, True)
    assert bench("@chatty", *FAST, "-o", "out.csv", "--force").code == 0


def test_what_the_function_prints_does_not_get_into_the_table(bench):
    result = bench("@chatty", *FAST, "--format", "csv")
    assert "said by the function" in result.err
    assert "said by the function" not in result.out


def test_arguments_are_json_or_text_and_python_s_own_words(bench):
    rows = json.loads(bench("@chatty", "--arg", "n=True", *FAST, "--format", "json").out)
    assert rows[0]["n"] is True
    rows = json.loads(bench("@chatty", "--arg", "n=a=b", *FAST, "--format", "json").out)
    assert rows[0]["n"] == "a=b"
    rows = json.loads(bench("@twice", "--arg", "x=1.5", "--arg", "n=7", *FAST, "--format", "json").out)
    assert (rows[0]["x"], rows[0]["n"]) == (1.5, 7)


def test_a_failing_function_shows_its_own_traceback_and_one_error(bench, tmp_path):
    result = bench("@fails", *FAST)
    lines = result.err.splitlines()
    assert (result.code, result.out) == (1, "")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{tmp_path / "functions_to_time.py"}", line 30, in fails'
    assert "ZeroDivisionError: division by zero" in lines
    assert lines[-2] == "error: functions_to_time:fails raised ZeroDivisionError: division by zero"
    assert lines[-1].startswith("hint: ")
    assert "stepscope" not in "".join(lines[:-2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_module:f"], "no module named 'no_such_module'"),
        (["@dobule"], "functions_to_time has no function 'dobule'"),
        (["@seven"], "functions_to_time:seven is of type int and cannot be called"),
        (["@double", "--against", "@no"], "functions_to_time has no function 'no'"),
        (["@double", "--sweep", "none.toml"], "cannot read none.toml"),
        (["@double", "--sweep", "broken.toml"], "broken.toml is not valid TOML"),
        (["@double", "--sweep", "functions_to_time.py"], "functions_to_time.py is not a sweep file"),
        (["@double", "--arg", "y=1"], "cannot be called with y"),
        (["@double", "--arg", 'x={"shape": ["n"]}'], "'n' is not a size"),
        (["@double", "--against", "@short", "--arg", X], r"differ in shape: \(3, 4\) and \(1, 4\)"),
        (["@double", "--against", "@nothing", "--arg", X], "the reference returns nothing"),
    ],
)
def test_bad_input_is_one_clear_error(bench, tmp_path, words, message):
    (tmp_path / "broken.toml").write_text("a = [")
    result = bench(*words, *FAST)
    assert (result.code, result.out) == (1, "")
    errors = result.err.splitlines()
    assert len(errors) == 2
    assert re.match(f"error: .*{message}", errors[0])
    assert errors[1].startswith("hint: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing argument"),
        (["double"], "not of the form MODULE:FUNCTION"),
        (["@double", "--against", "double"], "not of the form MODULE:FUNCTION"),
        (["@double", "--repeats", "3", "--seconds", "1"], "not both"),
        (["@double", "--repeats", "0"], "Invalid value for '--repeats'"),
        (["@double", "--warmup", "-1"], "Invalid value for '--warmup'"),
        (["@double", "--seconds", "0"], "not a time above 0"),
        (["@double", "--seconds", "nan"], "not a time above 0"),
        (["@double", "--arg", "x"], "NAME=VALUE"),
        (["@double", "--arg", "=3"], "NAME=VALUE"),
        (["@double", "--dtype-tolerance", "float32"], "DTYPE=RTOL"),
        (["@double", "--dtype-tolerance", "float32=1,2,3"], "DTYPE=RTOL"),
        (["@double", "--dtype-tolerance", "float32=-1"], "DTYPE=RTOL"),
        (["@double", "--fail-on-difference"], "needs --against"),
        (["@double", "--format", "bogus"], "no format named 'bogus'"),
    ],
)
def test_mistakes_of_usage_are_told(bench, run, words, message):
    result = bench(*words) if words else run("bench")
    assert (result.code, result.out) == (2, "")
    assert message in result.err


def test_a_difference_fails_only_if_asked_to(bench):
    words = ("@double", "--against", "@off", "--arg", X, *FAST)
    assert bench(*words).code == 0
    result = bench(*words, "--fail-on-difference")
    assert result.code == 3
    assert result.err == "error: 1 of 1 cases differ by more than the tolerance\n"
    assert "within" in result.out  # the table is there all the same
    assert bench(*words, "--fail-on-difference", "--dtype-tolerance", "float32=0.5").code == 0
    assert bench(*words, "--fail-on-difference", "--dtype-tolerance", "float32=0,100").code == 0
    assert bench("@double", "--against", "@twice", "--arg", X, *FAST, "--fail-on-difference").code == 0


def test_a_gate_with_nothing_to_compare_fails(bench):
    result = bench("@nothing", "--against", "@nothing", "--arg", X, *FAST, "--fail-on-difference")
    assert (result.code, result.err) == (3, "error: 1 of 1 cases returned nothing to compare\n")


def test_progress_is_shown_at_a_terminal_only(bench, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert bench("@double", "--arg", X, *FAST).code == 0
    assert "measuring case 1 of 1" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    before = len(terminal.getvalue())
    bench("@double", "--arg", X, *FAST, "--no-progress")
    assert len(terminal.getvalue()) == before


def test_help_needs_nothing_heavy():
    code = (
        "import sys; from stepscope.cli import main; main(['bench', '--help']); "
        "print([m for m in ('polars', 'numpy', 'scipy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "--fail-on-difference" in out
    assert out.splitlines()[-1] == "[]"


@pytest.mark.slow
def test_the_function_has_all_threads_of_blas_and_nothing_heavy_beside_it(tmp_path):
    (tmp_path / "functions_to_time.py").write_text(MODULE)
    code = (
        "import sys; from stepscope.cli import main; "
        "code = main(['bench', 'functions_to_time:threads', '--repeats', '1']); "
        "print(code, [m for m in ('scipy', 'duckdb', 'torch', 'paddle') if m in sys.modules])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert done.stdout.splitlines()[-1] == "1 []"
    assert "KeyError: 'OPENBLAS_NUM_THREADS'" in done.stderr  # it was not set: one thread is for our own verbs


def docs_example(tmp_path):
    text = (DOCS / "bench.md").read_text(encoding="utf-8")
    for language, name in (("python", "attention.py"), ("toml", "sizes.toml")):
        block = re.search(rf"```{language}\n(# {name}\n.*?)```", text, re.DOTALL)
        smaller = block[1].replace("[256, 512]", "[8, 16]")  # so small that BLAS starts no threads
        (tmp_path / name).write_text(smaller, encoding="utf-8")
    (tmp_path / "sort.json").write_text(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1], encoding="utf-8")
    return text


@pytest.mark.slow
def test_the_example_of_the_docs_works(bench, tmp_path):
    text = docs_example(tmp_path)
    result = bench("attention:blocked", "--against", "attention:naive", "--sweep", "sizes.toml", *FAST)
    assert result.code == 0
    header = [line.split() for line in result.out.splitlines() if line.startswith("function ")]
    assert header == [line.split() for line in text.splitlines() if line.startswith("function ")]
    result = bench("numpy:sort", "--sweep", "sort.json", *FAST, "--format", "json")
    assert [(row["n"], row["kind"]) for row in json.loads(result.out)] == [
        (1000, "quicksort"), (1000, "stable"), (10000, "quicksort"), (10000, "stable"), (1000000, "stable"),
    ]  # fmt: skip
    python = re.search(r"## From Python\n\n```python\n(.*?)```", text, re.DOTALL)[1]
    sys.path.insert(0, str(tmp_path))
    try:
        exec(compile(python, "docs/bench.md", "exec", dont_inherit=True), {"__name__": "docs"})
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("attention", None)


def test_every_column_is_in_the_docs():
    text = (DOCS / "bench.md").read_text(encoding="utf-8")
    assert not [name for name in BENCH.dtypes if f"`{name}`" not in text]
