"""When two tools mean the same kernel: they write its name with or without types, namespaces and what it is made for.

Nsight Compute and Systems write `void at::native::copy<(int)4, (bool)1>(T1 *)`, PyTorch `void at::native::copy<4,
true>(float*)`, either may be told to write the function alone, `copy`, or its mangled name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from stepscope.core.names import demangled

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_ADDED = re.compile(r"\s*\[(?:clone|with)\b.*$|\.kd$")
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|\b_GLOBAL__N_\w*::")
_LAMBDA = re.compile(r"\{lambda\([^{}]*\)#(\d+)\}|\[lambda\([^\[\]]*\) \(instance (\d+)\)\]")
_CAST = re.compile(r"\([A-Za-z_][\w: ]*\)(?=-?\d)")
_SUFFIX = re.compile(r"(?<![\w.])(\d+)(?:[uU][lL]{0,2}|[lL]{1,2}[uU]?)(?!\w)")
_WORDS = {"true": "1", "false": "0", "const": "", "volatile": "", "struct": "", "enum": ""}
_WORD = re.compile(rf"\b(?:{'|'.join(_WORDS)})\b")
_RETURNED = re.compile(r"\bvoid\s+(?=[A-Za-z_])")
_INLINE = re.compile(r"\bstd::__\w+::")
_BRACKETS = re.compile(r"\([^()]*\)")
_TEMPLATE = re.compile(r"<[^<>]*>")


@dataclass(frozen=True, slots=True)
class KernelName:
    """A kernel's name in parts: `form` with its template arguments (None if unknown), `path` of namespaces and name."""

    form: str | None
    path: tuple[str, ...]
    is_made_for: bool  # its template arguments are told

    @property
    def base(self) -> str:
        """The function's own name."""
        return self.path[-1]

    def may_be(self, other: KernelName) -> bool:
        """Whether one may be the other's name with less said: of namespaces, or all of the template's arguments."""
        if self.form is not None and self.form == other.form:
            return True
        if self.is_made_for and other.is_made_for:
            return False
        n = min(len(self.path), len(other.path))
        return self.path[-n:] == other.path[-n:]


@lru_cache(1 << 16)
def parsed(name: str) -> KernelName:
    """The parts of a kernel's name, demangled or not.

    >>> parsed("void ns::copy<(int)4, (bool)1>(T1 *)") == parsed("void ns::copy<4, true>(float*)")
    True
    >>> parsed("_ZN2ns4copyILi4ELb1EEEvPf").path
    ('ns', 'copy')
    """
    if name.startswith("_Z"):
        return KernelName(None, tuple(demangled(name).split("::")), is_made_for=False)
    text = _UNNAMED.sub("", _ADDED.sub("", name))
    text = _LAMBDA.sub(lambda match: f"lambda{match[1] or match[2]}", text)
    text = _SUFFIX.sub(r"\1", _CAST.sub("", text))
    text = _INLINE.sub("std::", _WORD.sub(lambda match: _WORDS[match[0]], text))
    text = _RETURNED.sub("", _innermost_first(_BRACKETS, text))
    form = re.sub(r"\s+", "", _last_word(text.strip()))
    path = _innermost_first(_TEMPLATE, form)
    return KernelName(form, tuple(path.split("::")), is_made_for="<" in form)


def _innermost_first(pattern: re.Pattern[str], text: str) -> str:
    """The text without what stands in brackets, however deep."""
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text


def _last_word(text: str) -> str:
    """What stands behind the last blank that is in no template: the name, without the type of what it returns."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ">") - (text[i] == "<")
        if depth <= 0 and text[i] == " ":
            return text[i + 1 :]
    return text


def same_kernels(names: Iterable[str], known: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """For each name those of the known ones that mean the same kernel; names of unknown kernels are left out.

    The name itself, if it is known; or else those that are the same with all their template arguments; or else those
    of which either side says less.
    """
    exact = set(known)
    by_form: dict[str, list[str]] = defaultdict(list)
    by_base: dict[str, list[str]] = defaultdict(list)
    for other in known:
        parts = parsed(other)
        by_base[parts.base].append(other)
        if parts.form is not None:
            by_form[parts.form].append(other)
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        parts = parsed(name)
        if name in exact:
            found[name] = (name,)
        elif parts.form in by_form:
            found[name] = tuple(by_form[parts.form])
        elif matches := tuple(other for other in by_base[parts.base] if parts.may_be(parsed(other))):
            found[name] = matches
    return found
