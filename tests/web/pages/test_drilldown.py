"""Each row, part and note leads to what it was made of."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import polars as pl
import pytest

from stepscope.core.report import Bar, Part
from stepscope.web.pages.drilldown import address_of_difference, address_of_part, address_of_row, address_of_whole
from stepscope.web.pages.links import Links

ONE = Links("/root", (0,), 1)
TWO = Links("", (0, 1), 2, of_rank={4: 0, 5: 1})


def led(table, row, links=ONE):
    address = address_of_row(links, table)(row, list(row))
    if address is None:
        return None
    parts = urlsplit(address)
    return parts.path.removeprefix("/root"), {k: v[0] for k, v in parse_qs(parts.query).items()}


def test_a_row_with_events_of_its_own_leads_to_them():
    assert led("idle", {"ts_ns": 5, "dur_ns": 1})[0] == "/timeline"
    assert led("steps", {"step": 3, "ts_ns": 5, "window_ns": 9})[1]["range"] == "5-14"


def test_a_sum_leads_to_the_rows_that_it_sums_up():
    path, words = led("idle", {"cause": "it's", "device": None, "total_ns": 5})
    assert path == "/tables/idle"
    assert words["o.by"] == "gap"
    assert words["where"] == "\"cause\" = 'it''s' AND \"device\" IS NULL"
    assert led("idle", {"cause": "sync"}, TWO)[1]["where"] == "\"cause\" = 'sync'"  # of all ranks
    assert led("kernel-classes", {"kernel_class": "GEMM"})[0] == "/tables/kernels"
    assert led("transfers", {"kind": "HtoD"})[0] == "/tables/trace.transfers"
    assert led("message-sizes", {"parallelism": "DP", "kind": "x", "group_size": 2})[1]["where"].endswith(
        '"group_size" = 2'
    )
    assert led("overlap", {"calls": 3})[1]["o.by"] == "name"
    assert led("overlap", {"calls": 0})[0] == "/timeline"


def test_a_condition_fits_into_an_address():
    path, words = led("parallel-groups", {"group": "x" * 900})
    assert path == "/tables/collectives"
    assert "where" not in words


@pytest.mark.parametrize(
    ("collective", "measured", "where"),
    [
        ("allreduce", "host", "lower(name) LIKE '%all%reduce%' AND category <> 'kernel'"),
        ("_Reduce'x", "device", "lower(name) LIKE '%_reduce_x%' AND category = 'kernel'"),
    ],
)
def test_an_exchange_leads_to_its_spans(collective, measured, where):
    path, words = led("communication", {"collective": collective, "measured": measured})
    assert (path, words["where"]) == ("/tables/spans", where)


def test_a_module_leads_to_its_ranges():
    assert led("modules", {"path": "Net_0/Block_1"})[1]["q"] == "nn.Module: Block_1"


def test_a_module_with_device_work_leads_to_its_kernels():
    path, words = led("modules", {"path": "Net_0/Bl'k_1", "device_total_ns": 5})
    assert (path, words["o.by"]) == ("/tables/kernels", "module")
    assert words["where"] == "starts_with(module || '/', 'Net_0/Bl''k_1/')"
    assert len(led("modules", {"path": "x" * 900, "device_total_ns": 5})[1]["where"]) < 300


def test_advice_leads_where_its_command_does():
    assert led("recommendations", {"command": "stepscope show idle"})[0] == "/tables/idle"


def test_what_has_only_a_step_or_a_trace_leads_there():
    assert led("mfu", {"step": 3, "mfu_ratio": 0.5}) == ("/timeline", {"t": "0", "step": "3"})
    assert led("mfu", {"rank": 5, "step": 3}, TWO) == ("/timeline", {"t": "1", "step": "3"})
    assert led("collectives", {"step": 3, "kind": "x"}, TWO) == ("/timeline", {"step": "3"})
    assert led("timeline", {"rank": 4}, TWO) == ("/timeline", {"t": "0"})
    assert led("timeline", {"rank": 9}, TWO) is None


def test_recorded_tables_lead_to_events_only():
    assert led("issues", {"code": "x"}) is None
    assert led("trace.steps", {"step": 1}) is None
    assert led("trace.kernels", {"span_id": 4})[1]["span"] == "4"


def test_parts_of_bars_lead_to_tables():
    device = Bar("Step", "5 ms", (Part("computation", 0.5), Part("idle", 0.5), Part("odd", 0.0)))
    assert address_of_part(ONE, device, "idle").startswith("/root/tables/idle?o.by=gap")
    assert address_of_part(ONE, device, "odd") is None
    host = Bar("Step", "5 ms", (Part("operators", 0.5), Part("exposed communication", 0.5)))
    assert address_of_part(ONE, host, "operators") == "/root/tables/operators"
    assert address_of_part(ONE, host, "exposed communication") == "/root/tables/communication"
    assert address_of_whole(ONE, device) == "/root/tables/steps?sort=-window_ns"
    assert address_of_whole(ONE, Bar("x", "5 ms")) is None


def compared(frame):
    links = Links("", (0, 1), 3, of_label={"a.json": 0, "b.json": 1})
    address = address_of_difference(links, frame)
    targets = []
    for row in frame.iter_rows(named=True):
        parts = urlsplit(address(row, frame.columns) or "")
        targets.append((parts.path, {k: v[0] for k, v in parse_qs(parts.query).items()}))
    return targets


def test_parts_of_a_comparison_lead_to_what_both_recorded():
    device = compared(pl.DataFrame({"part": ["computation", "synchronisation", "other"]}))
    assert device[0] == ("/tables/kernels", {"t": "0,1"})
    assert "synchronize" in device[1][1]["where"]
    assert device[2] == ("", {})
    host = compared(pl.DataFrame({"part": ["operators", "exposed communication", "python and other"]}))
    assert [path for path, _ in host] == ["/tables/operators", "/tables/communication", "/tables/steps"]


def test_ranges_functions_and_metrics_of_a_comparison_lead_to_theirs():
    assert compared(pl.DataFrame({"part": ["Optimizer.step#Adam", "operators outside ranges"]})) == [
        ("/timeline", {"q": "Optimizer.step#Adam", "exact": "1", "t": "0,1"}),
        ("", {}),
    ]
    assert compared(pl.DataFrame({"device": ["host"], "name": ["aten::mm"]}))[0][1]["q"] == "aten::mm"
    ((path, words),) = compared(pl.DataFrame({"device": ["process"], "metric": ["process_mem_rss"]}))
    assert (path, words["where"]) == ("/tables/counters", "\"metric\" = 'process_mem_rss'")
