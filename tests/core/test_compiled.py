"""Which libraries are used; what the compiled loops compute is compared in `test_intervals.py`."""

from __future__ import annotations

import numpy as np
import pytest
from c_libraries import COMPILER, library_of

from stepscope.core import compiled

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler: then nothing is compiled")


@pytest.fixture
def nesting(tmp_path, monkeypatch):
    """The library of this source."""
    path = library_of(compiled.NESTING.with_name("nesting.c"), tmp_path)
    monkeypatch.setattr(compiled, "NESTING", path)
    compiled._nesting.cache_clear()
    yield path
    compiled._nesting.cache_clear()


def test_one_of_another_version_is_not_used(nesting):
    assert compiled.library(nesting, "nesting", compiled._VERSION) is not None
    assert compiled.library(nesting, "nesting", compiled._VERSION + 1) is None


def test_one_of_another_machine_is_not_used(tmp_path):
    (tmp_path / "other.so").write_bytes(b"\x7fELF of another machine")
    assert compiled.library(tmp_path / "other.so", "other", 1) is None
    assert compiled.library(tmp_path / "missing.so", "missing", 1) is None


def test_none_is_used_where_pure_python_is_asked_for(nesting, monkeypatch):
    monkeypatch.setenv("STEPSCOPE_PURE_PYTHON", "1")
    assert compiled.library(nesting, "nesting", compiled._VERSION) is None


@pytest.mark.usefixtures("nesting")
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_row_numbers_keep_their_type_and_columns_need_not_be_in_one_piece(dtype):
    parents = np.array([-1, 9, 0, 9, 1, 9], dtype)[::2]  # of three rows
    found = compiled.nearest(parents, np.array([True, False, True, False, False, True])[::2])
    assert found is not None
    assert (found.dtype, found.tolist()) == (dtype, [0, 1, 1])


@pytest.mark.usefixtures("nesting")
def test_other_row_numbers_are_left_to_numpy():
    assert compiled.nearest(np.array([-1, 0], np.int16), np.array([True, False])) is None
