"""The docs cannot go stale: generated pages are what the code says now, and nothing that users can name is missing."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from stepscope import analyses, readers, renderers
from stepscope.cli import VERBS
from stepscope.core import schema
from stepscope.core.errors import CorruptInput
from stepscope.core.report import Block
from stepscope.readers import formats

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for folder in (ROOT, DOCS, ROOT / "examples", *DOCS.glob("*/")) for path in folder.glob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def load_generator():
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "scripts" / "generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generator = load_generator()


def page(name):
    return (DOCS / name).read_text(encoding="utf-8")


def section(text, heading):
    """What stands under a heading of the second level."""
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", generator.PAGES)
def test_generated_pages_are_fresh(name):
    assert (ROOT / name).read_text(encoding="utf-8") == generator.PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("table", schema.TABLES.values(), ids=lambda t: t.name)
def test_every_table_and_column_of_a_trace_is_in_the_docs(table):
    text = page(f"tables/{table.name}.md")
    assert not [c.name for c in table.columns if f"`{c.name}`" not in text or c.doc not in text]


@pytest.mark.parametrize("name", analyses.names())
def test_every_analysis_with_its_columns_and_options_is_in_the_docs(name):
    found, text = analyses.find(name), page(f"analyses/{name}.md")
    assert not [c.name for c in found.output.columns if f"`{c.name}`" not in text]
    assert not [o for o in found.options() if f"`--{o.replace('_', '-')}`" not in text]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_in_the_docs(verb):
    assert f"stepscope {verb}" in page(f"cli/{verb}.md")


def test_every_format_is_in_the_docs():
    text = page("formats.md")
    assert not [r.name for r in readers.readers() if f"| {r.name} |" not in text]
    assert not [name for name in renderers.RENDERERS.modules if f"| {name} |" not in text]


def test_the_index_leads_to_every_page():
    linked = set(LINK.findall(page("README.md")))
    assert {p.name for p in DOCS.glob("*.md")} - {"README.md"} <= linked


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    targets = [t for t in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in t]
    assert not [t for t in targets if not (path.parent / t).exists()]


@pytest.mark.slow
def test_check_names_what_is_out_of_date(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["generate_docs.py", "--check"])
    assert generator.main() == 1
    assert "tables.md" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr("sys.argv", ["generate_docs.py"])
    assert generator.main() == 0
    monkeypatch.setattr("sys.argv", ["generate_docs.py", "--check"])
    assert generator.main() == 0


def examples_in_contributing():
    """The example files of CONTRIBUTING by their path, as modules' namespaces."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n# your_package/(\S+)\n(.*?)```", text, re.DOTALL)
    spaces = {path: {"__name__": path} for path, _ in blocks}
    for path, code in blocks:
        exec(compile(code, path, "exec", dont_inherit=True), spaces[path])
    return spaces


def format_in_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = re.search(r"# src/stepscope/readers/timings/__init__.py\nFORMATS = (.*?)```", text, re.DOTALL)[1]
    return eval(code, vars(formats))[0]


def test_the_examples_in_contributing_work(tmp_path):
    spaces = examples_in_contributing()
    reader, analysis, renderer = (
        spaces[path][record]
        for path, record in (
            ("timings.py", "READER"),
            ("categories.py", "ANALYSIS"),
            ("tsv.py", "RENDERER"),
        )
    )
    sample = tmp_path / "sample.csv"
    sample.write_text("name,ts_ns,dur_ns\nb,20,5\na,10,30\nc,11,2\n")
    assert format_in_contributing().sniff(str(sample), sample.read_bytes()) == 1
    assert reader.sniff(str(sample), sample.read_bytes()) == 1
    trace = reader.read(readers.Source(str(sample)))
    assert trace.spans["name"].to_list() == ["a", "c", "b"]
    found = analysis(trace, min_dur_ns=5)
    assert found.to_dict(as_series=False) == {"category": ["other"], "count": [2], "total_ns": [35]}
    assert analysis.options()["min_dur_ns"].flag == "--min-dur-ns"
    text = renderer.table(Block("categories", analysis.output, found), renderers.Screen())
    assert text == "category\tcount\ttotal_ns\nother\t2\t35\n"
    sample.write_text("name,ts_ns,dur_ns\na,soon,30\n")
    with pytest.raises(CorruptInput, match=r"sample\.csv"):
        reader.read(readers.Source(str(sample)))


def test_no_page_is_too_long_to_read():
    lengths = {p: len(p.read_text(encoding="utf-8").splitlines()) for p in PAGES if p.name != "CHANGELOG.md"}
    assert {str(path): n for path, n in lengths.items() if n > 250} == {}
    assert lengths[ROOT / "README.md"] <= 120


def test_pictures_are_small():
    assert sum(path.stat().st_size for path in (DOCS / "images").iterdir()) <= 1_000_000
