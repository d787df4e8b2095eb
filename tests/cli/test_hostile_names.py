"""A trace whose every name is hostile, asked through every verb, format, table and export."""

from __future__ import annotations

import csv
import io
import json
import re
import sys

import pytest

from stepscope import exports, renderers
from stepscope.api import verbs
from stepscope.cli import VERBS, main
from stepscope.core.errors import StepscopeError
from stepscope.core.report import Block
from stepscope.query import tables
from stepscope.renderers import Screen

#: Title of a terminal, colour, C1, delete, directions, zero width, separator, lines, markup of four kinds.
EVIL = "\x1b]0;x\x07\x1b[31m\x9b2J\x7f\u202e\u2066\u200b\u2028\n|`a`</script><img src=x onerror=hacked()>[red]\t\r=c"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
FORMATS = renderers.RENDERERS.names()


def document(rank: int) -> dict:
    def span(cat: str, name: str, ts: int, dur: int, tid: int = 1, pid: int = 1, **args) -> dict:
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": pid, "args": args}

    collective = {"Collective name": "allreduce" + EVIL, "dtype": "Float" + EVIL, "In msg nelems": 9, "Group size": 2,
                  "Process Group Name": "g" + EVIL, "Process Group Description": EVIL}  # fmt: skip
    events = [
        {"ph": "M", "name": what, "pid": pid, "tid": 1, "ts": 0, "args": {key: sign + EVIL}}
        for pid, sign in ((1, "="), (0, "@"))
        for what, key in (("process_name", "name"), ("thread_name", "name"), ("process_labels", "labels"))
    ]
    for step in range(6):
        at = 1_000 + 1_100 * step
        events += [
            span("user_annotation", f"ProfilerStep#{step}", at, 1_000),
            span("user_annotation", "-range" + EVIL, at + 1, 900),
            span("python_function", "+mod.py(3): f" + EVIL, at + 2, 880, **{"Python id": step + 1}),
            span("python_function", f"nn.Module: Lin{EVIL}_0", at + 3, 870, **{"Python id": step + 90}),
            {"ph": "C", "name": "counter" + EVIL, "pid": 1, "tid": 1, "ts": at, "args": {"v" + EVIL: 3}},
        ]
        for i, kernel in enumerate(("=gemm", "@ncclDevKernel_AllReduce_RING_LL", "-attention", "\tx")):
            link, ts = {"correlation": 10 * step + i + 1}, at + 10 + 100 * i
            shapes = {"Input Dims": [[4, 5]], "Input type": ["float" + EVIL], "Call stack": f"a.py{EVIL}(3): g"}
            events += [
                span("cpu_op", "=aten::mm" + EVIL, ts, 80, **{"External id": link["correlation"], **shapes}),
                span("cuda_runtime", "cudaLaunchKernel", ts + 10, 10, **link),
                span("kernel", kernel + EVIL, ts + 30, 70, 7, 0, **link, **(collective if i == 1 else {})),
            ]  # fmt: skip
    events.append(span("weird" + EVIL, "neg" + EVIL, -5, -7))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "H100" + EVIL, "numSms": 132}],
        "distributedInfo": {"backend": "nccl" + EVIL, "rank": rank, "world_size": 2},
        "host_name": "h" + EVIL,
        "traceEvents": events,
    }


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Two files, whose names are hostile too."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = [folder / f"{rank}=\x1b[31m\u202e.json" for rank in (0, 1)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(document(rank)))
    return [str(path) for path in paths]


def shown(capsys, *words: str) -> str:
    """What a command writes: refused or not, there is something to read, and nothing in it that a terminal obeys."""
    main(list(words))
    captured = capsys.readouterr()
    text = captured.out + captured.err
    assert text
    assert not OBEYED.search(text), (words[0], OBEYED.search(text))
    return text


WORDS = {
    "report": [["{}"], ["{}", "{1}", "--workers", "0"], ["\x1b[31m"], ["--bad\x1b[31m"], ["{}", "--counters", "\x1b"]],
    "show": [["spans", "{}"], ["spans", "{}", "{1}"], ["\x1b[2J", "{}"], ["spans", "{}", "--where", "\x1b[2J"]],
    "predict": [["{}"], ["{}", "--if", "kernel ~ \x1b[2J: 2x"], ["{}", "--if", "\x1b[2J: 2x"]],
    "compare": [["{}", "{1}"], ["{}", "\x1b"], ["{}", "{1}", "--table", "kinds"], ["{}", "{1}", "--table", "kernels"]],
    "serve": [["\x1b[2J"], ["{}", "--host", "\x1b[2J"]],
    "sql": [["{}", 'SELECT name AS "\x1b[2J" FROM spans'], ["{}", "SELECT '\x1b'"], ["{}", 'SELECT "\x1b" FROM spans']],
    "record": [["-o", "\x1b[2J"], ["--dump", "\x1b[2J"]],
    "history": [["add", "{}", "{1}", "--to", "s", "--label", EVIL, "--commit", EVIL], ["s"], ["s", "--format", "csv"],
                ["\x1b[2J"]],
    "hang": [["--pid", "\x1b[2J"], ["--pid", "1", "-o", "\x1b[2J", "--format", "\x1b"]],
    "export": [["{}", "--to", name] for name in [*exports.names(), "\x1b[2J"]],
    "tables": [[], ["\x1b[2J"]],
    "formats": [[], ["--format", "\x1b[2J"]],
    "bench": [["\x1b[2J"], ["\x1b[2J:f"]],
    "cache": [[], ["\x1b[2J"]],
    "mcp": [["\x1b[2J"], ["{}", "--http", "\x1b[2J"]],
    "skill": [[], ["\x1b[2J"]],
    "watch": [["--follow", "\x1b[2J"], ["--follow", ".", "--false-alarms", "\x1b[2J"], ["-o", "\x1b[2J"]],
    "schema": [["report"], ["\x1b[2J"], ["show", "\x1b[2J"]],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_writes_what_a_terminal_obeys(verb, hostile, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stepscope.record.step_times._APPEARS_S", 0.1)  # how long `watch` waits for the folder
    for words in WORDS[verb]:
        shown(capsys, verb, *(word.replace("{}", hostile[0]).replace("{1}", hostile[1]) for word in words))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_no_format_of_a_report_writes_what_a_terminal_obeys(form, hostile, capsys):
    if renderers.find(form).report is not None:
        assert "img" in shown(capsys, "report", *hostile, "--format", form, "--workers", "0")
        shown(capsys, "compare", *hostile, "--format", form)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_format_of_any_table_holds_what_a_terminal_obeys(hostile):
    run, asked = verbs.load_run(hostile), []
    for name, kind in tables.names():
        if kind == "comparison":
            continue
        try:
            frame, schema = tables.collect(run, tables.find(name), on_missing=lambda *_: None)
        except StepscopeError:
            continue
        asked.append(name)
        for form in FORMATS:
            text = renderers.find(form).table(Block(name, schema, frame.head(50)), Screen())
            assert isinstance(text, bytes) or renderers.find(form).exact or not OBEYED.search(text), (name, form)
    assert len(asked) > 30


@pytest.mark.slow
def test_a_pipe_gets_exact_names_only_if_it_asks_for_them(hostile, capsys):
    words = ["sql", hostile[0], "SELECT name, -5 AS number FROM spans WHERE category = 'kernel'"]
    main([*words, "--format", "json"])
    exact = [row["name"] for row in json.loads(capsys.readouterr().out)]
    assert any(name == "=gemm" + EVIL for name in exact)
    main([*words, "--format", "csv-raw"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out, newline="")))
    assert [row["name"] for row in rows] == exact
    assert {row["number"] for row in rows} == {"-5"}
    main([*words, "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out, newline="")))
    assert all(row["name"].startswith("'") for row in rows)
    assert {row["number"] for row in rows} == {"-5"}


def test_a_terminal_gets_escapes_even_of_exact_text(hostile, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown(capsys, "show", "spans", hostile[0], "--format", "csv-raw")
