from __future__ import annotations

from web_traces import document, event, training, written

from stepscope.web._highlights import cards
from stepscope.web._links import Links
from stepscope.web._session import Session


def found(*paths):
    session = Session([str(path) for path in paths])
    inputs = tuple(range(len(paths)))
    list(session.run(inputs))
    made = cards(session, inputs, Links("", inputs, len(inputs), session.of_rank(inputs)))
    session.close()
    return {card.title: card for card in made}


def test_the_cards_tell_what_is_most_and_why(tmp_path):
    told = found(written(tmp_path / "t.json", training()))
    slow = told["Slowest step"]
    assert slow.value.startswith("step 2: ")
    assert "more than the median step" in slow.details[0]
    assert told["Kernel with most time"].value == "gemm_aten::mm"
    assert told["Kernel with most time"].details[1] == "launched by aten::mm"
    assert told["Operator with most time"].value == "aten::mm"
    assert "the host was late" in told["Longest idle gap"].details[0]
    assert told["Peak memory"].value.endswith("on cuda:0")
    assert "aten::add holds" in " ".join(told["Peak memory"].details)
    for card in told.values():
        assert card.links[0][1].startswith("/timeline?")
        assert card.links[-1][1].startswith("/tables/")


def test_of_several_ranks_the_card_names_the_one(tmp_path):
    paths = [written(tmp_path / f"{i}.json", training(rank=i, steps=3 + 3 * i)) for i in (0, 1)]
    assert "rank 1" in found(*paths)["Slowest step"].value


def test_what_was_not_recorded_has_no_card(tmp_path):
    told = found(written(tmp_path / "t.json", document([event("aten::mm", 0, 5), event("aten::mm", 9, 5)])))
    assert list(told) == ["Operator with most time"]
