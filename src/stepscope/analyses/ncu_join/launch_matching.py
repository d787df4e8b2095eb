"""Which launches of one recording stand for which of another: by name, then by grid and block, then by nearest size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from stepscope.analyses.ncu_join.kernel_names import same_kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepscope.core.trace import Trace

SIZES = tuple(f"{what}_{axis}" for what in ("grid", "block") for axis in "xyz")
#: By what a launch found its counters, surest first. Of these only the first says that it was the same launch.
RULES = ("size", "nearest", "name")
Rule = pl.Enum(RULES)


def launches_of(trace: Trace) -> pl.DataFrame:
    """`span_id`, `name`, `dur_ns`, SIZES and `threads` of each kernel, null where not known."""
    kernels = trace.spans.filter(pl.col("category") == "kernel").select("span_id", "name", "dur_ns")
    sizes = trace.kernels.select("span_id", *SIZES)
    sides = [pl.col(name).cast(pl.Int64) for name in SIZES]
    kernels = kernels.join(sizes, on="span_id", how="left", maintain_order="left")
    return kernels.with_columns(threads=pl.reduce(lambda a, b: a * b, sides))


def matched(timeline: pl.DataFrame, counted: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Groups of counted launches that are alike, and for each launch of the timeline its group.

    Both arguments are as of `launches_of`. The first result has `group` and `span_id`, a row for each counted launch of
    a group: those of a kernel with the same grid and block, or all of a kernel. The second has `span_id`, `group` and
    `rule`, null where nothing matches, and `is_mixed`: several counted names may be this one's. In order of `timeline`.
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
    found = _sized(wanted.select(*keys, "threads").unique(), groups, of_kind, keys)
    per_launch = wanted.join(found, on=keys, how="left", nulls_equal=True, maintain_order="left")
    members_of = pl.concat([groups.select("group", "span_id"), of_kind.select("group", "span_id")])
    per_launch = per_launch.with_columns(is_mixed=pl.col("is_mixed").fill_null(value=False))
    return members_of.explode("span_id", empty_as_null=False), per_launch.select("span_id", "group", "rule", "is_mixed")


def _kinds(names: pl.Series, known: pl.Series) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Numbers for kernels: that of each name of the timeline, and all those that a counted name stands for."""
    distinct, others = (series.unique(maintain_order=True).drop_nulls() for series in (names, known))
    same = same_kernels(distinct.cast(pl.String), others.cast(pl.String).to_list())
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
    alone = rest.join(of_kind.select("kind", "group"), on="kind", how="inner").select(
        *keys, "group", rule=_rule("name")
    )
    return pl.concat([exact, near, alone])


def _rule(name: str) -> pl.Expr:
    return pl.lit(name, Rule)
