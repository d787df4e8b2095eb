"""What stands beside the report on the first page, kept on disk: the next server need not open the traces for it."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope import store
from stepscope.core.errors import StepscopeError
from stepscope.web.pages.highlights import Card

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepscope.core.trace import Meta
    from stepscope.web.pages.links import Links
    from stepscope.web.session.session import Session

__all__ = ["Glance", "keep_glance", "kept_glance", "tickets_of"]

_WHAT = "first page"
#: To look at the keys of more files takes as long as what is saved.
_MOST_FILES = 64


@dataclass(frozen=True, slots=True)
class Glance:
    """What stands beside the report: cards, the chart of the steps, whether operators have call stacks.

    `ranks` are those of the inputs, in their order, null where unknown.
    """

    cards: tuple[Card, ...]
    chart: dict[str, Any] | None
    with_stacks: bool
    ranks: tuple[int | None, ...]


def tickets_of(session: Session, links: Links) -> tuple[store.Ticket, ...]:
    """What the glance at these inputs is kept under, one ticket for each file; none if it is not to be kept.

    The first is that of the note. It follows from all files and from the addresses that stand in the cards.
    """
    inputs = links.inputs
    if not 0 < len(inputs) <= _MOST_FILES:
        return ()
    paths = [session.path(i) for i in inputs]
    try:
        others = [store.note_ticket(_WHAT, path, session.depends(path)) for path in paths[1:]]
        about = (links.root, inputs, links.n_inputs, [other.key if other else None for other in others])
        own = session.depends(paths[0])
        first = None if own is None else store.note_ticket(_WHAT, paths[0], (*own, *about))
    except StepscopeError:  # unreadable: whoever reads it says so
        return ()
    found = [ticket for ticket in (first, *others) if ticket is not None]
    return tuple(found) if len(found) == len(inputs) else ()


def kept_glance(tickets: Sequence[store.Ticket]) -> Glance | None:
    """The glance that was kept under these; None if there is none, or none that can be read."""
    content = store.noted(tickets[0]) if tickets else None
    if content is None:
        return None
    try:
        told = json.loads(zlib.decompress(content))
        cards = tuple(_card(*fields) for fields in told["cards"])
        return Glance(cards, told["chart"], bool(told["with_stacks"]), tuple(told["ranks"]))
    except (zlib.error, ValueError, TypeError, KeyError):
        return None


def keep_glance(tickets: Sequence[store.Ticket], glance: Glance, meta: Meta) -> None:
    """Keep it for the next server, unless a file changed since the tickets were made. `meta` is the first file's."""
    cards = [(card.title, card.value, card.details, card.links) for card in glance.cards]
    told = {"cards": cards, "chart": glance.chart, "with_stacks": glance.with_stacks, "ranks": glance.ranks}
    try:
        if not all(map(store.unchanged, tickets[1:])):
            return
    except StepscopeError:  # one is gone
        return
    content = zlib.compress(json.dumps(told).encode("utf-8"), level=1)
    store.keep_noted(tickets[0], content, meta, what=_WHAT)


def _card(title: str, value: str, details: list[list[Any]], links: list[list[Any]]) -> Card:
    return Card(title, value, _pairs(details), _pairs(links))


def _pairs(found: list[list[Any]]) -> tuple[Any, ...]:
    return tuple((words, address) for words, address in found)
