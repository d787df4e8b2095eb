from __future__ import annotations

import sys

import pytest
import ranks


@pytest.mark.slow
def test_speeds_and_hits_are_printed(monkeypatch, capsys):
    words = ["ranks.py", "--ranks", "16", "--steps", "6", "--files", "2"]
    monkeypatch.setattr(sys, "argv", words)
    ranks.main()
    out = capsys.readouterr().out
    assert out.count("stragglers") == 2
    assert "named: []" in out
    assert "2 files of" in out
