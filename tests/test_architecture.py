"""The rules of the house. What is allowed is written here, in the open, and nothing else passes."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepscope import analyses

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "stepscope"
FILES = sorted(SRC.rglob("*.py"))
LONGEST = 400

#: Parts of the package, and the parts that each may import; its own modules besides.
FOUNDATION = ("errors", "intervals", "units", "schema", "summaries", "distinct", "names", "signature", "metrics")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "signature": (),
    "intervals": ("errors",),
    "units": ("errors",),
    "schema": ("errors",),
    "summaries": ("schema",),
    "distinct": (),
    "names": ("errors", "distinct"),
    "metrics": (),
    "hardware": ("errors",),
    # Where files are: local paths and URLs.
    "files": ("errors",),
    "trace": ("errors", "schema"),
    "store": (*FOUNDATION, "files", "trace"),
    "readers": (*FOUNDATION, "files", "trace", "store"),
    "analyses": (*FOUNDATION, "trace", "hardware"),
    "comparison": (*FOUNDATION, "trace", "analyses"),
    "diagnose": (*FOUNDATION, "comparison"),
    "compared": (*FOUNDATION, "comparison", "diagnose"),
    # What all ranks of a job say together.
    "ranks": (*FOUNDATION, "trace", "analyses"),
    # The Report as a value, which reports fill in and renderers see: all that renderers know of the layers above them.
    "reports.model": ("schema",),
    # Pictures of result tables as JSON holds them, for renderers and whoever makes a page of its own.
    "figures": ("errors", "units", "names"),
    "renderers": ("errors", "units", "names", "schema", "reports.model", "figures"),
    "reports": (*FOUNDATION, "files", "trace", "store", "analyses", "comparison", "ranks", "reports.model"),
    # What is made of each file of a run, here or elsewhere.
    "gathering": (*FOUNDATION, "files", "trace", "analyses", "ranks", "cluster"),
    "views": (*FOUNDATION, "trace", "analyses", "comparison", "ranks", "figures", "gathering"),
    "exports": ("errors", "reports"),
    "comparing": (*FOUNDATION, "trace", "comparison", "compared", "reports", "reports.model", "views"),
    "stitch": (*FOUNDATION, "trace", "analyses"),
    # How the files of a run are opened.
    "opening": (*FOUNDATION, "files", "trace", "readers", "stitch"),
    # SQL over the tables of traces and the results of analyses.
    "query": (*FOUNDATION, "files", "trace", "store", "analyses", "views"),
    # Applies a function to files, in processes; knows no trace.
    "cluster": ("errors", "files"),
    # Measures functions and knows no trace.
    "timing": ("errors", "units", "schema", "reports.model"),
    # Runs beside jobs, whose cores it must leave alone: it knows no tables.
    "record": ("errors",),
    # How values print, draw themselves in notebooks, and are plotted.
    "appearance": (
        "errors", "trace", "comparison", "reports", "reports.model", "views", "renderers", "figures", "timing",
    ),
    "api": (
        *FOUNDATION, "trace", "readers", "analyses", "reports.model", "reports", "views", "renderers", "exports",
        "stitch", "timing", "appearance", "comparison", "comparing", "query", "cluster", "store", "gathering",
        "opening",
    ),
    # The page: what the command line does, for a browser.
    "web": (
        *FOUNDATION, "trace", "readers", "comparison", "reports.model", "views", "renderers", "figures", "api",
        "query", "opening", "store",
    ),
    # The public names, each imported on first use.
    "": ("errors", "trace", "reports.model", "timing", "api"),
    "cli": (
        *FOUNDATION, "trace", "readers", "analyses", "reports.model", "views", "renderers", "api", "exports", "timing",
        "web", "comparison", "comparing", "reports", "files", "store", "record", "gathering", "",
    ),
    "__main__": ("cli",),
}  # fmt: skip

#: Modules without a test file of their own name, and where they are tested instead.
TESTED_ELSEWHERE: dict[str, str] = {
    "__main__.py": "cli/test_main.py",
    "cli/__init__.py": "cli/test_main.py",
    "comparing.py": "cli/test_compare.py",
    "comparison/_record.py": "comparison/test_comparison.py",
    "comparison/model.py": "reports/test_comparison.py",
    "figures/kernels.py": "figures/test_ranked.py",
    "figures/operators.py": "figures/test_ranked.py",
    "ranks/_record.py": "ranks/test_ranks.py",
    "readers/_record.py": "readers/test_readers.py",
    "readers/paddle/_recording.py": "readers/paddle/test_protobuf.py",
    "renderers/_record.py": "renderers/test_renderers.py",
    "reports/latencyprism/_words.py": "reports/latencyprism/test_report.py",
    "timing/__init__.py": "timing/test_bench.py",
    "web/_pages.py": "web/test_html.py",
    "web/_sections.py": "web/test_html.py",
    "web/_site.py": "web/test_html.py",
}
#: Modules that run the user's own code and hand on whatever it raises as that code's failure.
CATCH_ALL = ("timing/_blame.py",)
#: Modules that hold nothing to test.
EMPTY = ("reports/__init__.py", "web/__init__.py")


def named(path: Path) -> str:
    return str(path.relative_to(SRC))


each_file = pytest.mark.parametrize("path", FILES, ids=named)


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def part_of(module: str) -> str:
    """The part that a module belongs to: 'readers' of stepscope.readers._json."""
    words = module.split(".")[1:]
    return ".".join(words[:2]) if ".".join(words[:2]) in MAY_IMPORT else ".".join(words[:1])


def module_of(path: Path) -> str:
    words = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


def imported(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, anywhere in it and for types only too."""
    modules = {module_of(p) for p in FILES}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "stepscope")
        elif isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == "stepscope"):
            assert not node.level, f"{named(path)}:{node.lineno} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else str(node.module)


def public_definitions(path: Path) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes at the top of a module, and methods of those classes, that do not begin with _."""
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                inside = (n for n in node.body if isinstance(n, ast.FunctionDef))
                yield from (n for n in inside if not n.name.startswith("_"))


def test_the_parts_form_layers():
    order = list(graphlib.TopologicalSorter(MAY_IMPORT).static_order())
    assert set(order) == set(MAY_IMPORT)
    assert {part_of(module_of(path)) for path in FILES} <= set(MAY_IMPORT)


@each_file
def test_imports_run_downward_only(path):
    part = part_of(module_of(path))
    wrong = {m for m in imported(path) if part_of(m) != part and part_of(m) not in MAY_IMPORT[part]}
    assert not wrong, f"{part or 'stepscope'} must not import {wrong}"


@each_file
def test_modules_are_short(path):
    n_lines = len(path.read_text(encoding="utf-8").splitlines())
    assert n_lines <= LONGEST, f"{n_lines} lines; split it by topic"


@each_file
def test_only_the_command_line_prints(path):
    if part_of(module_of(path)) == "cli":
        return
    calls = (n for n in ast.walk(tree(path)) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name))
    assert not [call.lineno for call in calls if call.func.id == "print"]


@each_file
def test_no_handler_catches_everything(path):
    broad = []
    for handler in (n for n in ast.walk(tree(path)) if isinstance(n, ast.ExceptHandler)):
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        named_kinds = [ast.unparse(kind) if kind else "BaseException" for kind in kinds]
        broad += [handler.lineno for kind in named_kinds if kind.split(".")[-1] in {"Exception", "BaseException"}]
    assert bool(broad) == (named(path) in CATCH_ALL)


@each_file
def test_what_is_public_is_documented(path):
    assert ast.get_docstring(tree(path)), "the module has no docstring"
    if any(part.startswith("_") for part in path.relative_to(SRC).with_suffix("").parts if part != "__init__"):
        return
    assert not [node.name for node in public_definitions(path) if not ast.get_docstring(node)]


@pytest.mark.parametrize("name", analyses.names())
def test_an_analysis_says_its_units_and_where_its_definition_is_from(name):
    text = analyses.find(name).run.__doc__ or ""
    assert "Units:" in text
    assert "Source:" in text


def mirror(path: Path) -> Path:
    """Where the tests of a module are: tests/x/test_y.py for x/_y.py, tests/x/test_x.py for x/__init__.py."""
    name = path.parent.name if path.stem == "__init__" else path.stem.removeprefix("_")
    usual = path.relative_to(SRC).parent / f"test_{name}.py"
    return ROOT / "tests" / TESTED_ELSEWHERE.get(named(path), usual)


@each_file
def test_tests_mirror_the_source(path):
    if named(path) not in EMPTY:
        assert mirror(path).exists()


def test_no_exception_to_that_is_out_of_date():
    names = {named(path) for path in FILES}
    assert {*TESTED_ELSEWHERE, *EMPTY} <= names
    assert not [name for name in EMPTY if len(tree(SRC / name).body) > 1]


def modules_after(code: str, *arguments: str) -> set[str]:
    """Names of the modules that a new interpreter holds after it has run the code."""
    code += "\nimport sys; sys.stderr.write('\\nmodules: ' + ' '.join({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("modules: ")[2].split())


def test_importing_the_package_and_asking_for_help_import_nothing_slow():
    loaded = modules_after("import stepscope, stepscope.cli\nassert stepscope.cli.main(['--help']) == 0")
    assert not loaded & {"polars", "numpy", "msgspec", "isal", "zstandard", "scipy", "plotly", "duckdb"}


def test_a_report_imports_none_of_the_heavy_or_optional_packages(examples):
    code = "import sys, stepscope.cli\nassert stepscope.cli.main(['report', sys.argv[1]]) == 0"
    loaded = modules_after(code, str(examples / "demo-cpu-decode"))
    assert not loaded & {"scipy", "plotly", "duckdb", "pandas", "jinja2", "starlette", "dask", "sklearn", "torch"}
