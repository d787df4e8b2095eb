from __future__ import annotations

import msgspec
import pytest

from stepscope.comparison.history.digest import Digest, Function, Head, Size
from stepscope.comparison.history.series import rows_of, series_of

SETUP = (("hardware", "accelerator", "V100"), ("framework", "version", "2.14"), ("job", "processes", "1"))
SIZES = (Size("aten::mm", "[[64,64],[64,64]]", 10.0, 40e6), Size("aten::add", "[[64],[64]]", 20.0, 10e6))
FUNCTIONS = (Function("host", "aten::mm", 10.0, 40e6), Function("host", "aten::add", 20.0, 10e6))


def run(number: int, step_ms: float, **more: object) -> Digest:
    """The digest of a run; `more` replaces its parts, functions, sizes or setup."""
    head = Head(
        key=f"{number:024x}", recorded_unix_ns=number * 10**9, added_unix_ns=0, label="", commit=None, paths=(),
        n_ranks=1, n_cycles=20, anchor="step", step_ns=step_ms * 1e6, error_ns=1e5, spread_ratio=0.01,
    )  # fmt: skip
    whole = Digest(head, {"operators": step_ms * 1e6}, FUNCTIONS, SIZES, (), SETUP)
    return msgspec.structs.replace(whole, **more)


def series(digests: list[Digest], unreadable: tuple[int, ...] = ()):
    by_key = {digest.head.key: digest for i, digest in enumerate(digests) if i not in unreadable}
    return series_of([digest.head for digest in digests], lambda head: by_key.get(head.key))


def changed(**more: object) -> list[Digest]:
    """Ten runs of 100 ms, then five of 110 ms in which something else is different too."""
    return [run(i, 100 + i % 3 / 10) for i in range(10)] + [run(i, 110 + i % 3 / 10, **more) for i in range(10, 15)]


def test_a_slower_step_of_the_same_work_on_the_same_machine_is_a_regression() -> None:
    slower = (Function("host", "aten::mm", 10.0, 49e6), FUNCTIONS[1])
    (change,) = series(changed(functions=slower)).changes
    assert (change.at, change.kind, round(change.ratio, 2)) == (10, "regression", 0.1)
    assert change.reason == "operators +10 ms per step; most of it in aten::mm (host) +9 ms"


def test_a_faster_one_is_an_improvement() -> None:
    digests = [run(i, 100) for i in range(6)] + [run(i, 80) for i in range(6, 12)]
    (change,) = series(digests).changes
    assert (change.kind, change.reason) == ("improvement", "operators -20 ms per step")


@pytest.mark.parametrize(
    ("more", "kind", "reason"),
    [
        ({"setup": (("hardware", "accelerator", "T4"), *SETUP[1:])}, "hardware", "accelerator V100 → T4"),
        ({"setup": (SETUP[0], ("framework", "version", "2.15"), SETUP[2])}, "version", "version 2.14 → 2.15"),
        ({"setup": (*SETUP[:2], ("job", "processes", "4"))}, "workload", "processes 1 → 4"),
        (
            {"sizes": (Size("aten::mm", "[[96,64],[64,64]]", 10.0, 45e6), SIZES[1])},
            "workload",
            "sizes of aten::mm [[64,64],[64,64]] → [[96,64],[64,64]]",
        ),
        (
            {"sizes": (Size("aten::mm", SIZES[0].shapes, 12.0, 48e6), SIZES[1])},
            "workload",
            "calls of aten::mm per step 10 → 12",
        ),
        (
            {"sizes": (*SIZES, Size("aten::sort", "[[9]]", 1.0, 20e6))},
            "workload",
            "only the runs since call aten::sort",
        ),
    ],
)
def test_what_else_differs_comes_before_a_regression(more: dict, kind: str, reason: str) -> None:
    (change,) = series(changed(**more)).changes
    assert (change.at, change.kind, change.reason) == (10, kind, reason)


def test_a_machine_that_changed_before_or_after_explains_nothing() -> None:
    t4 = (("hardware", "accelerator", "T4"), *SETUP[1:])
    digests = [run(i, 100, setup=t4 if i >= 5 else SETUP) for i in range(10)]
    digests += [run(i, 110, setup=t4) for i in range(10, 15)]
    assert [change.kind for change in series(digests).changes] == ["regression"]


def test_a_run_that_stands_out_is_an_outlier_and_the_last_one_is_open() -> None:
    digests = [run(i, 150 if i in (6, 14) else 100) for i in range(15)]
    assert [(change.at, change.kind) for change in series(digests).changes] == [(6, "outlier"), (14, "open")]


def test_runs_are_in_order_of_recording_and_count_once() -> None:
    digests = [run(i, 100 + i) for i in (3, 1, 2)]
    rows = rows_of(series([*digests, digests[0]]))
    assert rows["step_ns"].to_list() == [101e6, 102e6, 103e6]
    assert rows["recorded"][0] == "1970-01-01 00:00:01 UTC"


def test_without_digests_a_change_is_still_said() -> None:
    (change,) = series(changed(), unreadable=tuple(range(15))).changes
    assert change.reason == "the digests of these runs cannot be read, so nothing else is known"


def test_no_runs_are_an_empty_series() -> None:
    assert series([]).changes == ()
    assert rows_of(series([])).is_empty()
