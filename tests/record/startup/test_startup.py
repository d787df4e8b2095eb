from __future__ import annotations

import ast
import sys
from pathlib import Path

import stepscope.record.startup

FOLDER = Path(stepscope.record.startup.__file__).parent


def test_the_hook_needs_the_standard_library_alone_and_an_old_python_reads_it():
    for path in FOLDER.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))
        names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "__future__"}
