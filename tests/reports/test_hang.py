"""The report of dumps: who is to blame on one screen, and the same as data."""

from __future__ import annotations

import json

import pytest
from dumps import call, dump, write

from stepscope import load, report
from stepscope.cli import main
from stepscope.core.errors import StepscopeError


def folder_of(tmp_path):
    done, waiting = [call(i) for i in range(1, 9)], [call(9, ended=False)]
    dumps = {rank: dump(done + waiting * (rank != 2), {"0": [0, 1, 2, 3]}) for rank in range(3)}
    return write(tmp_path, dumps)


def test_the_headline_names_the_verdict_the_culprit_and_the_time(tmp_path):
    made = report(folder_of(tmp_path))
    assert made.headline.startswith("Hung: rank 2 to blame · dumps of 3 of 4 ranks · since 2023-11-14 22:13:29 UTC")
    assert made.findings[0].title == "Rank 2 never arrived (95 % sure)"
    assert "Innocent: ranks 0–1." in made.quality
    assert "The dump of rank 3 is missing; rank 3 cannot be excluded." in made.quality
    assert report(load(str(tmp_path))).headline == made.headline


def test_json_has_the_verdict_as_data(tmp_path, capsys):
    assert main(["report", folder_of(tmp_path), "--format", "json"]) == 0
    hang = json.loads(capsys.readouterr().out)["hang"]
    assert hang["verdict"] == "hung"
    assert [(one["rank"], one["reason"], one["operation"]) for one in hang["culprits"]] == [
        (2, "never arrived", "all_reduce")
    ]
    assert [(one["rank"], one["waits_for"]) for one in hang["waiting"]] == [(0, 2), (1, 2)]
    assert hang["innocent"] == [0, 1]


def test_a_folder_of_two_jobs_is_refused_by_their_names(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        folder_of(tmp_path / name)
    with pytest.raises(StepscopeError, match="dumps of 2 jobs") as caught:
        report(str(tmp_path))
    assert "one" in caught.value.message
    assert "two" in caught.value.message
