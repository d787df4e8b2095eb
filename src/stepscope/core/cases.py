"""Pairs the normal and the abnormal runs of a case by the names of their folders.

A case is a folder that holds a folder whose name begins with `normal` and one whose name begins with `abnormal`, as in
case/normal_perf_data/result_perf_data.csv and case/abnormal_perf_data/result_perf_data.csv.
"""

from __future__ import annotations

import os
import re
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Sequence


_SIDE = regex(r"(normal|abnormal)(?![a-z])", re.IGNORECASE)
_PACKING = regex(r"\.(gz|zst|xz|bz2|zip)$", re.IGNORECASE)
_RESULTS = regex(r"(?P<job>.*?)(?P<parts>(?:_(?:prefill|decode|layer))*)_perf_data\.csv$")
#: The recorder names a file of decode cycles `_decode` only if there were prefills, so these two may be paired.
_PAIRED = ("", "_decode")


class Case(msgspec.Struct, frozen=True):
    """Two runs to compare: `label` is the case's folder, or the names of the two files."""

    label: str
    base: str
    other: str


class _Place(msgspec.Struct, frozen=True):
    """A file, its case's folder, its side (normal, abnormal or none), and its unpacked name below the side's folder."""

    path: str
    case: str
    side: str
    name: str


def cases(paths: Sequence[str]) -> list[Case]:
    """The pairs among some files, in order of the normal ones.

    A file's partner has the same name below the case's other folder; of several normal runs the first is paired. A
    `_perf_data.csv` may be paired with a `_decode_perf_data.csv`; files of layers never are. Two files alone are a
    pair whatever they are called, the normal one first, else in the order given. Raises StepscopeError if there is no
    pair.
    """
    places = [_place(path) for path in paths]
    if len(paths) == 2:
        base, other = reversed(places) if places[0].side == "abnormal" and places[1].side == "normal" else places
        return [Case(_label(base, other), base.path, other.path)]
    abnormal = {(place.case, place.name): place for place in places if place.side == "abnormal"}
    pairs = []
    for base in places:
        names = _partners(base.name) if base.side == "normal" else ()
        partner = next((abnormal[base.case, name] for name in names if (base.case, name) in abnormal), None)
        if partner is not None:
            pairs.append(Case(_label(base, partner), base.path, partner.path))
            del abnormal[partner.case, partner.name]
    if not pairs:
        hint = "name two files, the base first, or a folder that holds a folder normal… and a folder abnormal…"
        raise StepscopeError(f"no pair of a normal and an abnormal run among {len(paths)} files", hint)
    return pairs


def is_of_results(path: str) -> bool:
    """Whether the name is that of a file of LatencyPrism's results.

    >>> is_of_results("case/normal_perf_data/result_perf_data.csv.gz"), is_of_results("case/normal0/trace.json")
    (True, False)
    """
    return _RESULTS.fullmatch(_PACKING.sub("", PurePath(path).name)) is not None


def split(paths: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """The files of the normal and of the abnormal runs of one case; None if a side is missing.

    Several normal runs are repeats. If files hold the cycles of one job by kind, its decode cycles are chosen, not
    prefills or layers. Raises StepscopeError if there are several cases.
    """
    places = [place for path in paths if (place := _place(path)).side]
    if not places:
        return None
    folders = list(dict.fromkeys(place.case for place in places))
    if len(folders) > 1:
        names = ", ".join(PurePath(folder).name for folder in folders)
        raise StepscopeError(f"{len(folders)} cases: {names}", f"name one of them, as {folders[0]}")
    runs = [[place.path for place in places if place.side == side] for side in ("normal", "abnormal")]
    if not all(runs):
        return None
    if all(_RESULTS.fullmatch(place.name) for place in places):
        of_results = cases(paths)
        chosen = next((case for case in of_results if "_prefill" not in PurePath(case.base).name), of_results[0])
        return [chosen.base], [chosen.other]
    return runs[0], runs[1]


def _place(path: str) -> _Place:
    parts = PurePath(path).parts
    for i in range(len(parts) - 2, -1, -1):
        if side := _SIDE.match(parts[i]):
            name = _PACKING.sub("", "/".join(parts[i + 1 :]))
            return _Place(path, str(PurePath(*parts[:i])), side[1].lower(), name)
    return _Place(path, str(PurePath(path).parent), "", _PACKING.sub("", PurePath(path).name))


def _partners(name: str) -> tuple[str, ...]:
    """Names that a partner may have, the best first."""
    match = _RESULTS.fullmatch(name)
    if match is None or match["parts"] == "_prefill":
        return (name,)
    if match["parts"] not in _PAIRED:
        return ()
    return (name, *(f"{match['job']}{part}_perf_data.csv" for part in _PAIRED if part != match["parts"]))


def _label(base: _Place, other: _Place) -> str:
    if base.side and base.case == other.case:
        folder = PurePath(base.case).name or PurePath(os.path.realpath(base.case)).name
        match = _RESULTS.fullmatch(base.name)
        return folder + (match["parts"] if match else "")
    return f"{PurePath(base.path).name} and {PurePath(other.path).name}"
