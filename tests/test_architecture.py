"""The laws of the house, read off the code. Each test lists every offender; there are no lists of exceptions."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stepscope import analyses
from stepscope.readers.formats import FORMATS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "stepscope"
FILES = sorted(SRC.rglob("*.py"))
LONGEST = 500

#: The rooms, and the rooms that each may import. A room that is not here does not exist.
MAY_IMPORT: dict[str, str] = {
    "core": "",
    "store": "core",
    "readers": "core store",
    "analyses": "core",
    "renderers": "core",
    "timing": "core",
    "record": "core",
    "comparison": "core analyses",
    "query": "core analyses renderers store",
    "reports": "core analyses comparison store",
    "exports": "core analyses comparison store",
    "api": "core store readers analyses renderers timing comparison query reports exports",
    "web": "core store readers analyses renderers query api",
    "agents": "core store readers query reports api",
    "watching": "core record",
    "cli": "core store readers analyses renderers timing record comparison query reports exports api web agents "
    "watching",
}
#: Of core, `record` may import only what needs no tables: it runs beside jobs, whose cores it must leave alone.
RECORD_MAY_IMPORT = ("stepscope.core.errors", "stepscope.core.version", "stepscope.core.prometheus")


class Import(NamedTuple):
    """`name` is what is imported from the module `target`, in line `line`."""

    target: str
    name: str
    line: int


def module_of(path: Path) -> str:
    words = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(words[:-1] if words[-1] == "__init__" else words)


MODULES = {module_of(path): path for path in FILES}


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    """What a file of ours imports of ours, anywhere in it and for types only too."""
    found = []
    for node in ast.walk(tree(MODULES[module])):
        if isinstance(node, ast.Import):
            found += [Import(a.name, "", node.lineno) for a in node.names if a.name.split(".")[0] == "stepscope"]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}:{node.lineno} imports relatively"
            if (node.module or "").split(".")[0] == "stepscope":
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    is_module = inner in MODULES
                    target, name = (inner, "") if is_module else (str(node.module), alias.name)
                    found.append(Import(target, name, node.lineno))
    return tuple(found)


def none_of(offenders: Iterable[str]) -> None:
    """Fails, and lists each offender once, if there are any."""
    listed = sorted(set(offenders))
    assert not listed, "\n" + "\n".join(listed)


def test_the_package_has_its_rooms_and_hardly_a_file_beside_them():
    assert {path.name for path in SRC.iterdir() if (path / "__init__.py").exists()} == set(MAY_IMPORT)
    assert {path.name for path in SRC.glob("*.py")} <= {"__init__.py", "__main__.py", "plugins.py"}


def test_the_rooms_form_layers():
    assert list(
        graphlib.TopologicalSorter({room: allowed.split() for room, allowed in MAY_IMPORT.items()}).static_order()
    )


def imports_in_words(room: str) -> str:
    """What a room may import, as the table of rooms in CONTRIBUTING says it."""
    allowed = MAY_IMPORT[room].split()
    above = list(MAY_IMPORT)[: list(MAY_IMPORT).index(room)]
    missing = [other for other in above if other not in allowed]
    if len(allowed) > 4 and len(missing) < 2:
        return "all above" + "".join(f" but `{other}`" for other in missing)
    return ", ".join(f"`{other}`" for other in allowed) or "nothing"


def test_contributing_says_what_each_room_may_import():
    rows = re.findall(
        r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE
    )
    assert rows == [(room, imports_in_words(room)) for room in MAY_IMPORT]


@pytest.mark.slow
def test_imports_run_downward_only():
    wrong = (
        f"{module}:{line} imports {target}"
        for module in MODULES
        for target, _, line in imports_of(module)
        if room_of(module) in MAY_IMPORT
        and room_of(target) not in (room_of(module), *MAY_IMPORT[room_of(module)].split())
    )
    none_of(wrong)


@pytest.mark.slow
def test_no_file_imports_itself_by_way_of_others():
    graph = {module: {target for target, _, _ in imports_of(module)} - {module} for module in MODULES}
    assert list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_the_recorder_imports_no_tables():
    wrong = (
        f"{module}:{line} imports {target}"
        for module in MODULES
        for target, _, line in imports_of(module)
        if room_of(module) == "record" and room_of(target) != "record" and target not in RECORD_MAY_IMPORT
    )
    none_of(wrong)


def folder_of(module: str) -> str:
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def private_folders(target: str, name: str) -> Iterator[str]:
    """The folders that private parts of an imported name belong to."""
    parts = [*target.split("."), *([name] if name else [])]
    for i, part in enumerate(parts):
        if part.startswith("_") and not part.startswith("__"):
            owner = ".".join(parts[:i])
            yield folder_of(owner) if owner in MODULES else owner


def test_what_begins_with_an_underscore_is_used_in_its_own_folder_only():
    wrong = (
        f"{module}:{line} imports {target}{'.' if name else ''}{name}"
        for module in MODULES
        for target, name, line in imports_of(module)
        if any(folder != folder_of(module) for folder in private_folders(target, name))
    )
    none_of(wrong)


def test_files_are_short_enough_to_read():
    lengths = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in FILES)
    none_of(f"{path.relative_to(SRC)}: {n} lines; split it by topic" for path, n in lengths if n > LONGEST)


def n_lines(path: Path) -> int:
    """Lines of a file, those of its stub included."""
    files = (file for file in (path, path.with_suffix(".pyi")) if file.exists())
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def test_a_small_file_that_one_other_uses_is_part_of_it():
    users = defaultdict(set)
    for module in MODULES:
        for target, _, _ in imports_of(module):
            users[target].add(module)
    wrong = (
        f"{module} belongs into {next(iter(users[module]))}"
        for module, path in MODULES.items()
        if len(users[module]) == 1
        and path.name != "__init__.py"
        and MODULES[next(iter(users[module]))].name != "__init__.py"
        and folder_of(module) == folder_of(next(iter(users[module])))
        and n_lines(path) < 80
    )
    none_of(wrong)


def calls_of(path: Path, name: str) -> Iterator[int]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            yield node.lineno


@pytest.mark.slow
def test_only_the_command_line_prints():
    outside = (path for path in FILES if room_of(module_of(path)) != "cli")
    none_of(f"{path.relative_to(SRC)}:{line}" for path in outside for line in calls_of(path, "print"))


#: Modules that can run code, or write into memory, when they decode what somebody else wrote.
UNSAFE_DECODERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "yaml", "xmlrpc"}


def foreign_imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, (node.module or "").split(".")[0]


@pytest.mark.slow
def test_only_workers_unpickle_and_nothing_from_disk():
    """A function reaches a worker, and its result comes back, through a pipe; frames, caches and notes have schemas."""
    none_of(
        f"{path.relative_to(SRC)}:{line} imports {name}"
        for path in FILES
        for line, name in foreign_imports(path)
        if name in UNSAFE_DECODERS and not module_of(path).startswith("stepscope.query.workers")
    )
    loads = {"load", "loads", "Unpickler", "read_pickle", "deserialize", "memmap"}
    none_of(
        f"{path.relative_to(SRC)}:{node.lineno} {ast.unparse(node.func)}"
        for path in FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("np", "numpy", "pl", "polars", "pd")
        and (node.func.attr in loads or any(keyword.arg == "allow_pickle" for keyword in node.keywords))
    )


@pytest.mark.slow
def test_no_handler_catches_everything():
    """But for where the user's own code runs: what it raises is that code's failure, and is handed on as such."""
    broad = defaultdict(list)
    for path in FILES:
        for handler in (n for n in ast.walk(tree(path)) if isinstance(n, ast.ExceptHandler)):
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = [ast.unparse(kind) if kind else "BaseException" for kind in kinds]
            if any(name.split(".")[-1] in {"Exception", "BaseException"} for name in names):
                broad[str(path.relative_to(SRC))].append(handler.lineno)
    assert list(broad) == ["timing/_function.py"]


def public_definitions(path: Path) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Functions and classes at the top of a module, and methods of those classes, that do not begin with _."""
    for node in tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                inside = (n for n in node.body if isinstance(n, ast.FunctionDef))
                yield from (n for n in inside if not n.name.startswith("_"))


def test_what_is_public_is_documented():
    wrong = [str(path.relative_to(SRC)) for path in FILES if not ast.get_docstring(tree(path))]
    for path in FILES:
        if any(part.startswith("_") for part in path.relative_to(SRC).with_suffix("").parts if part != "__init__"):
            continue
        wrong += [
            f"{path.relative_to(SRC)}:{node.lineno} {node.name}"
            for node in public_definitions(path)
            if not ast.get_docstring(node)
        ]
    none_of(wrong)


@pytest.mark.parametrize("name", analyses.names())
def test_an_analysis_says_its_units_and_where_its_definition_is_from(name):
    text = analyses.find(name).run.__doc__ or ""
    assert "Units:" in text
    assert "Source:" in text


def test_tests_mirror_the_source():
    """The tests of x/y.py are in tests/x/test_y.py; of a folder's __init__ and small parts in tests/x/test_x.py."""
    wrong = []
    for path in FILES:
        folder = ROOT / "tests" / path.relative_to(SRC).parent
        has_code = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree(path).body)
        candidates = (f"test_{path.stem.removeprefix('_')}.py", f"test_{path.parent.name}.py")
        if has_code and not any((folder / name).exists() for name in candidates):
            wrong.append(str(path.relative_to(SRC)))
    none_of(wrong)


def modules_after(code: str, *arguments: str) -> set[str]:
    """Names of the modules that a new interpreter holds after it has run the code."""
    code += "\nimport sys; sys.stderr.write('\\nmodules: ' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.rpartition("modules: ")[2].split())


def test_importing_the_package_and_asking_for_help_import_nothing_slow():
    loaded = modules_after("import stepscope, stepscope.cli\nassert stepscope.cli.main(['--help']) == 0")
    assert not loaded & {"polars", "numpy", "msgspec", "isal", "zstandard", "scipy", "plotly", "duckdb"}


@pytest.mark.slow
def test_a_report_imports_none_of_the_heavy_or_optional_packages(examples):
    code = "import sys, stepscope.cli\nassert stepscope.cli.main(['report', sys.argv[1]]) == 0"
    loaded = modules_after(code, str(examples / "demo-cpu-decode"))
    assert not loaded & {"scipy", "plotly", "duckdb", "pandas", "jinja2", "starlette", "dask", "sklearn", "torch"}


@pytest.mark.slow
def test_a_report_of_one_file_imports_what_it_needs_of_ours(examples):
    code = "import sys, stepscope.cli\nassert stepscope.cli.main(['report', sys.argv[1]]) == 0"
    ours = {name for name in modules_after(code, str(examples / "demo-cpu-decode")) if name.startswith("stepscope")}
    assert not {name for name in ours if name.startswith(("stepscope.comparison", "stepscope.web", "stepscope.record"))}
    assert len(ours) <= 150


@pytest.mark.slow
def test_opening_a_file_imports_the_reader_of_its_format_and_no_other(examples):
    loaded = modules_after("import sys, stepscope\nstepscope.load(sys.argv[1])", str(examples / "demo-cpu-decode"))
    assert [one.name for one in FORMATS if f"stepscope.readers.{one.module}" in loaded] == ["kineto"]


#: Words that say nothing of what a thing is. The field has a noun for it: gaps, rows, matches, ranks, …
RIDDLES = frozenset(
    "told found beside behind looks seen sides others kept cut sealed mates alone words".split()  # noqa: SIM905
)


def test_patterns_of_modules_are_compiled_when_they_are_used():
    """A report imports 290, and uses 125. Recorders import nothing of `core` that they need not."""
    none_of(
        f"{path.relative_to(SRC)}:{node.lineno} use core.patterns.regex"
        for path in FILES
        if path.relative_to(SRC).parts[0] != "record"
        for statement in tree(path).body
        if not isinstance(statement, ast.FunctionDef | ast.ClassDef)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "re.compile"
    )


def identifiers_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every name that a file gives: to values, arguments, functions, classes."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


@pytest.mark.slow
def test_names_are_the_words_of_the_field():
    none_of(
        f"{path.relative_to(SRC)}:{line} {name}"
        for path in FILES
        for line, name in identifiers_of(path)
        if RIDDLES & set(name.lower().strip("_").split("_"))
    )
    none_of(str(path.relative_to(SRC)) for path in FILES if RIDDLES & set(path.stem.strip("_").split("_")))
