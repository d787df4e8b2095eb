"""Peaks of each accelerator: rates by element type, bandwidths, sizes; from `hardware.json` in this folder.

A device is identified by its recorded name, without the maker's additions. If a name fits several products, the other
facts of the device decide. If these do not decide, or contradict the product, `find` returns the reason instead: peaks
are never guessed.
"""

from __future__ import annotations

import difflib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Instead of a precision: a peak of matrix units that a recorder states for work whose types it does not.
ANY = "any"
_DATA = Path(__file__).with_name("hardware.json")
_NOISE = regex(
    r"\b(?:nvidia|amd|intel|huawei|cambricon|corporation|instinct|tesla|geforce|radeon|graphics|tensor core|gpu"
    r"|accelerator|oam)\b|\((?:r|tm|c)\)|[®™]",
    re.IGNORECASE,
)
_BLANKS = str.maketrans("-_/,", "    ")
#: A device reports a little less memory than its data sheet (whose GB are GiB), because it reserves some for itself.
_MEMORY_RATIO = (0.93, 1.02)
#: Clocks that differ less are the same, rounded otherwise.
_SAME_CLOCK = 0.005
_HINT = "give its peaks with --hardware FILE; see docs/hardware.md"


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One product. Rates in FLOP/s (int8: operations/s) and bytes/s, dense; `source` names the documents."""

    name: str
    match: list[str] = []
    units: int | None = None
    boost_clock_hz: float | None = None
    memory_bytes: float | None = None
    memory_bytes_per_s: float
    link_bytes_per_s: float | None = None
    tensor: dict[str, float] = {}
    vector: dict[str, float] = {}
    source: list[str] = []
    note: str | None = None

    def peak(self, precision: str | None, *, matrix: bool, tensor_core: bool | None = None) -> float | None:
        """FLOP/s of that precision, as fp32 or bf16; None if it is not known.

        `matrix`: the work is a product of matrices. In fp32 it runs on matrix units (as tf32 on NVIDIA) only if
        `tensor_core` says that the kernel does so, unless the units do fp32 itself. What vector units cannot do
        natively they do as fp32.
        """
        if precision is None:
            return self.tensor.get(ANY) if matrix else None
        if not matrix:
            return self.vector.get(precision) or (self.vector.get("fp32") if precision in _WIDENED else None)
        if precision in self.tensor:
            return self.tensor[precision]
        if precision == "fp32" and tensor_core and "tf32" in self.tensor:
            return self.tensor["tf32"]
        return self.vector.get(precision)


_WIDENED = ("fp16", "bf16", "fp8")


class _Withheld(msgspec.Struct, frozen=True):
    match: list[str]
    reason: str


class _File(msgspec.Struct, frozen=True):
    accelerators: list[Accelerator] = []
    withheld: list[_Withheld] = []
    about: str = ""


class Hardware(msgspec.Struct, frozen=True):
    """All known products, those of the user's file first."""

    accelerators: Sequence[Accelerator]
    withheld: Sequence[_Withheld]

    def find(self, name: str | None, *, units: int | None = None, memory_bytes: int | None = None) -> Accelerator | str:
        """The product of a device by its name, or the reason why there is none.

        `units` (multiprocessors or compute units) and `memory_bytes` decide among products of one name, and must not
        contradict the result.

        >>> known().find("NVIDIA A100-SXM4-80GB").name
        'A100 80GB SXM'
        """
        if not name:
            return "the trace does not name its device"
        plain = _plain(name)
        fits = [a for a in self.accelerators if plain == _plain(a.name) or _matches(plain, a.match)]
        if not fits:
            reason = next((w.reason for w in self.withheld if _matches(plain, w.match)), None)
            return reason or self._unknown(name)
        fits = [a for a in fits if units is None or a.units in (None, units)] or fits
        fits = [a for a in fits if memory_bytes is None or a.memory_bytes is None or _near(memory_bytes, a)] or fits
        if len(fits) > 1:
            return f"{name!r} may be {', '.join(a.name for a in fits)}: {_HINT}"
        only = fits[0]
        if units is not None and only.units not in (None, units):
            return f"{name!r} should have {only.units} units and has {units}: a part, or another device; {_HINT}"
        return only

    def name_of(self, *, units: int | None, clock_hz: float | None, memory_bytes: int | None) -> str | None:
        """The only product that has these units at this clock, and does not have another memory; None if none is it.

        For recorders that state what a device has, and not which it is.

        >>> known().name_of(units=304, clock_hz=2.1e9, memory_bytes=206_141_652_992)
        'MI300X'
        """
        if units is None or clock_hz is None:
            return None
        fits = [
            one.name
            for one in self.accelerators
            if one.units == units
            and one.boost_clock_hz is not None
            and abs(one.boost_clock_hz - clock_hz) < _SAME_CLOCK * clock_hz
            and (one.memory_bytes is None or memory_bytes is None or _near(memory_bytes, one))
        ]
        return fits[0] if len(fits) == 1 else None

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(_plain(name), [_plain(a.name) for a in self.accelerators], n=3, cutoff=0.6)
        like = [a.name for a in self.accelerators if _plain(a.name) in near]
        suggestion = f" (like {', '.join(like)}?)" if like else ""
        return f"{name!r} is not a known accelerator{suggestion}: {_HINT}"


def _near(memory_bytes: int, accelerator: Accelerator) -> bool:
    low, high = _MEMORY_RATIO
    return low <= memory_bytes / (accelerator.memory_bytes or memory_bytes) <= high


def _plain(name: str) -> str:
    """A name without the maker's additions, in lower case, with single spaces."""
    return " ".join(_NOISE.sub(" ", name).translate(_BLANKS).lower().split())


def _matches(plain: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, plain) for pattern in patterns)


@cache
def known() -> Hardware:
    """The products that the package knows."""
    shipped = _decoded(_DATA.read_bytes(), str(_DATA))
    return Hardware(shipped.accelerators, shipped.withheld)


def with_file(path: str | None) -> Hardware:
    """The products of the user's file, then those of the package. The file has the same form; sources are optional.

    A product of the file replaces ours of the same name. Raises StepscopeError (unreadable, not of that form).
    """
    ours = known()
    if path is None:
        return ours
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise StepscopeError(f"cannot read {path}: {error.strerror or error}", "check the path") from None
    given = _decoded(text, path).accelerators
    names = {a.name for a in given}
    own = [a for a in ours.accelerators if a.name not in names and not _replaced(a, given)]
    return Hardware([*given, *own], ours.withheld)


def _replaced(ours: Accelerator, given: Sequence[Accelerator]) -> bool:
    """Whether a product of the user matches the name of ours."""
    name = _plain(ours.name)
    return any(name == _plain(a.name) or _matches(name, a.match) for a in given)


def _decoded(text: bytes, path: str) -> _File:
    try:
        decoded = msgspec.json.decode(text, type=_File)
        for accelerator in decoded.accelerators:
            _check(accelerator)
    except (ValueError, RecursionError, re.error) as error:
        hint = 'as in {"accelerators": [{"name": "X", "memory_bytes_per_s": 3e12, "tensor": {"bf16": 1e15}}]}'
        raise StepscopeError(f"{path} does not describe accelerators: {error}", hint) from None
    return decoded


def _check(accelerator: Accelerator) -> None:
    rates: Mapping[str, float] = {
        "memory_bytes_per_s": accelerator.memory_bytes_per_s,
        **accelerator.tensor,
        **accelerator.vector,
    }
    for what, rate in rates.items():
        if not rate > 0:
            raise ValueError(f"{accelerator.name}: {what} is {rate}, not a rate")
    for pattern in accelerator.match:
        re.compile(pattern)
