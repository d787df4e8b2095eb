from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import stepscope


def test_importing_the_package_needs_nothing_heavy():
    code = "import sys, stepscope; dir(stepscope); print([m for m in ('polars', 'numpy', 'typer') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_public_names_are_all_there():
    assert all(getattr(stepscope, name) is not None for name in stepscope.__all__)
    assert set(stepscope.__all__) <= set(dir(stepscope))
    assert stepscope.__version__
    with pytest.raises(AttributeError, match="no attribute 'bogus'"):
        _ = stepscope.bogus


def test_a_source_tree_that_is_not_installed_says_so(monkeypatch):
    def absent(_):
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", absent)
    assert stepscope.__version__ == "0+source"


@pytest.mark.slow
def test_analyses_are_imported_when_asked_for():
    code = "import sys; from stepscope import analyses; print('stepscope.analyses.steps.idle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
