from __future__ import annotations

import json
import re
from pathlib import Path

from stepscope.core.prometheus import samples_of
from stepscope.watching.measures import Board, StreamNow, exposition

DOCS = Path(__file__).parents[2] / "docs"
NOW = StreamNow("rank 0", 120, 1_700_000_000.5, 25e6, 24e6, 19e6, 76e6, 1.04, {"slow": 2.46, "stall": float("inf")})
ALARM = {"event": "alarm", "kind": "slow", "stream": "rank 0"}


def values(board: Board) -> dict[tuple[str, str], float]:
    return {(name, labels): value for name, labels, value in samples_of(exposition(board.measures()))}


def test_a_stream_shows_its_time_its_expected_time_and_how_slow_it_is():
    board = Board()
    board.show((NOW,))
    of_rank = {name: value for (name, labels), value in values(board).items() if labels == 'stream="rank 0"'}
    assert of_rank == {
        "stepscope_steps_total": 120,
        "stepscope_step_time_seconds": 0.025,
        "stepscope_step_expected_seconds": 0.024,
        "stepscope_step_low_seconds": 0.019,
        "stepscope_step_high_seconds": 0.076,
        "stepscope_step_slowness_ratio": 1.04,
        "stepscope_step_last_seconds": 1_700_000_000.5,
    }


def test_a_limit_that_is_not_known_yet_is_left_out():
    board = Board()
    board.show((NOW,))
    limits = {labels: value for (name, labels), value in values(board).items() if "limit" in name}
    assert limits == {'kind="slow",stream="rank 0"': 2.46}


def test_what_is_not_expected_yet_has_no_value():
    board = Board()
    board.show((StreamNow("process 1", 3, 1.0, 25e6, None, None, None, None, {}),))
    assert {name for name, _ in values(board)} == {
        "stepscope_steps_total", "stepscope_step_time_seconds", "stepscope_step_last_seconds",
    }  # fmt: skip


def test_alarms_are_counted_by_kind_and_stream_and_causes_by_category():
    board = Board()
    board.take(ALARM)
    board.take(ALARM)
    board.take({"event": "minute"})
    board.take({"event": "alarm", "kind": "unreachable"})
    board.take({"event": "cause", "causes": [{"category": "data_loading"}, {"category": "other"}]})
    board.take({"event": "cause", "causes": []})
    assert values(board) == {
        ("stepscope_alarms_total", 'kind="slow",stream="rank 0"'): 2,
        ("stepscope_alarms_total", 'kind="unreachable",stream=""'): 1,
        ("stepscope_causes_total", 'category="data_loading"'): 1,
        ("stepscope_causes_total", 'category="unknown"'): 1,
    }


def test_labels_are_escaped():
    board = Board()
    board.take(ALARM | {"stream": 'a"b\\c\nd'})
    assert 'stream="a\\"b\\\\c\\nd"} 1.0' in exposition(board.measures())


def test_the_dashboard_of_the_docs_asks_for_measures_that_there_are():
    dashboard = json.loads((DOCS / "watch-dashboard.json").read_text(encoding="utf-8"))
    asked = {target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}
    names = {one.prometheus_name for one in Board().measures()}
    assert {name for text in asked for name in re.findall(r"stepscope_\w+", text)} == names
