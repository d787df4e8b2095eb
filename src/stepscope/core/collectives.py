"""What a collective is: its kinds, the names of its kernels, operators and records, and how much data it moves.

A collective is any exchange of data between ranks, so messages from one rank to another count too. Names are those of
NCCL, RCCL, HCCL, CNCL, oneCCL, Gloo, MPI, UCC, XLA, NVSHMEM, DeepEP and of the custom kernels of inference engines.
Everything here uses names alone. Exports that imitate other tools keep those tools' own lists of names.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.core.table import map_names

if TYPE_CHECKING:
    from collections.abc import Callable

_CACHED = 1 << 16


def _all(n: pl.Expr) -> pl.Expr:
    del n
    return pl.lit(1.0)


def _all_but_own(n: pl.Expr) -> pl.Expr:
    return 1 - 1 / n


def _there_and_back(n: pl.Expr) -> pl.Expr:
    return 2 * (1 - 1 / n)


class Collective(NamedTuple):
    """A kind of collective. `pattern` is searched in lower-case names; the first match in KINDS counts."""

    name: str
    label: str  # in reports
    pattern: str
    bus: Callable[[pl.Expr], pl.Expr] | None  # bus bandwidth by algorithm bandwidth among n ranks; None: moves nothing
    synchronises: bool = False  # no rank can leave before all ranks have arrived
    distinct: bool = False  # only communication has such names; other patterns occur in names of plain kernels too


#: Every kind, by its name.
KINDS = {
    kind.name: kind
    for kind in (
        Collective(
            "allreduce",
            "all-reduce",
            r"(?<!warp)(?<!block)(?<!warp_)(?<!block_)all[-_]?reduce|cross_device_reduce|quick_?reduce",
            _there_and_back,
            synchronises=True,
            distinct=True,
        ),
        Collective(
            "reduce_scatter", "reduce-scatter", r"reduce[-_]?scatter", _all_but_own, synchronises=True, distinct=True
        ),
        Collective("allgather", "all-gather", r"all[-_]?gather", _all_but_own, synchronises=True, distinct=True),
        Collective(
            "alltoall", "all-to-all", r"all[-_]?to[-_]?all|all2all", _all_but_own, synchronises=True, distinct=True
        ),
        Collective("broadcast", "broadcast", r"broadcast|bcast", _all),
        Collective("barrier", "barrier", r"barrier", None, synchronises=True),
        Collective("send_recv", "send and receive", r"send_?i?recv", _all),
        Collective("send", "send and receive", r"send", _all),
        Collective("recv", "send and receive", r"recv|receive", _all),
        Collective("gather", "gather", r"gather", _all_but_own),
        Collective("scatter", "scatter", r"scatter", _all_but_own),
        Collective("reduce", "reduce", r"reduce", _all),
        Collective("permute", "permute", r"collective[-_]permute", _all, distinct=True),
    )
}
SYNCHRONISING = tuple(kind.name for kind in KINDS.values() if kind.synchronises)
POINT_TO_POINT = ("send_recv", "send", "recv")
#: The recorded category of device work that its recorder lists among collectives.
RECORDED = "communication"
#: The label of a collective whose name does not say its kind.
UNNAMED = "communication"
#: Kernels named after their method: the all-reduces of inference engines, and DeepEP's all-to-all of tokens.
_BY_METHOD = {"allreduce": r"one_?shot|two_?shot|lamport", "alltoall": r"dispatch|combine|cached_notify"}
_PATTERNS = tuple(
    (name, regex(pattern))
    for name, pattern in (*((kind.name, kind.pattern) for kind in KINDS.values()), *_BY_METHOD.items())
)

#: Libraries that exchange data on the host itself.
HOST_LIBRARIES = ("gloo", "mpi", "ucc")
#: An operator or range is called after its library: gloo:all_reduce, c10d::allreduce_, or as the library's function:
#: ncclAllReduce, HcclAllreduce, MPI_Allreduce. MPI's functions that begin with I return before the transfer.
_PREFIX = regex(
    r"(?:(gloo|mpi|ucc|ucx|cncl|[a-z]*ccl):|_?(c10d)(?:_functional)?::"
    r"|([nrhmxNRHMX]ccl|cncl)(?=[A-Z])(?!(?:Dev)?Kernel)|P?(MPI)_(?=[A-HJ-Z]))"
)
_VENDORS = r"(?:n|r|h|m|x|b|one|ms)ccl|cncl|bkcl|^hcom"
_MPI = r"^p?mpi_i?(?:all|bcast|barrier|[bsr]?send|m?recv|reduce|gather|scatter|wait|scan|exscan|neighbor)"
_XLA = r"^%?(?:all-reduce|(?:ragged-)?all-to-all|all-gather|reduce-scatter|collective-(?:permute|broadcast))"
_XLA_ENDING = r"(?:-start|-done)?(?:[.-](?:\d+|clone|remat\d*))*$"
_COMMUNICATION = regex(
    rf"{_VENDORS}|{_MPI}|\bccl|c10d::|c10d_functional|record_param_comms|^(?:gloo|mpi|ucc|ucx):"
    r"|nvshmem|rocshmem|symm_mem|deep_ep::(?!\w*::\w*layout|\w*layout)|hybrid_ep::(?:dispatch|combine|device_sync)"
    r"|(?:inter|intra)node(?:_ll)?(?:::(?!\w*layout)|\d)|userbuffers|(?<![a-z])multimem_|lamport|epdispatch|epcombine"
    r"|a2a_?(?:dispatch|combine)|moe_?a2a"
    rf"|{'|'.join(kind.pattern for kind in KINDS.values() if kind.distinct)}"
    rf"|{_XLA}{_XLA_ENDING}|^%?(?:send|recv){_XLA_ENDING}"
)
#: The narrower set that other tools count (TraceLens: nccl, rccl, cross_device_reduce), with the vendors that they do
#: not know and XLA's own collectives.
_LIBRARY = regex(rf"{_VENDORS}|cross_device_reduce|{_XLA}{_XLA_ENDING}")
#: What HCCL writes after the name of a collective: the end of its group's number, the number of the call, and another.
_HCCL_NUMBERS = regex(r"^(hcom_\w+?)__\d+_\d+_\d+$")
#: Kernels that Inductor wrote. Their names list the operators fused into them and those around them.
INDUCTOR_KERNEL = regex(r"^triton_(?:poi|red|per|tem|for|mix|unk|split_scan)_fused")
#: Names that only mention a collective: such kernels, and Python frames.
_MENTION = regex(rf"{INDUCTOR_KERNEL.pattern}|\.py\(\d+\): |^<built-in ")
#: What XLA writes after the name of an operation: the operation in full, with those that it takes its input from.
_XLA_OPERANDS = regex(r"^(%[\w.-]+) = .*", re.DOTALL)


@lru_cache(_CACHED)
def is_communication(name: str) -> bool:
    """Whether a kernel or operator of that name exchanges data with other ranks.

    Collective libraries (NCCL and its kin), point-to-point and one-sided transports, the custom all-reduces of
    inference engines, expert dispatch and combine over the network, and `c10d::`, `nccl:`, `gloo:` operators on the
    host. Kernels that only prepare data on their own device do not count.
    """
    lower = _lower(name)
    return _COMMUNICATION.search(lower) is not None and _MENTION.search(lower) is None


@lru_cache(_CACHED)
def is_collective_library(name: str) -> bool:
    """Whether a kernel is from a collective library: NCCL and its kin, vLLM's cross_device_reduce, XLA's collectives.

    Narrower than `is_communication`, which also knows kernels that talk to other ranks by themselves.
    """
    lower = _lower(name)
    return _LIBRARY.search(lower) is not None and _MENTION.search(lower) is None


def _lower(name: str) -> str:
    return _XLA_OPERANDS.sub(r"\1", name).lower()


def communication_mark(name: str) -> str:
    """The part of a name, in lower case, by which `is_communication` knows it."""
    match = _COMMUNICATION.search(_lower(name))
    return match.group() if match else ""


def talks_to_ranks(names: pl.Series, communication: str = "any") -> pl.Series:
    """Whether each name is communication: `any`, `library`, or a regular expression to search for.

    `any` is `is_communication`, `library` is `is_collective_library`.
    Raises StepscopeError if `communication` is no regular expression.
    """
    if communication in {"library", "any"}:
        fits = is_collective_library if communication == "library" else is_communication
        return map_names(names, fits, pl.Boolean())
    try:
        search = re.compile(communication).search
    except re.error as error:
        raise StepscopeError(f"not a regular expression: {communication!r} ({error})") from error
    return map_names(names, lambda name: search(name) is not None, pl.Boolean())


@lru_cache(_CACHED)
def kind_of(name: str) -> str | None:
    """The kind of collective that a kernel, an operator or a record names; None if the name does not say.

    Only pass names of communication: plain kernels also reduce, gather or dispatch.

    >>> kind_of("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), kind_of("mpi:bcast"), kind_of("ncclDevKernel_Generic")
    ('allreduce', 'broadcast', None)
    """
    lower = _lower(name)
    return next((kind for kind, pattern in _PATTERNS if pattern.search(lower)), None)


def without_run_numbers(names: pl.Series) -> pl.Series:
    """The names of kernels, where HCCL's collectives lose the numbers of their group and call: they are one operation.

    >>> without_run_numbers(pl.Series(["hcom_allReduce__586_0_1", "MatMulV2"])).to_list()
    ['hcom_allReduce', 'MatMulV2']
    """
    if not any(_HCCL_NUMBERS.search(name) for name in names.unique().cast(pl.String).drop_nulls()):
        return names
    return map_names(names, lambda name: _HCCL_NUMBERS.sub(r"\1", name), pl.String()).cast(names.dtype)


def kinds_of(names: pl.Series) -> pl.Series:
    """`kind_of` of each name, as String."""
    return map_names(names, kind_of, pl.String())


def label_of(name: str) -> str:
    """The label of the collective of that name: `all-reduce`, or `communication` if the name does not say.

    >>> label_of("hcom_allReduce__586_0_1"), label_of("all-gather.2"), label_of("ncclDevKernel_Generic")
    ('all-reduce', 'all-gather', 'communication')
    """
    kind = kind_of(name)
    return UNNAMED if kind is None else KINDS[kind].label


@lru_cache(_CACHED)
def library_of(name: str) -> str | None:
    """The library that a host operator or range of a collective names; `c10d` is PyTorch's own call of any library.

    >>> library_of("gloo:all_reduce"), library_of("_c10d_functional::all_reduce"), library_of("aten::gather")
    ('gloo', 'c10d', None)
    """
    match = _PREFIX.match(name)
    return next(group for group in match.groups() if group).lower() if match and kind_of(name) else None


def bus_factor(kind: pl.Expr, n: pl.Expr) -> pl.Expr:
    """Bus bandwidth by algorithm bandwidth of a kind of collective among n ranks. Units: ratio.

    2(n−1)/n for all-reduce; (n−1)/n for all-gather, reduce-scatter, all-to-all, gather and scatter; 1 for broadcast,
    reduce and messages. Null for a barrier, for an unknown kind, and for a single rank, which sends nothing.

    Source: nccl-tests, doc/PERFORMANCE.md; for gather, scatter and messages src/gather.cu, scatter.cu and sendrecv.cu.
    """
    factors = (pl.when(kind == each.name).then(each.bus(n)) for each in KINDS.values() if each.bus is not None)
    return pl.when((n > 1) | n.is_null()).then(pl.coalesce(factors))


def size_of_whole(kind: pl.Expr, into: pl.Expr, out: pl.Expr, n: pl.Expr | None = None) -> pl.Expr:
    """The size by which a collective is measured: all that is gathered or scattered, else what goes in or comes out.

    `into` and `out` are the bytes of one rank, null where not known. Among `n` ranks the result of an all-gather
    follows from what one rank puts in, and the input of a reduce-scatter from what one rank gets out.

    Units: bytes. Source: nccl-tests, doc/PERFORMANCE.md.
    """
    n = pl.lit(None, pl.Int64) if n is None else n
    return (
        pl.when(kind == "allgather")
        .then(pl.coalesce(out, into * n))
        .when(kind == "reduce_scatter")
        .then(pl.coalesce(into, out * n))
        .otherwise(pl.max_horizontal(into, out))
    )
