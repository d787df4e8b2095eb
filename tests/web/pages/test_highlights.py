from __future__ import annotations

import polars as pl
import pytest
from msgspec.structs import replace
from web_traces import document, event, training, written

from stepscope.api import verbs
from stepscope.web.pages.first_tables import Frames
from stepscope.web.pages.highlights import _slowest_step, cards, operator_card
from stepscope.web.pages.links import Links
from stepscope.web.session import Session


def cards_by_title(*paths):
    session = Session([str(path) for path in paths])
    inputs = tuple(range(len(paths)))
    list(session.run(inputs))
    made = cards(Frames(session, inputs, {}), Links("", inputs, len(inputs), session.of_rank(inputs)))
    session.close()
    return {card.title: card for card in made}


def test_the_cards_tell_what_is_most_and_why(tmp_path):
    by_title = cards_by_title(written(tmp_path / "t.json", training()))
    slow = by_title["Slowest step"]
    assert slow.value.startswith("step 2: ")
    assert "more than the median step" in slow.details[0][0]
    assert by_title["Kernel with most time"].value == "gemm_aten::mm"
    assert by_title["Kernel with most time"].details[1][0] == "launched by aten::mm"
    assert by_title["Operator with most time"].value == "aten::mm"
    assert "the host ran code that was not recorded" in by_title["Longest gap between device work"].details[0][0]
    assert by_title["Peak memory"].value.endswith("on cuda:0")
    assert "aten::add holds" in " ".join(words for words, _ in by_title["Peak memory"].details)
    for card in by_title.values():
        assert card.links[0][1].startswith("/timeline?")
        assert card.links[-1][1].startswith("/tables/")
        assert all(target.startswith(("/timeline?", "/tables/")) for _, target in card.details)


def test_of_equal_steps_none_is_longer():
    steps = pl.DataFrame({"step": [1, 2, 3], "window_ns": [5, 5, 5]})
    card = _slowest_step(steps, (0,), Links("", (0,), 1))
    assert card is not None
    assert card.details[0][0] == "as long as the median step"


@pytest.mark.slow
def test_of_several_ranks_the_card_names_the_one(tmp_path):
    paths = [written(tmp_path / f"{i}.json", training(rank=i, steps=3 + 3 * i)) for i in (0, 1)]
    assert "rank 1" in cards_by_title(*paths)["Slowest step"].value


def test_what_was_not_recorded_has_no_card(tmp_path):
    events = [event("aten::mm", 0, 5), event("aten::mm", 9, 5)]
    by_title = cards_by_title(written(tmp_path / "t.json", document(events)))
    assert list(by_title) == ["Operator with most time"]


def test_without_a_device_the_longest_wait_of_the_host_is_told(tmp_path):
    events = [event("aten::mm", 0, 50), event("enumerate(DataLoader)#_Next", 60, 30, "user_annotation"),
              event("gloo:all_reduce", 100, 20), event("gloo:all_reduce", 130, 40)]  # fmt: skip
    card = cards_by_title(written(tmp_path / "t.json", document(events)))["Longest wait of the host"]
    assert card.value.startswith("40 µs")
    assert card.details[0][0] == "in a collective with other ranks: gloo:all_reduce"
    assert card.details[1][0] == "2 times, 60 µs together"
    assert card.links[0][1].startswith("/timeline?t=0&span=")
    loading = cards_by_title(written(tmp_path / "l.json", document(events[:2])))["Longest wait of the host"]
    assert loading.details[0][0].startswith("waiting for the next batch: ")


@pytest.mark.slow
def test_the_card_of_the_operator_is_the_same_from_a_report(tmp_path):
    session = Session([str(written(tmp_path / "t.json", training()))])
    links = Links("", (0,), 1)
    frames = Frames(session, (0,), {})
    whole = {card.title: card for card in cards(frames, links)}
    assert "Operator with most time" not in [card.title for card in cards(frames, links, operator=False)]
    report = verbs.report(session.run((0,)))
    assert operator_card(report, links, with_stacks=False) == whole["Operator with most time"]
    assert operator_card(replace(report, tables=()), links, with_stacks=False) is None
    session.close()


@pytest.mark.slow
def test_a_step_that_waits_for_other_ranks_says_so(examples):
    by_title = cards_by_title(*sorted((examples / "demo-cpu-2ranks").glob("*.gz")))["Slowest step"]
    assert by_title.value.startswith("step 7, rank 1: ")
    assert by_title.details[1][0].startswith("of it: exposed communication +")
