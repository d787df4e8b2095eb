"""What the first page takes from the files as they are read is what it would have asked for."""

from __future__ import annotations

from web_traces import document, event, training, written

from stepscope import store
from stepscope.web.pages.first_tables import Frames, first_tables
from stepscope.web.pages.highlights import cards
from stepscope.web.pages.links import Links
from stepscope.web.pages.overview import _glance
from stepscope.web.session import Session


def both_ways(*paths):
    """The cards from tables that are known, and from those that are asked for."""
    session = Session([str(path) for path in paths])
    inputs = tuple(range(len(paths)))
    known = {session.path(i): first_tables(session.trace(i)) for i in inputs}
    links = Links("", inputs, len(inputs), session.of_rank(inputs))
    made = [cards(Frames(session, inputs, tables), links, operator=False) for tables in (known, {})]
    session.close()
    return made


def test_the_cards_of_several_ranks_are_those_that_reading_again_gives(tmp_path):
    known, asked = both_ways(*(written(tmp_path / f"{i}.json", training(rank=i, steps=3 + i)) for i in (0, 1)))
    assert known == asked
    assert [card.title for card in known] == [
        "Slowest step", "Kernel with most time", "Longest gap between device work", "Peak memory",
    ]  # fmt: skip


def test_without_a_device_too(tmp_path):
    events = [event("aten::mm", 0, 50), event("enumerate(DataLoader)#_Next", 60, 30, "user_annotation")]
    known, asked = both_ways(*(written(tmp_path / f"{i}.json", document(events)) for i in (0, 1)))
    assert known == asked
    assert [card.title for card in known] == ["Longest wait of the host"]


def test_a_file_whose_tables_are_not_known_is_read(tmp_path):
    paths = [written(tmp_path / f"{i}.json", training(rank=i)) for i in (0, 1)]
    session = Session([str(path) for path in paths])
    known = {session.path(0): first_tables(session.trace(0))}
    assert Frames(session, (0, 1), known)("steps").equals(Frames(session, (0, 1), {})("steps"))
    session.close()


def test_worker_processes_make_the_same_first_page(folder, monkeypatch):
    assert store.cache_folder() is None
    made = []
    for start_s in (1e9, 0.0):  # the second plan starts processes
        monkeypatch.setattr("stepscope.query.workers.pool._START_S", start_s)
        monkeypatch.setattr("stepscope.query.workers.pool.cores", lambda: 2)
        session = Session([str(folder)])
        made.append(_glance(session, Links("", (0, 1), 2)))
        held = session.heights((0, 1)) is not None
        assert held == (start_s > 0)
        session.close()
    assert made[0] == made[1]
