"""Phrases of reports: counts with nouns, ranges of numbers, shares of a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.units import count, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl


def sum_of(series: pl.Series) -> int:
    """Sum of a series of whole numbers, 0 if it has none."""
    return int(series.sum())


def counted(n: float, noun: str, plural: str = "") -> str:
    """'1 kernel', '1,212 kernels', '2.5 kernels'."""
    n = round(n) if n >= 10 or abs(n - round(n)) < 0.05 else round(n, 1)
    return f"{count(n)} {noun if n == 1 else plural or noun + 's'}"


def ranges(numbers: Sequence[int]) -> str:
    """'0–7', '3', '0–3, 6': whole numbers in ascending order, with at most four runs spelt out."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = [str(a) if a == b else f"{a}–{b}" for a, b in runs]
    return ", ".join(text) if len(text) <= 4 else f"{runs[0][0]} … {runs[-1][1]}"


def shares(parts: Sequence[tuple[str, float]], *, at_least: float = 0.05, most: int = 3) -> str:
    """'aten::mm 62 %, aten::addmm 30 %': the largest parts of a whole; only the first if it is nearly all."""
    if parts and parts[0][1] > 0.95:
        return parts[0][0]
    return ", ".join(f"{name} {percent(ratio)}" for name, ratio in parts[:most] if ratio >= at_least)
