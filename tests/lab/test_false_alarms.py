from __future__ import annotations

import sys

import false_alarms
import pytest


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_row_for_each_size_of_job(monkeypatch, capsys):
    words = ["false_alarms.py", "--seeds", "2", "--ranks", "8,1024", "--seeds-of-1024", "1"]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(false_alarms, "UNEVEN", (0.0,))
    false_alarms.main()
    head, line, small, large = capsys.readouterr().out.splitlines()
    assert head == "| ranks | jobs | 0.0% | 0.0%, heavy tails | late rank first | its lateness / truth |"
    assert line.count("|") == head.count("|") == small.count("|")
    assert small.startswith("| 8 | 2 | 0 | 0 | 2 | ")
    assert large.startswith("| 1,024 | 1 | 0 | 0 | 1 | ")


def test_healthy_jobs_alone(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["false_alarms.py", "--seeds", "1", "--ranks", "4", "--healthy-only"])
    false_alarms.main()
    assert capsys.readouterr().out.splitlines()[-1].endswith("| – | – |")
