r"""Shortens names for display: one name by what says most, the names of a column so that they stay different.

Everything here is for screens only; tables, CSV, JSON and SQL have full names. Names of kernels lose return types,
arguments and namespaces that say nothing. Names of a column that would then be equal keep those parts of their template
arguments, tile sizes and element types in which they differ.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import lru_cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from stepscope.core.patterns import regex

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_CACHED = 1 << 16
#: How the symbol of an AMD kernel's descriptor ends.
_DESCRIPTOR = ".kd"
_LEADING = regex(r"^(?:(?:void|std::enable_if<.*?>::type|__global__|static)\s+)+")
_TRAILING = regex(r"(?: \[clone [^]]*\]|\.kd| const)+$")
#: Namespaces, unnamed ones also without the bracket that ncu's text drops, and the tags of Numba's kernels.
_SAYS_NOTHING = regex(
    r"(?:\(anonymous namespace\)|(?:[{<]|\b)(?:anonymous|unnamed)[}>]|\b(?:at::native|c10|std|detail))::"
    r"|\[(?:abi:)?v\d+,\w+\]"
)
#: A literal's type, as in (int)4, and blanks between closing brackets.
_CAST = regex(r"\((?:bool|(?:unsigned )?(?:int|long|short|char)(?: long)?)\)(?=-?\d)|(?<=>) (?=>)")
_TENSILE = regex(
    r"^(Cijk_[A-Za-z]+_[A-Za-z]+(?:_[BCDFHISZ48]{1,4}(?=_))*)_(?:.*_)?(MT\d+x\d+x\d+)"
    r"(?:_(?:.*_)?(MI\d+x\d+x\d+\w*?)(?=_|$))?"
)
#: Kernels that only call what their template arguments name.
_CONTAINERS = regex(r"^(?:cutlass\w*::|ck_tile::)?(?:Kernel2?|device_kernel|kentry(?:pt)?)$")
_CONTAINED = regex(r"(?<![\w:])[A-Za-z_]\w*(?:::\w+)*")
_INNER = regex(
    r"\b(?!(?:A|B)?(?:Unary|Binary)Functor|gpu_kernel|gpu_index_kernel|ReduceOp\b)"
    r"(\w+(?:[Ff]unctor\w*|_kernel_cuda|_kernel_impl|_kernel|KernelImpl|Ops)"
    r"|CUDAFunctor\w*|\w+(?=\((?:at::)?Tensor))(?!\w)"
)
_GENERIC = regex(r"elementwise_kernel|^reduce_kernel|multi_tensor_apply_kernel|_for_multi_outputs")
_BRACKET = regex(r"[()]")
_DOTS = "…"
#: A number, or a word with one, that ends or begins here.
_NUMBERED = regex(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])[A-Za-z0-9]+$")
_NUMBERED_HEAD = regex(r"[A-Za-z0-9]*[0-9][A-Za-z0-9]*")
_LONGEST_NUMBER = 14
_PATH = regex(r"[^<>()]*/[^<>()]*/[^<>()]*")
#: A function and the place of its code, as in `forward (/job/model.py:68)`.
_CALL = regex(r"(?P<function>[^()]+) \((?:[^()]*[/\\])?(?P<file>[^()/\\]+\.\w{1,4}:\d+)\)")
_LEAST_FUNCTION = 6
_BRACKETS = frozenset("<>()[]{}")
_EDGES = " ,:&*_<>()[]{}"


@lru_cache(_CACHED)
def shorten(name: str, width: int = 60) -> str:
    """A readable form of at most `width` characters, for a name by itself: different names may become the same.

    Return type, arguments, template arguments and namespaces that say nothing go; of a generic kernel's template
    arguments the function it applies stays. Itanium-mangled names are read as far as their nested name goes.

    >>> shorten("void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>, int>(int)")
    'vectorized_elementwise_kernel<MulFunctor>'
    """
    return _call(name, width) or _fitted(_gist(name), width)


def _call(name: str, width: int) -> str | None:
    """A function with the name of its file and the line, in `width`; None for other names, and without room."""
    call = _CALL.fullmatch(name)
    if call is None:
        return None
    place = f" ({call['file']})"
    room = width - len(place)
    return without_middle(call["function"], room) + place if room >= _LEAST_FUNCTION else None


def _gist(name: str) -> str:
    """What a name says most: for kernels without return type, arguments, and most template arguments."""
    tensile = _TENSILE.match(name)
    if tensile:
        return "_".join(part for part in tensile.groups() if part)
    text = demangled(name, with_arguments=True) if name.startswith("_Z") else name
    return _without_arguments(_LEADING.sub("", text)) if _is_function(text) else text.removesuffix(_DESCRIPTOR)


def _is_function(name: str) -> bool:
    """Whether a name has template arguments or parameters; a line of Python, as in model.py(12): <lambda>, has none."""
    return "): " not in name and ("<" in name[1:] or (name.endswith((")", "]", _DESCRIPTOR)) and "(" in name))


def _fitted(text: str, width: int) -> str:
    """The text in `width`: without its namespaces, then without the middle; what is in brackets stays if it can."""
    if len(text) <= width:
        return text
    if _PATH.fullmatch(text):
        return _path(text, width)
    if " " in text and "<" not in text and "::" not in text:
        return _sentence(text, width)
    base = re.split(r"[<(]", text, maxsplit=1)[0]
    inside = text[len(base) :]
    base = base[base.rfind("::") + 2 :] if "::" in base else base
    if base.startswith("Cijk_") and not inside:
        head, _, tile = base.partition("_MT")
        tile = "_MT" + tile.partition("_")[0]
        if len(tile) <= width // 2:
            return head + tile if len(head + tile) <= width else without_middle(head, width - len(tile)) + tile
    room = width - len(inside)
    return (
        without_middle(base, room) + inside
        if inside and room >= min(len(base), width // 4)
        else without_middle(base + inside, width)
    )


def _path(path: str, width: int) -> str:
    """The first folder of a path and as many of the last parts as there is room for, the file's name before all."""
    first = "/".join(path.split("/")[: 2 if path.startswith("/") else 1])
    *folders, tail = path[len(first) :].lstrip("/").split("/")
    while folders and len(first) + len(folders[-1]) + len(tail) + 4 <= width:
        tail = f"{folders.pop()}/{tail}"
    for form in (f"{first}/{_DOTS}/{tail}", f"{_DOTS}/{tail}"):
        if len(form) <= width:
            return form
    return without_middle(tail, width)


def _sentence(text: str, width: int) -> str:
    """The beginning of a sentence or a list; of a line of Python its file and function."""
    folders, slash, rest = text.partition("): ")[0].rpartition("/")
    line = f"{_DOTS}/{text[len(folders) + 1 :]}"
    if slash and rest and "): " in text and len(line) <= width:
        return line
    return f"{text[: width - 1].rstrip()}{_DOTS}"[:width]


def _without_arguments(text: str) -> str:
    text = _SAYS_NOTHING.sub("", text)
    base = re.split(r"[<(]", text, maxsplit=1)[0]
    if not base:
        return text
    inside = text[len(base) :]
    if _CONTAINERS.match(base) and inside.startswith("<"):
        contained = _CONTAINED.search(inside)
        return contained[0] if contained else base
    if _GENERIC.search(base):
        parts = _INNER.findall(inside)
        return f"{base}<{parts[0]}>" if parts else base
    return base.strip()


@lru_cache(_CACHED)
def _with_parameters(name: str) -> str:
    """A name without what says nothing in any table: return type, some namespaces, types of literals."""
    if name.startswith("_Z"):
        return demangled(name, with_arguments=True)
    if not _is_function(name):
        return name
    return _CAST.sub("", _SAYS_NOTHING.sub("", _TRAILING.sub("", _LEADING.sub("", name))))


@lru_cache(_CACHED)
def _detail(name: str) -> str:
    """The same without the function's parameters; of a container what it contains."""
    text = without_parameters(_with_parameters(name))
    base = text.partition("<")[0]
    if text.endswith(">") and _CONTAINERS.match(base) and (contained := _CONTAINED.search(text, len(base))):
        return text[contained.start() : -1]
    return text


def without_parameters(name: str) -> str:
    """The name of a function without the list of parameters at its end.

    >>> without_parameters("ns::copy<(int)4>(char const*, void (*)(int))")
    'ns::copy<(int)4>'
    """
    if not name.endswith(")"):
        return name
    depth = 0
    for bracket in reversed(list(_BRACKET.finditer(name))):
        depth += 1 if bracket.group() == ")" else -1
        if depth == 0:
            at = bracket.start()
            # What follows a blank, as in "Memcpy HtoD (Pageable -> Device)", are no parameters.
            return name if at == 0 or name[at - 1] == " " else name[:at]
    return name


_LITERAL = {"b0": "false", "b1": "true"}
_TYPES = {"f": "float", "d": "double", "i": "int", "j": "unsigned int", "l": "long", "m": "unsigned long", "x": "long",
          "y": "unsigned long", "s": "short", "t": "unsigned short", "a": "signed char", "h": "unsigned char",
          "c": "char", "b": "bool", "v": "void", "DF16b": "bf16", "DF16_": "half", "Dh": "half"}  # fmt: skip
_MANGLED = regex(r"L(?P<of>[a-z])(?P<value>n?\d+)E|(?P<size>\d{1,4})|S[a-z0-9A-Z]*_|S[tabsiod]|T\d*_"
                      r"|(?P<type>DF16[b_]|Dh|[fdijlmxystahcbv])|(?P<bracket>[NIXJLE])|.")  # fmt: skip


def demangled(name: str, *, with_arguments: bool = False) -> str:
    """The nested name in an Itanium-mangled one, as ns::copy; its template arguments too if they are wanted.

    They are read roughly: numbers, built-in types and the last parts of names, without brackets inside.

    >>> demangled("_ZN5aiter8rms_normIDF16bLi256EN2ns4SwapEEEvPT0_", with_arguments=True)
    'aiter::rms_norm<bf16, 256, Swap>'
    """
    rest = re.sub(r"^_Z(?:N[KVr]*)?", "", name)
    parts: list[str] = []
    while match := re.match(r"(\d{1,4})", rest):
        size, rest = int(match.group(1)), rest[match.end() :]
        parts.append(rest[:size])
        rest = rest[size:]
    text = "::".join(part for part in parts if not part.startswith("_GLOBAL__N_"))
    if not text:
        return name
    arguments = ", ".join(_arguments(rest)) if with_arguments and rest.startswith("I") else ""
    return f"{text}<{arguments}>" if arguments else text


def _arguments(mangled: str) -> Iterator[str]:
    """Template arguments at the beginning of what follows a mangled name; of nested names the last part."""
    at, nested = 0, ""
    scopes = ""  # what each open bracket holds: N the parts of a name, L a literal, others arguments
    while match := _MANGLED.match(mangled, at):
        at = match.end()
        if match["size"] and not scopes.endswith("L"):
            part = mangled[at : at + int(match["size"])]
            at += len(part)
            if scopes.endswith("N"):
                nested = part
            else:
                yield part
        elif text := _literal(match):
            yield text
        elif match["bracket"]:
            if nested:
                yield nested
                nested = ""
            scopes = scopes[:-1] if match["bracket"] == "E" else scopes + match["bracket"]
            if not scopes:
                return


def _literal(match: re.Match[str]) -> str:
    """A number, an enumerator's number or a built-in type; empty for all else."""
    if match["of"]:
        return _LITERAL.get(match["of"] + match["value"], match["value"].replace("n", "-"))
    return match["size"] or _TYPES.get(match["type"] or "", "")


def without_middle(text: str, width: int) -> str:
    """The text in at most `width` characters, without its middle: two thirds of what is left are its beginning.

    No number is cut in two, as half of one is another number.

    >>> without_middle("gemm_bf16_128x256_stages_4_tn", 20)
    'gemm_bf16_…s_4_tn'
    """
    if len(text) <= width:
        return text
    tail = max(width - 1, 0) // 3
    begin, end = max(width - 1 - tail, 0), len(text) - tail
    token = _NUMBERED.search(text, max(begin - _LONGEST_NUMBER, 0), begin)
    if token and token.start() and text[begin].isalnum():
        begin = token.start()
    token = _NUMBERED_HEAD.match(text, end, end + _LONGEST_NUMBER)
    if token and text[end - 1].isalnum():
        end = token.end()
    return f"{text[:begin]}{_DOTS}{text[end:]}"[: max(width, 0)]


def shorten_column(names: Sequence[str], width: int) -> list[str]:
    """The names of one column of a table, each in at most `width` characters, different names different.

    Where all fit, only the ending of AMD's symbols goes. Else each loses what says nothing, and those that are still
    too long keep what sets them apart from names like them. Where `width` has no room for that, different names may
    become the same.

    >>> shorten_column(["void ns::gemm<128, 64, float>(int)", "void ns::gemm<128, 32, float>(int)"], 16)
    ['ns::gemm<…64>', 'ns::gemm<…32>']
    """
    distinct = dict.fromkeys(names)
    plain = {name: name.removesuffix(_DESCRIPTOR) for name in distinct}
    if len(set(plain.values())) == len(plain):
        names, distinct = [plain[name] for name in names], dict.fromkeys(plain.values())
    if all(len(name) <= width for name in distinct):
        return list(names)
    calls = {name: made for name in distinct if len(name) > width and (made := _call(name, width))}
    often = Counter([*calls.values(), *distinct])
    calls = {name: made for name, made in calls.items() if often[made] == 1}
    details = _unique_details(name for name in distinct if name not in calls)
    short = {name: text for name, text in details.items() if len(text) <= width}
    taken = {*short.values(), *calls.values()}
    gists, names_of, alike = {}, {}, defaultdict(list)
    for name, text in details.items():
        if name not in short:
            gist = gists[text] = _gist(name)
            names_of[text] = name
            fitted = _fitted(gist, width)
            # Names that are long without any arguments are alike if they begin alike.
            is_plain = _DOTS in fitted and not fitted.endswith(">") and not _PATH.fullmatch(text)
            alike[gist[: width // 3] if is_plain else fitted].append(text)
    for group in sorted(alike.values(), key=len):
        for text, pieces in _differences(group):
            forms = _candidates(text, gists[text], pieces, width)
            if gists[text] == text and text.isidentifier() and _shows(text, pieces, width):
                forms = chain([without_middle(text, width)], forms)
            made = next((form for form in forms if form not in taken), without_middle(text, width))
            short[names_of[text]] = made
            taken.add(made)
    short |= calls
    return [short[name] for name in names]


def _unique_details(names: Iterable[str]) -> dict[str, str]:
    """Each name without what says nothing. Of names that would become equal more stays, in the end all."""
    details: dict[str, str] = {}
    remaining = list(names)
    for form in (_detail, _with_parameters, str):
        texts = [form(name) for name in remaining]
        users = Counter([*texts, *details.values()])
        details |= {name: text for name, text in zip(remaining, texts, strict=True) if users[text] == 1}
        remaining = [name for name in remaining if name not in details]
    return details | {name: name for name in remaining}


def _shows(text: str, pieces: Sequence[tuple[int, int]], width: int) -> bool:
    """Whether the text without its middle has all its pieces whole: nothing shows more of a name of words alone."""
    head, _, tail = without_middle(text, width).partition(_DOTS)
    end = len(text) - len(tail)
    return bool(tail) and all(stop <= len(head) or start >= end for start, stop in pieces)


#: Text in which what separates tokens sorts before letters and digits, so that equal beginnings stay together.
_SORTED = str.maketrans({c: chr(i) for i, c in enumerate(":;<=>?@[\\]^_`{|}~", 1)})
#: A word or a number, with what separates it from the one before; words in CamelCase are several.
_TOKEN = regex(r"[^A-Za-z0-9]?[A-Za-z0-9](?:[a-z0-9]|(?<![a-z])[A-Z])*|[^A-Za-z0-9]|$")


def _differences(texts: Sequence[str]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """For each text where the tokens are (begin, end) that set it apart from the rest, from left to right.

    These are the branches of the tree that the sorted texts make, along the way to each of them.
    """
    ordered = sorted(texts, key=lambda text: text.translate(_SORTED))
    common = [_common(a, b) for a, b in pairwise(ordered)]
    before = _running_minima(common)
    after = [*reversed(_running_minima(common[::-1]))]
    for text, left, right in zip(ordered, before, after, strict=True):
        yield text, [_token(text, at) for at in sorted({*left, *right})]


def _running_minima(values: Sequence[int]) -> list[tuple[int, ...]]:
    """For each place between the values, and at both ends, the distinct minima of the values just before it."""
    stack: tuple[int, ...] = ()
    minima = [stack]
    for value in values:
        n = len(stack)
        while n and stack[n - 1] >= value:
            n -= 1
        stack = (*stack[:n], value)
        minima.append(stack)
    return minima


def _token(text: str, at: int) -> tuple[int, int]:
    match = _TOKEN.match(text, at)
    return (at, at) if match is None else match.span()


def _common(a: str, b: str) -> int:
    """How many characters both begin with, in whole tokens."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    while _is_inside(a, low) or _is_inside(b, low):
        low -= 1
    return low


def _is_inside(text: str, at: int) -> bool:
    """Whether the place is inside a token."""
    before, after = text[at - 1 : at], text[at : at + 1]
    return before.isalnum() and after.isalnum() and not (before.islower() and after.isupper())


def _candidates(text: str, gist: str, pieces: Sequence[tuple[int, int]], width: int) -> Iterator[str]:
    """Forms of a text that show what sets it apart: as one stretch, token by token, then with ever fewer tokens."""
    pieces = [piece for piece in pieces if piece[0] < piece[1]]
    if not pieces:
        yield _fitted(gist, width)
    else:
        first, last = pieces[0][0], pieces[-1][1]
        head = text[:first] if gist == text else gist
        stretch = text[first:last]
        if stretch.count("<") == stretch.count(">") and stretch.count("(") == stretch.count(")"):
            yield from _composed(text, head, (first, last), stretch, width)
        identifiers = _merged((*_extended(text, *piece),) for piece in pieces)
        tokens = _merged(pieces)
        yield from _composed(text, head, (identifiers[0][0], identifiers[-1][1]), _joined(text, identifiers), width)
        for chosen in (tokens, identifiers):
            while chosen:
                yield from _composed(text, head, (chosen[0][0], chosen[-1][1]), _joined(text, chosen), width)
                chosen.remove(max(chosen[:-1] or chosen, key=lambda piece: piece[1] - piece[0]))
    yield without_middle(text, width)


_AFTER = regex(r"\w*(?:::\w+)*")


def _extended(text: str, begin: int, end: int) -> tuple[int, int]:
    """The piece with the whole of the identifiers that it is a part of."""
    while begin and (text[begin - 1].isalnum() or text[begin - 1] == "_"):
        begin -= 1
    after = _AFTER.match(text, end)
    return begin, after.end() if after else end


def _merged(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces that overlap as one."""
    merged: list[tuple[int, int]] = []
    for begin, end in pieces:
        if merged and begin < merged[-1][1]:
            merged[-1] = (min(begin, merged[-1][0]), max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


def _joined(text: str, pieces: Sequence[tuple[int, int]]) -> str:
    """The pieces with dots between them, but for blanks and the like between neighbours."""
    made, end = "", pieces[0][0]
    for begin, stop in pieces:
        between = text[end:begin] + text[begin : begin + 1]
        if made and (len(between) > 3 or _BRACKETS.intersection(between)):
            made = made.rstrip(_EDGES) + _DOTS + text[begin:stop].lstrip(_EDGES)
        else:
            made += text[end:stop]
        end = stop
    return made


def _composed(text: str, head: str, at: tuple[int, int], middle: str, width: int) -> Iterator[str]:
    """The beginning and what sets the text apart, which is at these places of it, if both fit."""
    first, last = at
    middle = middle.rstrip(_EDGES)
    closing = ""
    if text.startswith(head) and len(head) >= first:  # the text goes on from its head
        opening, head = "", text[:first]
        rest = text[first:][len(middle) :] if text.startswith(middle, first) else text[last:]
        closing = without_middle(rest, max(width - len(head) - len(middle), 1)) if rest else ""
    else:
        middle = middle.lstrip(_EDGES)
        if head.endswith(">"):
            opening, closing, head = _DOTS, ">", head[:-1]
        elif "<" in text[:first] and "<" not in head:
            opening, closing = "<" if text.index("<") == first - 1 else "<" + _DOTS, ">"
        else:
            opening = _DOTS
    room = width - len(middle) - len(opening) - len(closing)
    if middle and room >= min(len(head), width // 4):
        end = closing if closing == ">" and "<" in head else ""
        head = _fitted(head + end, room + len(end)).removesuffix(end)
        yield (head.removesuffix(_DOTS) if opening.startswith(_DOTS) else head) + opening + middle + closing
