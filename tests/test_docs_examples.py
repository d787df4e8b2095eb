"""What the how-to pages show is what happens: Python examples run, captures of commands on the demo traces hold."""

from __future__ import annotations

import gzip
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from stepscope.cli import main
from stepscope.readers.common import columns

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CAPTURE = re.compile(r"^```\n(\$ stepscope .*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"\.add\(\s*\"([a-z0-9_]+)\"|\(\"(no_launch|no_operator)\",")


def captures():
    """Page, command and expected output of each capture that needs nothing but the demo traces."""
    for path in sorted(DOCS.glob("*.md")):
        for block in CAPTURE.findall(path.read_text(encoding="utf-8")):
            for shown in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
                command, _, output = shown.partition("\n")
                if "examples/" in command:
                    yield pytest.param(command, output, id=f"{path.name}: {command[:60]}")


@pytest.mark.slow
def test_python_examples_run_in_order(monkeypatch):
    monkeypatch.chdir(ROOT)
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) >= 5
    space = {"__name__": "docs"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec", dont_inherit=True), space)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "output"), list(captures()))
def test_captures_show_what_the_command_prints(command, output, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).splitlines()
    shown = [line for line in output.rstrip("\n").splitlines() if line != "…"]
    missing = [line for line in shown if line not in lines]
    assert not missing, f"the page shows otherwise; it prints\n{printed.out}{printed.err}"


def test_every_issue_code_of_the_readers_is_explained():
    folder = Path(columns.__file__).parents[1]
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py")))
    codes = {one or other for one, other in CODE.findall(source)}
    text = (DOCS / "damaged.md").read_text(encoding="utf-8")
    assert len(codes) > 20
    assert not [code for code in sorted(codes) if f"| `{code}` |" not in text]


def test_the_modelled_profile_is_what_its_script_writes(tmp_path, monkeypatch):
    target = tmp_path / "decoder.csv.gz"
    monkeypatch.setattr(sys, "argv", ["model_ncu_demo.py", str(target)])
    runpy.run_path(str(ROOT / "examples" / "model_ncu_demo.py"), run_name="__main__")
    written, kept = (gzip.decompress(p.read_bytes()) for p in (target, ROOT / "examples" / "demo-ncu" / target.name))
    assert written == kept
