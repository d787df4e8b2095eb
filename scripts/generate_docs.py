"""Writes what is made from the code: pages of docs/ (tables, analyses, formats, command line) and type declarations.

python scripts/generate_docs.py           write them
python scripts/generate_docs.py --check   write nothing; say which are out of date, and exit 1 if any is
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import typer
from format_coverage import page as coverage_page
from generate_stubs import stubs

from stepscope import analyses, cli, exports, readers, renderers
from stepscope.core import result_tables, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from stepscope.analyses import Analysis
    from stepscope.core.options import HasOptions
    from stepscope.core.table import Column, Table

ROOT = Path(__file__).parents[1]
MADE = "<!-- Made by scripts/generate_docs.py from the code; `make docs` writes it anew. -->\n"

TABLES_ARE = """\
Every reader fills these tables, and every analysis reads them. On the command line use `stepscope show spans TRACE`, in
Python `trace.spans`. Intervals are half-open. Times are nanoseconds from the trace's origin, whose Unix time is
`trace.meta.origin_unix_ns` if the format states it. Null means unknown; there is no −1 or 0 for absent values. Ratios
are 0 to 1. Columns in bold identify a row.
"""
RESULTS_ARE = """\
Files of results hold these tables instead of a recording. On the command line use `stepscope show cycles FILE`, in
Python `results.result("cycles")`. They show what another program computed, unchanged.
"""
ANALYSES_ARE = """\
On the command line use `stepscope show NAME TRACE`, in Python `stepscope.show(trace, NAME)`. Every result is a table.
Columns in bold are keys, the others are measures. [How it works](how-it-works.md) explains the ideas that analyses
share, and [tables](tables.md) describes the tables that they read.
"""
FORMATS_ARE = """\
Files are recognised by content, not by name. They may be packed with gzip, zstd, xz, bz2 or zip. [What each recorder
gives](coverage.md) says which columns have values.
"""
THE_COMMAND_IS = """\
Tables go to stdout, progress and messages to stderr. `NO_COLOR` switches colours off. Exit codes: 0 success, 1 bad
input or refused, 2 wrong usage, 3 a check that you asked for failed. Every verb takes `--help`.
"""
#: Lines of a docstring that stand for themselves.
LABEL = re.compile(r"^(Units:|Source:|Raises)(?= )", re.MULTILINE)


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def columns_of(table: Table) -> str:
    """The columns of a table, one in a row. Keys are set in bold."""
    return grid(("column", "type", "unit", "meaning"), [column_row(c) for c in table.columns])


def column_row(column: Column) -> Sequence[str]:
    """One column: its name, type, unit, meaning; of a closed list, its values."""
    name = f"**`{column.name}`**" if column.key else f"`{column.name}`"
    if not isinstance(column.dtype, pl.Enum):
        return name, str(column.dtype), column.unit or "", column.doc
    if all(value in column.doc for value in column.dtype.categories):
        return name, "Enum", column.unit or "", column.doc
    values = ", ".join(f"`{value}`" for value in column.dtype.categories)
    return name, "Enum", column.unit or "", f"{column.doc}. One of {values}"


def sentence(text: str) -> str:
    """The text with a capital at its start and a full stop at its end."""
    return text[:1].upper() + text[1:].rstrip(".") + "."


def tables_page() -> str:
    """The tables that a trace holds, and those that files of results hold."""
    return "\n".join(
        [
            "# Tables\n",
            MADE,
            "## Of a trace\n",
            TABLES_ARE,
            listing((t.name, t.doc) for t in schema.TABLES.values()),
            "## Of results\n",
            RESULTS_ARE,
            listing((t.name, t.doc) for t in result_tables.RESULTS.values()),
        ]
    )


def table_page(table: Table) -> str:
    """One table with its columns."""
    return f"# {table.name}\n\n{MADE}\n{sentence(table.doc)} [All tables](../tables.md).\n\n{columns_of(table)}"


def listing(named: Iterable[tuple[str, str]], folder: str = "tables") -> str:
    """Names that lead to their pages, and what they hold or answer."""
    return grid(("name", "what it is"), [(f"[`{name}`]({folder}/{name}.md)", sentence(doc)) for name, doc in named])


def analyses_page() -> str:
    """Every analysis by topic, and what it answers."""
    parts = ["# Analyses\n", MADE, ANALYSES_ARE]
    topics: dict[str, list[tuple[str, str]]] = {}
    for name in analyses.names():
        topics.setdefault(topic_of(name), []).append((name, analyses.find(name).doc))
    for topic, named in topics.items():
        parts += [f"## {topic}\n", listing(named, "analyses")]
    return "\n".join(parts)


def topic_of(name: str) -> str:
    """The folder of the analysis' module, in words."""
    return analyses.ANALYSES.modules[name].split(".")[2].replace("_", " ").capitalize()


def analysis_page(name: str) -> str:
    """One analysis: what it answers and from what, its options, its columns."""
    analysis = analyses.find(name)
    text = LABEL.sub(r"- **\1**", inspect.getdoc(analysis.run) or sentence(analysis.doc))
    usage = f"`stepscope show {name} BASE OTHER`. " if analysis.scope == "pair" else ""
    parts = [
        f"# {name}\n",
        MADE,
        f"{sentence(analysis.doc)} [All analyses](../analyses.md).\n",
        f"{usage}{text}\n- {subject_of(analysis)}\n",
        *options_grid(analysis),
        columns_of(analysis.output),
    ]
    return "\n".join(parts)


def subject_of(analysis: Analysis) -> str:
    """What an analysis reads."""
    if analysis.scope == "ranks":
        return "**Reads:** the traces of all ranks of a job together."
    if analysis.scope == "pair":
        return "**Compares:** two traces."
    reads = ", ".join(f"`{table.name}`" for table in analysis.inputs)
    if analysis.optional:
        reads += "; where recorded: " + ", ".join(f"`{table.name}`" for table in analysis.optional)
    return f"**Reads:** {reads}."


def options_grid(owner: HasOptions) -> list[str]:
    """The options of an analysis, a comparison or an export; nothing if it has none."""
    rows = [(f"`{o.flag}`", o.values or "switch", default(o.default)) for o in owner.options().values()]
    return [grid(("option", "value", "default"), rows)] if rows else []


def formats_page() -> str:
    """What can be read and written."""
    inputs = [(r.name, r.doc, ", ".join(f"`{t}`" for t in r.provides)) for r in readers.readers()]
    outputs = [renderers.find(name) for name in renderers.RENDERERS.modules]
    rows = []
    for r in outputs:
        suffixes = ", ".join(f"`{suffix}`" for suffix in r.suffixes)
        rows.append((r.name, sentence(r.doc), suffixes, "yes" if r.report else "", "yes" if r.table else ""))
    kinds = [exports.find(name) for name in exports.EXPORTS.modules]
    exported = []
    for kind in kinds:
        text = LABEL.sub(r"- **\1**", inspect.getdoc(kind.run) or sentence(kind.doc))
        exported += [f"### {kind.name}\n\n{text}\n", *options_grid(kind)]
    return "\n".join(
        [
            "# Formats\n",
            MADE,
            "## Read\n",
            FORMATS_ARE,
            grid(("format", "what it is", "tables it can fill"), inputs),
            "## Written\n\n`--format NAME`, or by the suffix of `-o FILE`.\n",
            grid(("format", "what it is", "suffixes", "report", "table"), rows),
            "## Exported\n\n`stepscope export PATH --to KIND -o FILE`: forms that users of other tools know.\n",
            *exported,
        ]
    )


def verbs() -> dict[str, Any]:
    """Every verb of the command line, as Click has it."""
    root: Any = typer.main.get_command(cli._app())
    commands: dict[str, Any] = root.commands
    return commands


def cli_page() -> str:
    """All verbs."""
    named = [(name, verb.get_short_help_str(100)) for name, verb in verbs().items()]
    return "\n".join(["# Command line\n", MADE, THE_COMMAND_IS, listing(named, "cli")])


def verb_page(name: str, verb: Any) -> str:
    """One verb with its arguments and options."""
    arguments = [p for p in verb.params if p.param_type_name == "argument"]
    usage = " ".join([f"stepscope {name}", verb.options_metavar, *(argument_usage(a) for a in arguments)])
    rows: list[Sequence[str]] = [(f"`{p.metavar.strip('[]')}`", p.help or "", "") for p in arguments]
    rows += [option_row(p) for p in verb.params if p.param_type_name == "option" and not p.hidden]
    text = inspect.cleandoc(verb.help or "")
    table = grid(("", "meaning", "default"), rows)
    return f"# stepscope {name}\n\n{MADE}\n```\n{usage}\n```\n\n{text}\n\n{table}"


def argument_usage(argument: Any) -> str:
    """An argument as it stands in a usage line."""
    word = argument.metavar.strip("[]") + ("..." if argument.nargs != 1 else "")
    return word if argument.required else f"[{word}]"


def option_row(option: Any) -> Sequence[str]:
    """An option, what it means, its default."""
    value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
    return f"`{', '.join(option.opts)}{value}`", option.help or "", default(option.default)


def default(value: object) -> str:
    """A default in words; nothing where there is none or where it is that of every switch."""
    return "" if value is None or value is False else "on" if value is True else f"`{value}`"


def pages() -> dict[str, Callable[[], str]]:
    """What is made: paths below the root, and what gives the text of each."""
    made: dict[str, Callable[[], str]] = {
        "docs/tables.md": tables_page,
        "docs/analyses.md": analyses_page,
        "docs/formats.md": formats_page,
        "docs/coverage.md": partial(coverage_page, MADE, grid),
        "docs/cli.md": cli_page,
        "docs/agents/SKILL.md": (ROOT / "src/stepscope/agents/SKILL.md").read_text,
        "src/stepscope/core/analysis_methods.pyi": stubs,
    }
    tables = {**result_tables.RESULTS, **schema.TABLES}
    made |= {f"docs/tables/{table.name}.md": partial(table_page, table) for table in tables.values()}
    made |= {f"docs/analyses/{name}.md": partial(analysis_page, name) for name in analyses.ANALYSES.modules}
    return made | {f"docs/cli/{name}.md": partial(verb_page, name, verb) for name, verb in verbs().items()}


PAGES = pages()


def main() -> int:
    """Writes or checks every page; the exit code."""
    stale = []
    for name, page in PAGES.items():
        path, text = ROOT / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if stale and "--check" in sys.argv[1:]:
        print(f"out of date: {', '.join(stale)}; `make docs` writes them anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
