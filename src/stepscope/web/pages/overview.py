"""The first page: what happened, where the time of a step went, what costs most, what the data lacks."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from stepscope import store
from stepscope.api import verbs
from stepscope.api.reporting import report_and_more
from stepscope.core.errors import StepscopeError
from stepscope.renderers import figures
from stepscope.web.pages.drilldown import address_of_row
from stepscope.web.pages.first_tables import Frames, first_tables
from stepscope.web.pages.highlights import Card, cards, operator_card
from stepscope.web.pages.rows import sheet
from stepscope.web.pages.site import Site, answers, ask, html, inputs_of, links_of, links_to
from stepscope.web.session import Busy

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from stepscope.core.report import Report
    from stepscope.core.trace import Meta
    from stepscope.web.pages.first_tables import FileTables
    from stepscope.web.pages.links import Links
    from stepscope.web.session import Session


_WHAT = "first page"
#: To look at the keys of more files takes as long as what is saved.
_MOST_FILES = 64


class Glance(msgspec.Struct, frozen=True):
    """What the first page adds to the report: cards, the chart of the steps, whether operators have call stacks.

    `ranks` are those of the inputs, in their order, null where unknown.
    """

    cards: tuple[Card, ...]
    chart: dict[str, Any] | None
    with_stacks: bool
    ranks: tuple[int | None, ...]


def cache_keys(session: Session, links: Links) -> tuple[store.CacheKey, ...]:
    """The cache keys of the glance at these inputs, one for each file; none if it is not cached.

    The glance is stored under the first, which depends on all files and on the addresses in the cards.
    """
    inputs = links.inputs
    if not 0 < len(inputs) <= _MOST_FILES:
        return ()
    paths = [session.path(i) for i in inputs]
    try:
        further = [store.value_key(_WHAT, path, session.depends(path)) for path in paths[1:]]
        about = (links.root, inputs, links.n_inputs, [other.key if other else None for other in further])
        own = session.depends(paths[0])
        first = None if own is None else store.value_key(_WHAT, paths[0], (*own, *about))
    except StepscopeError:  # unreadable: the error appears when it is read
        return ()
    keys = [key for key in (first, *further) if key is not None]
    return tuple(keys) if len(keys) == len(inputs) else ()


def store_glance(keys: Sequence[store.CacheKey], glance: Glance, meta: Meta) -> None:
    """Keep it for the next server, unless a file changed since the keys were made. `meta` is the first file's."""
    try:
        if all(map(store.unchanged, keys[1:])):
            store.cache_value(keys[0], glance, meta, what=_WHAT)
    except StepscopeError:  # a file is gone
        return


#: What is begun before anyone asks is finished, if somebody comes for it in this time.
_AHEAD_S = 300.0
_BEFORE_OPERATOR = ("Slowest step", "Kernel with most time")


async def overview(site: Site, request: Request) -> Response:
    """The page."""
    session = site.session
    before = links_to(site, request, inputs_of(site, request))
    report, glance = await answers(site, request, _questions(session, before))
    links = _with_ranks(session, before)
    blocks = [
        (block, sheet(block.frame, block.table, link=address_of_row(links, block.table.name)))
        for block in report.tables
    ]
    operator = operator_card(report, links, with_stacks=glance.with_stacks)
    at = sum(card.title in _BEFORE_OPERATOR for card in glance.cards)
    shown = [*glance.cards[:at], *([operator] if operator else []), *glance.cards[at:]]
    page = html(site, request, "overview.html", title="Overview", report=report, cards=shown, blocks=blocks,
                 chart=glance.chart, colours=figures.COLOURS, links=links)  # fmt: skip
    _read_ahead(session, before.inputs)
    return page


async def report_of(site: Site, request: Request) -> Report:
    """The report of the inputs in the address, as the first page shows it. Raises Waiting, StepscopeError."""
    key, work = _questions(site.session, links_to(site, request, inputs_of(site, request)))[0]
    report: Report = await ask(site, request, key, work)
    return report


def begin(session: Session) -> None:
    """Begin to work out the first page for all inputs, before the browser asks for it."""
    links = links_of(session, tuple(one.index for one in session.inputs()))
    for key, work in _questions(session, links):
        session.ask(key, work, wanted_s=_AHEAD_S)


def _questions(session: Session, links: Links) -> list[tuple[Hashable, Callable[[], Any]]]:
    inputs = links.inputs
    stamps = session.stamps(inputs)
    return [
        (("report", inputs, stamps), lambda: _report(session, inputs)[0]),
        (("glance", inputs, stamps, links.root), lambda: _glance(session, links)),
    ]


def _report(session: Session, inputs: tuple[int, ...]) -> tuple[Report, Mapping[str, FileTables]]:
    """The report, and the first page's tables of the files that were read for it, by path.

    Of several files both are made once, for whoever asks, as other processes read the files for both.
    """
    if len(inputs) == 1:
        return verbs.report(session.run(inputs)), {}
    with session.reading(len(inputs)) as done:
        work = partial(report_and_more, session.run(inputs), first_tables, progress=done)
        return session.shared(("report", inputs, session.stamps(inputs)), work)


def _read_ahead(session: Session, inputs: tuple[int, ...]) -> None:
    """Open the first trace if the page came from the cache: the next page will need it."""
    index = inputs[0]
    if session.heights((index,)) is not None:
        return
    with suppress(Busy):
        session.ask(("ahead", index, session.stamps((index,))), lambda: _opened(session, index), wanted_s=_AHEAD_S)


def _opened(session: Session, index: int) -> None:
    with suppress(StepscopeError):  # it cannot be read: the report says so
        session.trace(index)


def _with_ranks(session: Session, links: Links) -> Links:
    """The links with the rank of each input, which is known only after reading."""
    known = session.of_rank(links.inputs)
    if not known and len(links.inputs) > 1:
        for index in links.inputs:
            session.rank(index)
        known = session.of_rank(links.inputs)
    return replace(links, of_rank=known)


def _glance(session: Session, links: Links) -> Glance:
    """The glance from the cache, or made now."""
    keys = cache_keys(session, links)
    glance = store.cached_value(keys[0], Glance) if keys else None
    if glance is not None:
        session.know_ranks(dict(zip(links.inputs, glance.ranks, strict=True)))
        return glance
    known = _report(session, links.inputs)[1] if len(links.inputs) > 1 else {}
    session.know_ranks({i: known[path].rank for i in links.inputs if (path := session.path(i)) in known})
    made = _made(session, _with_ranks(session, links), known)
    if keys:
        with suppress(StepscopeError):  # it cannot be read: the report says so
            first = known.get(session.path(links.inputs[0]))
            store_glance(keys, made, session.trace(links.inputs[0]).meta if first is None else first.meta)
    return made


def _made(session: Session, links: Links, known: Mapping[str, FileTables]) -> Glance:
    chart, steps, frames = None, None, Frames(session, links.inputs, known)
    with suppress(StepscopeError):  # none recorded
        steps = frames("steps")
        columns = steps.columns
        chart = figures.drawn("steps", steps, lambda row: links.events(row, columns))
    with_stacks = False
    with suppress(StepscopeError):  # it cannot be read: the report says so
        with_stacks = frames.with_stacks()
    made = cards(frames, links, steps=steps, operator=False)
    return Glance(tuple(made), chart, with_stacks, tuple(session.rank(i) for i in links.inputs))
