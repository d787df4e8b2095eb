"""Phrases of reports: counts with nouns, ranges of numbers, shares of a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.core.units import count, duration, percent

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


def a_step(*, stepped: bool, n_devices: int = 1) -> str:
    """' a step', ' a device', ' a step and device': what an amount is for; empty if it is for the whole."""
    if n_devices > 1:
        return " a step and device" if stepped else " a device"
    return " a step" if stepped else ""


def per_step(
    n: float, ns: float, scope_n: int, noun: str, *, stepped: bool, plural: str = "", n_devices: int = 1
) -> str:
    """'1,204 kernels a step, 5.2 µs each', of n over scope_n steps and all devices that took ns together."""
    each = f"{duration(ns / n)} each" if n else ""
    amount = counted(n / scope_n / n_devices, noun, plural) + a_step(stepped=stepped, n_devices=n_devices)
    return f"{amount}, {each}" if each else amount
