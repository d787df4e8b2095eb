"""Text from files, made safe for a terminal and for whoever reads it: no control characters, no change of direction."""

from __future__ import annotations

import json
import re

#: Line separators, and marks that hide or reorder what is drawn: soft hyphen, zero width, direction, tags.
_HIDDEN = "\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
_IN_A_LINE = re.compile(f"[\x00-\x1f{_HIDDEN}]")
_IN_LINES = re.compile(f"[\x00-\x08\x0b-\x1f{_HIDDEN}]")
#: As the one above, but for sequences that set colours.
_IN_COLOURS = re.compile(f"[\x00-\x08\x0b-\x1a\x1c-\x1f{_HIDDEN}]|\x1b(?!\\[[0-9;]*m)")


def printable(text: str) -> str:
    r"""The text in one line, with an escape for every character that a terminal would obey instead of draw.

    >>> print(printable("a\x1b[31mb\n"))
    a\x1b[31mb\n
    """
    return _IN_A_LINE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def printable_lines(text: str, *, colours: bool = False) -> str:
    """The same for many lines: line ends and tabs stay, and with `colours` our sequences for colours too.

    The escapes are those of JSON, so that JSON keeps its meaning.
    """
    return (_IN_COLOURS if colours else _IN_LINES).sub(lambda match: json.dumps(match.group())[1:-1], text)
