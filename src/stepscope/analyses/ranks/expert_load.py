"""How evenly the experts of a model (MoE) and their ranks are loaded, by the tokens that an engine counted."""

from __future__ import annotations

from typing import Literal

import polars as pl

from stepscope.analyses.common.analysis import analysis_of
from stepscope.core.errors import MissingTable
from stepscope.core.request_tables import EXPERT_TOKENS
from stepscope.core.table import Column, Table

By = Literal["phase", "layer", "rank", "expert"]
EXPERT_LOAD = Table(
    "expert-load",
    "how many tokens experts and their ranks got, and how evenly",
    (
        Column("phase", pl.String(), "prefill or decode; null: not recorded", key=True),
        Column("layer", pl.Int64(), "number of the layer among those with experts (by layer, expert)", key=True),
        Column("rank", pl.Int32(), "the rank; by layer: the one with most tokens (not by phase)", key=True),
        Column("expert", pl.Int64(), "number of the expert on its rank (by expert)", key=True),
        Column("n_layers", pl.Int64(), "layers with experts (by phase, rank)"),
        Column("n_experts", pl.Int64(), "experts of all ranks (by phase, layer), or of this one (by rank), in a layer"),
        Column("n_idle", pl.Int64(), "experts that got no token; by phase and rank: in all layers"),
        Column("n_tokens", pl.Int64(), "tokens that they got"),
        Column("load_ratio", pl.Float64(), "tokens over the mean of all ranks, or of all experts of the layer"
               " (by rank, expert); 1 is even", "ratio"),
        Column("imbalance_ratio", pl.Float64(), "tokens of the rank with most in each layer, over the mean of all"
               " ranks (by phase, layer); 1 is even", "ratio"),
        Column("expert_imbalance_ratio", pl.Float64(), "the same of experts in place of ranks (by phase, layer)",
               "ratio"),
    ),
)  # fmt: skip
_COLUMNS: dict[By, list[str]] = {
    "phase": ["phase", "n_layers", "n_experts", "n_idle", "n_tokens", "imbalance_ratio", "expert_imbalance_ratio"],
    "layer": ["phase", "layer", "rank", "n_experts", "n_idle", "n_tokens", "imbalance_ratio",
              "expert_imbalance_ratio"],
    "rank": ["phase", "rank", "n_layers", "n_experts", "n_idle", "n_tokens", "load_ratio"],
    "expert": ["phase", "layer", "rank", "expert", "n_tokens", "load_ratio"],
}  # fmt: skip


def expert_load(expert_tokens: pl.DataFrame = EXPERT_TOKENS.empty(), *, by: By = "layer") -> pl.DataFrame:
    """One row per phase, per layer, per rank, or per expert, the least even or most loaded first.

    The main columns are `imbalance_ratio`, or by rank and expert `load_ratio`. All ranks wait in each layer for the one
    with most tokens, so a phase's imbalance is the sum over its layers of the most that a rank got, over the sum of the
    means: 1.5 says that experts take one and a half times as long as evenly loaded ones would. Copies of an expert
    count as experts of their own. Where no rank is recorded (SGLang's recorder), only experts are compared.

    Units: tokens; ratios.
    Source: imbalance as the largest load over the mean one, as in `experts`.
    Raises MissingTable (no tokens by expert, or by rank no ranks), UnknownName (by).
    """
    if expert_tokens.is_empty():
        hint = "name the folder of the engine's counts, as docs/serving.md says; show experts asks the all-to-alls"
        raise MissingTable("tokens by expert", needed_by="expert-load", hint=hint)
    tokens = expert_tokens.with_columns(pl.col("phase").cast(pl.String))
    layer = ["phase", "layer"]
    if by == "expert":
        mean = pl.col("n_tokens").mean().over(layer)
        rows = tokens.with_columns(load_ratio=_over(pl.col("n_tokens"), mean))
        rows = rows.sort("load_ratio", *layer, "rank", "expert", descending=[True, *[False] * 4], nulls_last=True)
        return EXPERT_LOAD.conform(rows).select(_COLUMNS[by])
    idle = (pl.col("n_tokens") == 0).sum()
    of_rank = tokens.group_by(*layer, "rank").agg(pl.col("n_tokens").sum())
    if by == "rank":
        tokens = tokens.drop_nulls("rank")
        if tokens.is_empty():
            raise MissingTable("the ranks of experts", needed_by="expert-load by rank", hint="see docs/serving.md")
        rows = tokens.group_by("phase", "rank").agg(
            pl.col("n_tokens").sum(), n_idle=idle, n_layers=pl.col("layer").n_unique(),
            n_experts=pl.col("expert").n_unique(),
        ).with_columns(load_ratio=_over(pl.col("n_tokens"), pl.col("n_tokens").mean().over("phase")))  # fmt: skip
        rows = rows.sort("load_ratio", "phase", "rank", descending=[True, False, False], nulls_last=True)
        return EXPERT_LOAD.conform(rows).select(_COLUMNS[by])
    known = pl.col("n_tokens").filter(pl.col("rank").is_not_null())
    ranks = of_rank.sort("n_tokens", "rank", descending=[True, False]).group_by(layer, maintain_order=True).agg(
        pl.col("rank").first(), most=known.max(), mean=known.mean()
    )  # fmt: skip
    layers = tokens.group_by(layer).agg(
        pl.col("n_tokens").sum(), n_idle=idle, n_experts=pl.len(),
        most_of_expert=pl.col("n_tokens").max(), mean_of_expert=pl.col("n_tokens").mean(),
    ).join(ranks, on=layer, nulls_equal=True)  # fmt: skip
    if by == "phase":
        layers = layers.group_by("phase").agg(
            pl.col("n_tokens", "n_idle", "most", "mean", "most_of_expert", "mean_of_expert").sum(),
            pl.col("n_experts").max(), n_layers=pl.len(),
        )  # fmt: skip
    rows = layers.with_columns(
        imbalance_ratio=_over(pl.col("most"), pl.col("mean")),
        expert_imbalance_ratio=_over(pl.col("most_of_expert"), pl.col("mean_of_expert")),
    )
    keys = ["phase"] if by == "phase" else layer
    least_even = ["imbalance_ratio", "expert_imbalance_ratio"]
    rows = rows.sort(*least_even, *keys, descending=[True, True, *[False] * len(keys)], nulls_last=True)
    return EXPERT_LOAD.conform(rows).select(_COLUMNS[by])


def _over(value: pl.Expr, mean: pl.Expr) -> pl.Expr:
    """A ratio; null where nothing was counted."""
    return pl.when(mean > 0).then(value / mean)


ANALYSIS = analysis_of(
    expert_load, EXPERT_LOAD, "How evenly experts and their ranks are loaded, by the tokens that an engine counted."
)
