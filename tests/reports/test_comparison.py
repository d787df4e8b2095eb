from __future__ import annotations

import json

import polars as pl
import pytest
from msgspec.structs import replace
from observations import observation, pair

from stepscope.comparison import Cause, Comparison, Effect, Evidence, RuledOut
from stepscope.comparison.effects import effects, part_deltas
from stepscope.comparison.model import KINDS
from stepscope.reports.comparison import comparison, document, resources, tables

STEP = Effect(100e6, 150e6, 50e6, 40e6, 60e6, 0.001, 5e6, 6e6, 9, 9, is_different=True)
CAUSE = Cause(
    category="gpu_frequency",
    statement="GPU 0's clock fell",
    resource="sm_clock",
    device="gpu0",
    process="p",
    rank=0,
    magnitude=0.2,
    explained_ns=45e6,
    confidence=0.95,
    evidence=(Evidence("clock", unit="MHz", base=1000.0, other=200.0, role="necessary"), Evidence("a fact")),
    consequences=(Evidence("kernels take longer", unit="ns", base=None, other=5.0),),
    advice="unlock it",
)


def run(clock, ns):
    rows = [(c, "gpu0", "gemm", "kernel", 1, ns, None) for c in range(1, 7)]
    return observation(
        [100_000_000] * 6,
        functions=rows,
        parts=[(c, part, 50_000_000) for c in range(1, 7) for part in ("computation", "idle")],
        resources=[(c, "gpu0", "sm_clock", None, "MHz", clock) for c in range(1, 7)]
        + [(c, "pid:1", "cpu_time", None, "ns/s", 1e9 * clock / 1000) for c in range(1, 7)],
    )


PAIRS = (pair(run(1000.0, 10_000_000), run(200.0, 50_000_000)),)


def outcome(**changes):
    facts = {
        "verdict": "different", "reason": "slower", "step_verdict": "different",
        "step_time": STEP, "pairs": PAIRS, "parts": part_deltas(PAIRS),
        "effects": effects(PAIRS), "causes": (CAUSE,), "ruled_out": (RuledOut("network", "no traffic"),),
        "notes": ("one thing is missing",),
    }  # fmt: skip
    return Comparison(**{**facts, **changes})


def test_the_headline_is_the_verdict_with_its_figures():
    assert comparison(outcome()).headline == (
        "Different: slower · step 100 ms → 150 ms, +50 % (95 % interval +40 % to +60 %) · 9 and 9 cycles"
    )


def unproven(**changes):
    step = replace(STEP, **changes)
    return outcome(verdict="no_difference", step_verdict="no_difference", reason="", causes=(), step_time=step)


def test_no_difference_says_what_would_have_shown():
    rows = comparison(unproven(delta=1e6))
    assert rows.headline.endswith("a change of 6 % would show in 8 of 10 cases")


@pytest.mark.parametrize(("delta", "detectable"), [(-7e6, 6e6), (50e6, 110e6)])
def test_what_would_have_shown_is_not_said_if_the_change_is_larger_or_it_is_a_whole_step(delta, detectable):
    assert "would show" not in comparison(unproven(delta=delta, detectable=detectable)).headline


def test_without_a_step_time_the_reason_stands_alone():
    rows = comparison(outcome(step_time=None, parts=part_deltas(())))
    assert rows.headline == "Different: slower"
    assert rows.bars == ()
    assert document(outcome(step_time=None))["step_time"] is None


def test_a_cause_has_its_evidence_with_values_and_what_follows_from_it():
    finding = comparison(outcome()).findings[0]
    assert finding.title == "gpu_frequency (certain): GPU 0's clock fell"
    assert finding.details == (
        "clock: 1,000 MHz → 200 MHz", "a fact", "follows from it: kernels take longer: none → 5 ns", "→ unlock it",
    )  # fmt: skip
    assert (finding.value_ns, finding.share_ratio) == (45e6, 0.9)


def test_a_cause_of_a_change_that_is_not_proven_costs_nothing_and_says_so():
    report = comparison(outcome(step_verdict="inconclusive"))
    assert "(not proven: 95 % interval +40 % to +60 %)" in report.headline
    assert report.findings_title == "What is different"
    assert (report.findings[0].value_ns, report.findings[0].share_ratio) == (None, None)
    assert "share_ratio" not in report.tables[0].frame.columns


def test_one_cycle_has_no_interval():
    step = replace(STEP, low=None, high=None, p_value=None, detectable=None, n_base=1, n_other=1, is_different=False)
    text = comparison(outcome(verdict="inconclusive", step_verdict="inconclusive", step_time=step, causes=())).headline
    assert "+50 % (no interval) · 1 and 1 cycles" in text
    assert "would show" not in text


def test_what_differs_in_kind_comes_first():
    rows = [("hardware", "accelerator", "A100", "V100", "times belong to the machine")]
    kinds = KINDS.conform(pl.DataFrame(rows, schema=KINDS.dtypes, orient="row"))
    report = comparison(outcome(kinds=kinds))
    assert report.headline.startswith("Runs that differ in hardware · Different: slower")
    assert report.first is not None
    assert report.first.frame.rows() == [("hardware", "accelerator", "A100", "V100")]
    assert report.first.note == "Times belong to the machine."
    assert document(outcome(kinds=kinds))["kinds"][0]["base"] == "A100"
    assert comparison(outcome()).first is None


def test_evidence_that_the_statement_has_already_is_not_repeated():
    row = Evidence("clock", unit="MHz", base=1000.0, other=200.0)
    cause = replace(CAUSE, statement="GPU 0's clock fell from 1,000 to 200 MHz", evidence=(row, Evidence("a fact")))
    assert comparison(outcome(causes=(cause,))).findings[0].details[0] == "a fact"


def test_lengths_of_bars_are_on_one_scale_and_shares_are_of_each_runs_own_step():
    parts = pl.DataFrame({"part": ["computation", "idle"], "base_ns": [30.0, 20.0], "other_ns": [30.0, 70.0],
                          "delta_ns": [0.0, 50.0], "share_ratio": [0.0, 1.0]})  # fmt: skip
    bars = comparison(outcome(parts=parts)).bars
    assert [(bar.label, bar.length, [(p.name, p.ratio) for p in bar.parts]) for bar in bars] == [
        ("Base", 0.5, [("computation", 0.6), ("idle", 0.4)]), ("Other", 1.0, [("computation", 0.3), ("idle", 0.7)]),
    ]  # fmt: skip


WHOLE_RUN = Effect(80e6, 100e6, 20e6, 15e6, 25e6, 0.001, 5e6, 6e6, 400, 401, is_different=True)


def test_bars_say_that_they_are_of_profiled_steps_where_the_whole_run_decides():
    report = comparison(outcome(whole_run=WHOLE_RUN))
    assert "step 80 ms → 100 ms" in report.headline
    assert [bar.notes[0].text for bar in report.bars] == [
        "9 profiled steps; the 400 of the whole run take 80 ms each",
        "9 profiled steps; the 401 of the whole run take 100 ms each",
    ]
    assert not comparison(outcome()).bars[0].notes


def test_without_a_profile_nothing_says_where_time_went_and_no_bar_is_drawn():
    bare = (pair(observation([100_000_000] * 6), observation([150_000_000] * 6)),)
    report = comparison(outcome(whole_run=WHOLE_RUN, pairs=bare, parts=part_deltas(bare)))
    assert report.bars == ()
    assert not [block.title for block in report.tables if "went" in block.title]


@pytest.mark.parametrize(("explained_ms", "share"), [(10, 0.5), (45, 1.0)])
def test_a_cause_has_its_share_of_the_change_that_the_headline_names(explained_ms, share):
    # Steps of the whole run grow by 20 ms.
    cause = replace(CAUSE, explained_ns=explained_ms * 1e6)
    (finding,) = comparison(outcome(whole_run=WHOLE_RUN, causes=(cause,))).findings
    assert (finding.share_ratio, finding.value_ns) == (share, share * 20e6)


@pytest.mark.parametrize(("delta_ms", "is_said"), [(25, False), (5, True), (-25, True)])
def test_profiled_steps_that_hardly_show_the_change_have_no_shares(delta_ms, is_said):
    step = replace(STEP, delta=delta_ms * 1e6)
    parts = next(b for b in comparison(outcome(whole_run=WHOLE_RUN, step_time=step)).tables if "went" in b.title)
    assert ("hardly show" in parts.note) == is_said
    assert ("share_ratio" not in parts.frame.columns) == is_said


def test_shares_above_the_whole_are_explained():
    parts = pl.DataFrame({"part": ["a", "b"], "base_ns": [50e6, 50e6], "other_ns": [130e6, 20e6],
                          "delta_ns": [80e6, -30e6], "share_ratio": [1.6, -0.6]})  # fmt: skip
    assert "above 100 %" in comparison(outcome(parts=parts)).tables[0].note


def test_functions_and_resources_that_changed_are_shown_in_words():
    blocks = {block.title: block.frame for block in comparison(outcome()).tables}
    assert blocks["Functions that changed, own time per step"]["name"].cast(pl.String).to_list() == ["gemm"]
    moved = blocks["Resources that changed"]
    assert moved.select(pl.col("metric").cast(pl.String), "base", "other").rows() == [
        ("cpu_time", "100 %", "20 %"), ("sm_clock", "1,000 MHz", "200 MHz"),
    ]  # fmt: skip


@pytest.mark.parametrize(("n_cores", "shown"), [(2, ["cpu0", "cpu1"]), (8, [])])
def test_which_of_many_cores_is_busy_is_no_change(n_cores, shown):
    def busy(core):
        rows = [
            (c, f"cpu{n}", "host_cpu_usage", None, "%", 100.0 if n == core else 1.0)
            for c in range(1, 7)
            for n in range(n_cores)
        ]
        return observation([100_000_000] * 6, resources=rows)

    result = outcome(effects=effects((pair(busy(1), busy(0)),)), causes=())
    blocks = [block.frame for block in comparison(result).tables if block.title == "Resources that changed"]
    assert sorted({str(name) for frame in blocks for name in frame["device"]}) == shown


def test_what_was_ruled_out_is_named_with_the_way_to_its_reasons():
    assert comparison(outcome()).quality == (
        "One thing is missing.",
        "Ruled out, with reasons: network.",
    )
    assert comparison(outcome()).quality_command == "compare --table ruled-out"
    assert comparison(outcome(ruled_out=())).quality_command == ""
    assert tables(outcome())["ruled-out"].frame.rows() == [("network", "no traffic", True)]
    assert comparison(outcome(ruled_out=())).quality == ("One thing is missing.",)


def test_the_document_is_json_with_its_facts_at_the_top():
    rows = json.loads(json.dumps(document(outcome()), default=str))
    assert list(rows)[:4] == ["schema", "verdict", "reason", "step_time"]
    assert rows["causes"][0]["certainty"] == "certain"
    assert rows["step_time"]["delta_ratio"] == 0.5


def test_resources_that_moved_farthest_come_first():
    runs = []
    for clocks in ({"a": 1.0, "b": 1.0}, {"a": 2.0, "b": 9.0}):
        rows = [(c, "d", metric, None, "MHz", mhz) for c in range(1, 7) for metric, mhz in clocks.items()]
        runs.append(observation([100] * 6, resources=rows))
    rows = resources(effects([pair(*runs)]))
    assert rows["metric"].cast(pl.String).to_list() == ["b", "a"]
