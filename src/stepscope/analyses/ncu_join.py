"""A timeline's kernels joined to the counters of another recording: nsys or a framework's trace, and what ncu measured.

Counting slows kernels down and runs them one by one, so counters say how kernels use the device, and only the timeline
says when they run. Launches of the same kernel with the same grid and block do the same work in both. They are matched
by name, then by grid and block, then by nearest size. Tools write one name differently: `void
at::native::copy<(int)4, (bool)1>(T1 *)`, `void at::native::copy<4, true>(float*)`, `copy` alone, or the mangled name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import polars as pl

from stepscope.core.counter_roles import RATIO_ROLES, preference
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.names import demangled, shorten
from stepscope.core.patterns import regex
from stepscope.core.schema import ISSUES, KERNEL_METRICS, KERNELS
from stepscope.core.units import percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stepscope.core.trace import Trace

_ADDED = regex(r"\s*\[(?:clone|with)\b.*$|\.kd$")
_UNNAMED = regex(r"\(anonymous namespace\)::|<?\bunnamed>::|\{anonymous\}::|\b_GLOBAL__N_\w*::")
_LAMBDA = regex(r"\{lambda\([^{}]*\)#(\d+)\}|\[lambda\([^\[\]]*\) \(instance (\d+)\)\]")
_CAST = regex(r"\([A-Za-z_][\w: ]*\)(?=-?\d)")
_SUFFIX = regex(r"(?<![\w.])(\d+)(?:[uU][lL]{0,2}|[lL]{1,2}[uU]?)(?!\w)")
_SPELLINGS = {"true": "1", "false": "0", "const": "", "volatile": "", "struct": "", "enum": ""}
_SPELLED = regex(rf"\b(?:{'|'.join(_SPELLINGS)})\b")
_RETURNED = regex(r"\bvoid\s+(?=[A-Za-z_])")
_INLINE = regex(r"\bstd::__\w+::")
_BRACKETS = regex(r"\([^()]*\)")
_TEMPLATE = regex(r"<[^<>]*>")
_TOKEN = regex(r"\w+|::|[^\w\s]")
SIZES = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
#: How a launch was matched to counters, surest first. Only the first means that the launches are the same.
RULES = ("size", "nearest", "name")
Rule = pl.Enum(RULES)
#: The row of `issues` that says how much of the timeline has counters now.
CODE = "counters_stitched"
_RULE_LABELS = {"size": "by name, grid and block", "nearest": "by name and nearest size", "name": "by name alone"}
#: What a launch of another size has in common with this one: shares of a peak, ratios, rates.
_INTENSIVE_UNIT = r"^%$|^ratio$|/|^hz$"
_INTENSIVE_NAME = r"(?i)percent|util|ratio|hit_?rate|\.pct|per_second|per_cycle"
_FILLED = ("registers", "est_occupancy_ratio")
_FILLED_IF_SAME = ("shared_bytes", "blocks_per_sm", "warps_per_sm")
_METRIC = ("metric", "unit")
_WORTH_TELLING = 0.001
#: More rows would take more than a gigabyte. Then only counters that an analysis reads are joined.
MOST_ROWS = 1 << 25


def stitched(timeline: Trace, counters: Trace) -> Trace:
    """The timeline with the counters in `kernel_metrics`, and with what it lacks of registers, occupancy and the like.

    A kernel gets the means over the counted launches of the same name, grid and block. If there are none, it gets those
    of the launches with the nearest number of threads (of two the first); if its size is not known, those of all
    launches of the name. In both cases only counters that do not grow with the work (percentages, rates) are taken.
    Names are compared without return type, argument types and spelling (`(int)4`, `4`). If one of them is less
    complete, only the parts that both have are compared. Kernels that have counters of their own keep them. A row of
    `issues` says how much of the kernels' time is covered, and by which rule.

    Raises MissingTable (no kernels in the timeline, no counters in the other).
    """
    launches = launches_of(timeline)
    if launches.is_empty():
        raise MissingTable("kernels", needed_by="--with", hint="it joins counters to the kernels of a timeline")
    counted = launches_of(counters).join(counters.kernel_metrics.select("span_id").unique(), on="span_id", how="semi")
    if counted.is_empty():
        what = f"{counters.meta.path} holds no counters of kernels to join to {timeline.meta.path}"
        raise StepscopeError(what, "give --with what ncu wrote: ncu --csv --set full …, or --metrics …")
    own = timeline.kernel_metrics
    launches = launches.join(own.select("span_id").unique(), on="span_id", how="anti", maintain_order="left")
    members, per_launch = matched(launches, counted)
    metrics, left_out = _metrics(per_launch, members, counters.kernel_metrics)
    issues = [*_coverage(launches, per_launch, counters), *_devices(timeline, counters)]
    if left_out:
        what = f"counters that no analysis looks at are left out, as there would be too many rows: {left_out[0]} …"
        issues.append(("metrics_left_out", "info", len(left_out), what))
    rows = pl.DataFrame(issues, schema=dict(ISSUES.dtypes), orient="row")
    return timeline.with_tables(
        kernel_metrics=pl.concat([own, metrics]).sort("span_id", maintain_order=True) if own.height else metrics,
        kernels=_kernels(timeline, per_launch, members, counters.kernels),
        issues=pl.concat([ISSUES.conform(timeline.issues), rows]),
    )


def _metrics(per_launch: pl.DataFrame, members: pl.DataFrame, metrics: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """The `kernel_metrics` of the timeline's launches, and the names of counters that had to be left out."""
    used = per_launch.drop_nulls("group")
    members = members.join(used.select("group").unique(), on="group", how="semi", maintain_order="left")
    known = metrics.filter(pl.col("value").is_not_null())
    means = members.join(known, on="span_id", how="inner", maintain_order="left")
    means = means.group_by("group", *_METRIC, maintain_order=True).agg(pl.col("value").mean())
    unit, name = pl.col("unit").cast(pl.String).fill_null(""), pl.col("metric").cast(pl.String)
    named = means.select(_METRIC).unique()
    named = named.with_columns(intensive=unit.str.contains(_INTENSIVE_UNIT) | name.str.contains(_INTENSIVE_NAME))
    left_out: list[str] = []
    if _n_rows(used, means) > MOST_ROWS:
        is_used = _looked_at(named)
        left_out = named.filter(~is_used)["metric"].cast(pl.String).unique().sort().to_list()
        named = named.filter(is_used)
    means = means.join(named, on=_METRIC, how="inner", nulls_equal=True, maintain_order="left")
    # Each group twice: as it is for the same launch, without what grows with the work for one of another size.
    same, other = pl.col("group") * 2, pl.col("group") * 2 + 1
    means = pl.concat([means.with_columns(same), means.filter("intensive").with_columns(other)])
    used = used.select("span_id", group=pl.when(pl.col("rule") == RULES[0]).then(same).otherwise(other))
    return KERNEL_METRICS.conform(_spread(used, means.sort("group", maintain_order=True))), left_out


def _n_rows(used: pl.DataFrame, means: pl.DataFrame) -> int:
    """How many rows the result has at least."""
    of_group = means.group_by("group").len("n")
    return int(used.join(of_group, on="group", how="inner")["n"].cast(pl.Int64).sum())


def _looked_at(named: pl.DataFrame) -> pl.Series:
    """Whether some analysis reads each counter."""
    from stepscope.analyses.costs.kernel_costs import role_of

    rows = named.select(pl.col(_METRIC).cast(pl.String)).rows()
    looked = [any(preference(m, r) is not None for r in RATIO_ROLES) or role_of(m, u) is not None for m, u in rows]
    return pl.Series(looked, dtype=pl.Boolean)


def _spread(launches: pl.DataFrame, means: pl.DataFrame) -> pl.DataFrame:
    """The means of each launch's group, launch by launch; `means` are sorted by group."""
    group, wanted = means["group"].to_numpy(), launches["group"].to_numpy()
    first, last = np.searchsorted(group, wanted), np.searchsorted(group, wanted, side="right")
    counts = last - first
    span_id = pl.Series(np.repeat(launches["span_id"].to_numpy(), counts), dtype=pl.UInt32)
    # Row numbers: first, first + 1, … of each launch, one launch after the other.
    rows = np.repeat(first - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
    rows += np.arange(rows.size)
    at = pl.Series(rows.astype(np.uint32))
    del rows
    return pl.DataFrame({"span_id": span_id, **{c: means[c].gather(at) for c in (*_METRIC, "value")}})


def _kernels(timeline: Trace, per_launch: pl.DataFrame, members: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """The timeline's `kernels` with one row per kernel; unknown values come from counted launches."""
    columns = (*_FILLED, *_FILLED_IF_SAME)
    known = members.join(counted.select("span_id", *columns), on="span_id", how="inner")
    known = known.group_by("group").agg(pl.col(columns).mean().name.suffix("_counted"))
    means = per_launch.drop_nulls("group").join(known, on="group", how="left", maintain_order="left")
    frame = timeline.kernels
    missing = per_launch.select("span_id").join(frame.select("span_id"), on="span_id", how="anti")
    if missing.height:
        frame = pl.concat([frame, KERNELS.conform(missing)]).sort("span_id")
    frame = frame.join(means, on="span_id", how="left", maintain_order="left")
    is_same = pl.col("rule") == RULES[0]
    # Kineto writes an occupancy of 0 where it cannot estimate it, as of kernels with much shared memory.
    is_unknown = (pl.col("est_occupancy_ratio") == 0) & (pl.col("warps_per_sm") >= 1)
    occupancy = pl.when(~is_unknown.fill_null(value=False)).then("est_occupancy_ratio")
    of = {"est_occupancy_ratio": occupancy, "registers": pl.col("registers")}
    filled = [pl.coalesce(of[name], f"{name}_counted").alias(name) for name in _FILLED]
    filled += [pl.coalesce(name, pl.when(is_same).then(f"{name}_counted")).alias(name) for name in _FILLED_IF_SAME]
    return KERNELS.conform(frame.with_columns(filled))


def _coverage(launches: pl.DataFrame, per_launch: pl.DataFrame, counters: Trace) -> Iterator[tuple[str, str, int, str]]:
    """What share of the kernels' time has counters, by which rule, and the costliest kernel without."""
    frame = launches.select("name", dur_ns=pl.col("dur_ns").fill_null(0))
    frame = frame.with_columns(per_launch.select("rule", "is_mixed"))
    whole = max(int(frame["dur_ns"].sum()), 1)
    times = dict(frame.group_by("rule").agg(pl.col("dur_ns").sum()).rows())
    n = frame.height - frame["rule"].null_count()
    covered = sum(ns for rule, ns in times.items() if rule is not None)
    text = f"counters of {counters.meta.path} cover {percent(covered / whole)} of the time of kernels"
    by_rule = [f"{percent(times[rule] / whole)} {_RULE_LABELS[rule]}" for rule in RULES if rule in times]
    text += f" ({', '.join(by_rule)})" if by_rule else ""
    bare = frame.filter(pl.col("rule").is_null()).group_by("name").agg(pl.col("dur_ns").sum())
    if bare.height:
        name, ns = bare.sort("dur_ns", pl.col("name").cast(pl.String), descending=[True, False]).row(0)
        if ns >= _WORTH_TELLING * whole:
            text += f"; the most without: {shorten(name)}, {percent(ns / whole)}"
    yield CODE, "info" if 2 * covered >= whole else "warning", n, text
    mixed = frame.filter("is_mixed")
    if mixed.height:
        share = percent(int(mixed["dur_ns"].sum()) / whole)
        known = f"names that stand for several counted kernels, as {shorten(mixed['name'][0])}"
        what = f"{known}: {share} of the time has their means"
        yield "counters_mixed", "info", mixed.height, what


def _devices(timeline: Trace, counters: Trace) -> Iterator[tuple[str, str, int, str]]:
    """A warning if the counters are of another product."""
    ours, theirs = (set(trace.devices["name"].drop_nulls().to_list()) for trace in (timeline, counters))
    if ours and theirs and not ours & theirs:
        what = f"counters are of {', '.join(sorted(theirs))}, the timeline is of {', '.join(sorted(ours))}"
        yield "other_device", "warning", 1, what


def launches_of(trace: Trace) -> pl.DataFrame:
    """`span_id`, `name`, `dur_ns`, SIZES and `threads` of each kernel, null where not known."""
    kernels = trace.spans.filter(pl.col("category") == "kernel").select("span_id", "name", "dur_ns")
    sizes = trace.kernels.select("span_id", *SIZES)
    extents = [pl.col(name).cast(pl.Int64) for name in SIZES]
    kernels = kernels.join(sizes, on="span_id", how="left", maintain_order="left")
    return kernels.with_columns(threads=pl.reduce(lambda a, b: a * b, extents))


def matched(timeline: pl.DataFrame, counted: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Groups of counted launches that are alike, and for each launch of the timeline its group.

    Both arguments are as of `launches_of`. The first result has `group` and `span_id`, a row for each counted launch of
    a group: those of a kernel with the same grid and block, or all of a kernel. The second has `span_id`, `group` and
    `rule`, null where nothing matches, and `is_mixed`: several counted names may be this kernel. In order of
    `timeline`.
    """
    kinds, members = _kinds(timeline["name"], counted["name"])
    counted = counted.join(members, on="name", how="inner", maintain_order="left").with_row_index("order")
    keys = ["kind", *SIZES]
    sized = counted.drop_nulls(SIZES)
    groups = sized.group_by(keys, maintain_order=True).agg(
        pl.col("threads").first(), pl.col("order").first(), pl.col("span_id")
    )
    of_kind = counted.group_by("kind", maintain_order=True).agg(pl.col("span_id"))
    groups = groups.with_row_index("group")
    of_kind = of_kind.with_row_index("group", offset=groups.height)
    wanted = timeline.join(kinds, on="name", how="left", maintain_order="left")
    group_of = _sized(wanted.select(*keys, "threads").unique(), groups, of_kind, keys)
    per_launch = wanted.join(group_of, on=keys, how="left", nulls_equal=True, maintain_order="left")
    members_of = pl.concat([groups.select("group", "span_id"), of_kind.select("group", "span_id")])
    per_launch = per_launch.with_columns(is_mixed=pl.col("is_mixed").fill_null(value=False))
    return members_of.explode("span_id", empty_as_null=False), per_launch.select("span_id", "group", "rule", "is_mixed")


def _kinds(names: pl.Series, known: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Numbers of kernels: that of each name of the timeline, and all those that a counted name may mean."""
    distinct, counted = (series.unique(maintain_order=True).drop_nulls() for series in (names, known))
    same = same_kernels(distinct.cast(pl.String), counted.cast(pl.String).to_list())
    numbers: Mapping[tuple[str, ...], int] = {those: i for i, those in enumerate(dict.fromkeys(same.values()))}
    kinds = pl.DataFrame(
        [(name, numbers[those], len(those) > 1) for name, those in same.items()],
        schema={"name": names.dtype, "kind": pl.UInt32, "is_mixed": pl.Boolean},
        orient="row",
    )
    rows = [(name, i) for those, i in numbers.items() for name in those]
    members = pl.DataFrame(rows, schema={"name": known.dtype, "kind": pl.UInt32}, orient="row")
    return kinds, members


def _sized(wanted: pl.DataFrame, groups: pl.DataFrame, of_kind: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The group and the rule of each distinct kernel with its size."""
    wanted = wanted.filter(pl.col("kind").is_not_null())
    exact = wanted.join(groups.select(*keys, "group"), on=keys, how="inner").select(*keys, "group", rule=_rule("size"))
    rest = wanted.join(exact, on=keys, how="anti", nulls_equal=True)
    sized = rest.drop_nulls("threads").sort("threads")
    by_size = groups.sort("threads", "order").unique(["kind", "threads"], keep="first", maintain_order=True)
    by_size = by_size.select("kind", "order", "group", size="threads").sort("size")
    ends = [
        sized.join_asof(
            by_size, left_on="threads", right_on="size", by="kind", strategy=strategy, coalesce=False,
            check_sortedness=False,
        )
        for strategy in ("backward", "forward")
    ]  # fmt: skip
    # Of two as near as each other the one that ran first.
    nearest = pl.concat(ends).drop_nulls("group").with_columns(apart=(pl.col("size") - pl.col("threads")).abs())
    nearest = nearest.sort("apart", "order").unique(keys, keep="first", maintain_order=True)
    near = nearest.select(*keys, "group", rule=_rule("nearest"))
    rest = rest.join(near, on=keys, how="anti", nulls_equal=True)
    by_name = rest.join(of_kind.select("kind", "group"), on="kind", how="inner").select(
        *keys, "group", rule=_rule("name")
    )
    return pl.concat([exact, near, by_name])


def _rule(name: str) -> pl.Expr:
    return pl.lit(name, Rule)


def same_kernels(names: Iterable[str], known: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """For each name the known names of the same kernel. Names of unknown kernels are left out.

    These are the name itself, if it is known; else those that are equal with all template arguments; else those that
    are equal as far as both are complete; else those that are equal but for namespaces that one of the two leaves out.
    """
    exact = set(known)
    by_form: dict[str, list[str]] = defaultdict(list)
    by_base: dict[str, list[str]] = defaultdict(list)
    for other in known:
        parts = parsed(other)
        by_base[parts.base].append(other)
        if parts.form is not None:
            by_form[parts.form].append(other)
    same: dict[str, tuple[str, ...]] = {}
    for name in names:
        parts = parsed(name)
        if name in exact:
            same[name] = (name,)
        elif parts.form in by_form:
            same[name] = tuple(by_form[parts.form])
        else:
            likely = [(other, parsed(other)) for other in by_base[parts.base]]
            matches = [other for other, its in likely if parts.may_be(its)]
            matches = matches or [other for other, its in likely if parts.differs_in_namespaces(its)]
            if matches:
                same[name] = tuple(matches)
    return same


class KernelName(msgspec.Struct, frozen=True):
    """A kernel's name in parts: `form` with its template arguments (None if unknown), `path` of namespaces and name."""

    form: str | None
    path: tuple[str, ...]
    is_made_for: bool  # its template arguments are known

    @property
    def base(self) -> str:
        """The function's own name."""
        return self.path[-1]

    def may_be(self, other: KernelName) -> bool:
        """Whether one may be the other without some namespaces, or without all template arguments."""
        if self.form is not None and self.form == other.form:
            return True
        if self.is_made_for and other.is_made_for:
            return False
        n = min(len(self.path), len(other.path))
        return self.path[-n:] == other.path[-n:]

    def differs_in_namespaces(self, other: KernelName) -> bool:
        """Whether both are complete, and one leaves out namespaces, as Nsight Compute does with PyTorch's `native`."""
        if self.form is None or other.form is None:
            return False
        short, long = sorted((_TOKEN.findall(self.form), _TOKEN.findall(other.form)), key=len)
        rest = iter([*short, ""])
        wanted = next(rest)
        tokens = iter(long)
        for token in tokens:
            if token == wanted:
                wanted = next(rest)
            elif not token.isidentifier() or next(tokens, "") != "::":
                return False
        return not wanted


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
    text = _INLINE.sub("std::", _SPELLED.sub(lambda match: _SPELLINGS[match[0]], text))
    text = _RETURNED.sub("", _innermost_first(_BRACKETS, text))
    form = re.sub(r"\s+", "", _last_word(text.strip()))
    path = _innermost_first(_TEMPLATE, form)
    return KernelName(form, tuple(path.split("::")), is_made_for="<" in form)


def _innermost_first(pattern: re.Pattern[str], text: str) -> str:
    """The text without brackets and what is inside them, however deep."""
    while (shorter := pattern.sub("", text)) != text:
        text = shorter
    return text


def _last_word(text: str) -> str:
    """The text after the last blank outside of templates: the name without the return type."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ">") - (text[i] == "<")
        if depth <= 0 and text[i] == " ":
            return text[i + 1 :]
    return text
