"""Events that are no complete spans: instants, metadata, arrows, begin/end pairs, counter samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.readers._column import MOST_CATS

if TYPE_CHECKING:
    from stepscope.readers._columns import Columns
    from stepscope.readers._events import AnyEvent

#: Kineto's names, by age, for the arrow from a launch to the work it queued. Its id is the correlation.
_FLOW_TO_DEVICE = frozenset({"ac2g", "async_cpu_to_gpu", "async"})
_EDGES = frozenset("BEbe")


def add_others(columns: Columns, events: list[AnyEvent], block: bytes) -> set[str]:
    """Sort the events of one block, except the complete ones, by phase into the columns; the phases seen."""
    by_phase: dict[str, list[AnyEvent]] = {}
    for event in events:
        if event.ph != "X":
            by_phase.setdefault(event.ph, []).append(event)
    for phase, group in by_phase.items():
        timed = group if phase == "M" else [e for e in group if e.ts is not None]
        if phase in ("i", "I"):
            _instants(columns, timed)
        elif phase == "M":
            _metadata(columns, group)
        elif phase in ("s", "t", "f"):
            _arrows(columns, timed, start=phase == "s")
        elif phase in _EDGES:
            continue
        elif phase == "C":
            _samples(columns, events, block)
        else:
            columns.notes.add("unknown_events", "info", len(group), f"events of phase {phase!r} are not read")
    if by_phase.keys() & _EDGES:  # together, as recorded: an end and a begin may be of one instant
        _edges(columns, [e for e in events if e.ph in _EDGES and e.ts is not None])
    return {phase for phase in by_phase if phase}


def _instants(columns: Columns, events: list[AnyEvent]) -> None:
    memory = [e for e in events if e.name == "[memory]"]
    if memory:
        cols = columns.memory
        args = [e.args for e in memory]
        cols["ts"].extend(columns.times([e.ts for e in memory]))
        cols["track"].extend(columns.tracks.codes([(e.pid, e.tid) for e in memory]))
        cols["type"].extend([a.device_type for a in args])
        cols["index"].extend([a.device_index for a in args])
        cols["address"].extend([a.address or 0 for a in args])
        cols["bytes"].extend([a.alloc_bytes for a in args])
        cols["allocated"].extend([a.total_allocated for a in args])
        cols["reserved"].extend([a.total_reserved for a in args])
    if len(memory) < len(events):
        marks = sum(str(e.name).startswith(("Iteration Start", "Record Window End")) for e in events)
        rest = len(events) - len(memory) - marks
        columns.notes.add("instants_dropped", "info", rest, "instant events other than memory have no duration")


def _metadata(columns: Columns, events: list[AnyEvent]) -> None:
    for event in events:
        text = event.args.name or event.args.labels
        if text and event.name:
            columns.threads.setdefault((event.pid, event.tid), {})[event.name] = text


def _arrows(columns: Columns, events: list[AnyEvent], *, start: bool) -> None:
    launches = [e.id for e in events if e.cat in _FLOW_TO_DEVICE]
    if launches:
        columns.has_launch_flows = True
        if start:
            columns.launch_flows.extend(launches)
    if len(launches) == len(events):
        return
    others = [e for e in events if e.cat not in _FLOW_TO_DEVICE]
    cols = columns.flows
    cols["ts"].extend(columns.times([e.ts for e in others]))
    cols["track"].extend(columns.tracks.codes([(e.pid, e.tid) for e in others]))
    cols["id"].extend(columns.flow_ids.codes([e.id for e in others]))
    cols["cat"].extend(columns.cats.codes([e.cat for e in others], MOST_CATS))
    cols["start"].extend([int(start)] * len(others))


def _edges(columns: Columns, events: list[AnyEvent]) -> None:
    cols = columns.edges
    cols["ts"].extend(columns.times([e.ts for e in events]))
    cols["name"].extend(columns.names.codes([e.name for e in events]))
    cols["cat"].extend(columns.cats.codes([e.cat for e in events], MOST_CATS))
    keys = [(e.pid, e.tid) if e.ph in "BE" else (e.pid, f"{e.cat}:{e.id}", "async") for e in events]
    cols["track"].extend(columns.tracks.codes(keys))
    cols["begin"].extend([int(e.ph in "Bb") for e in events])


def _samples(columns: Columns, events: list[AnyEvent], block: bytes) -> None:
    """Counter samples, from a whole block of events: the keys of their `args` are data."""
    for event, args in zip(events, columns.raw_args(events, block), strict=True):
        if event.ph == "C" and event.ts is not None:
            track = columns.tracks[(event.pid, event.name, "counter")]
            columns.add_values(columns.samples, {"ts": columns.times([event.ts])[0], "track": track}, args)
