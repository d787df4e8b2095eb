"""The words for units that ncu's versions use, and one base unit for each of them: ns, hz, byte, cycle.

Old versions write nsecond, usecond, Gbyte/second, cycle/nsecond, newer ones ns, us, Gbyte/s, Ghz. CSV has base units by
default, text has scaled ones; `--print-units` turns both round.
"""

from __future__ import annotations

import re

_TIME = {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6, "s": 1e9, "second": 1e9}
_PREFIX = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALED = re.compile(r"([KMGTP])([a-z]{2,})$")


def base_unit(unit: str) -> tuple[str, float]:
    """The base unit, and what a value in `unit` is multiplied by to be in it. Words that are not known stay.

    >>> base_unit("msecond"), base_unit("Gbyte/second"), base_unit("cycle/nsecond"), base_unit("%")
    (('ns', 1000000.0), ('byte/s', 1000000000.0), ('hz', 1000000000.0), ('%', 1.0))
    """
    above, slash, below = unit.strip().partition("/")
    word, factor = _base_word(above)
    if not slash:
        return word, factor
    if below in _TIME:
        factor *= 1e9 / _TIME[below]
        return ("hz" if word == "cycle" else f"{word}/s"), factor
    other, per = _base_word(below)
    return f"{word}/{other}", factor / per


def _base_word(word: str) -> tuple[str, float]:
    if word in _TIME:
        return "ns", _TIME[word]
    scaled = _SCALED.match(word)
    return (scaled.group(2), _PREFIX[scaled.group(1)]) if scaled else (word, 1.0)
