"""A memory of runs: adds digests of runs to a store, and says from which run on the step changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stepscope.comparison.history.digest import digest_from, digest_of, encode, head_from
from stepscope.comparison.history.series import OF_THE_PROGRAM, Series, series_of
from stepscope.core import files
from stepscope.core.errors import CorruptInput, StepscopeError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepscope.comparison import Comparison
    from stepscope.comparison.history.digest import Digest, Head
    from stepscope.core.trace import Run


def add_to_history(run: Run, store: str, *, label: str = "", commit: str = "") -> tuple[Head, bool]:
    """Add the digest of a run to a store, a folder or URL; the traces stay where they are and are not copied.

    Returns the head of the digest, and False if the same recording is in the store already. Raises StepscopeError.
    """
    from stepscope.comparison import observe
    from stepscope.store import history_folder

    processes = [process for trace in run for process in observe(trace)]
    paths = [files.absolute(path) for path in run.paths]
    digest = digest_of(processes, paths=paths, added_unix_ns=time.time_ns(), label=label, commit=commit)
    is_new = history_folder.put(store, digest.head.key, encode(digest.head), encode(digest))
    return digest.head, is_new


def history(store: str, *, on_damage: Callable[[StepscopeError], None]) -> Series:
    """The series of the runs in a store. `on_damage` is called for each digest that cannot be read.

    Raises StepscopeError if the store has no run.
    """
    from stepscope.store import history_folder

    heads = []
    for key, path, data in history_folder.heads(store):
        try:
            heads.append(head_from(data, path, key))
        except CorruptInput as error:
            on_damage(error)
    if not heads:
        raise StepscopeError(f"there is no run in {store}", f"add one: stepscope history add RUN --to {store}")

    def digest(head: Head) -> Digest | None:
        try:
            return digest_from(history_folder.digest(store, head.key), files.joined(store, head.key), head.key)
        except StepscopeError as error:
            on_damage(error)
            return None

    return series_of(heads, digest)


def compare_last_change(series: Series) -> Comparison | None:
    """The comparison of the runs on both sides of the last regression or improvement, from their recordings.

    None if there is no such change, if the recordings are no longer where they were, or if they cannot be compared.
    Only local recordings are opened: who may write to the store must not choose what is fetched from elsewhere.
    """
    from stepscope.api.comparing import compare_two_runs
    from stepscope.api.verbs import load_run

    changes = [change for change in series.changes if change.kind in OF_THE_PROGRAM]
    if not changes:
        return None
    pair = series.heads[changes[-1].at - 1], series.heads[changes[-1].at]
    try:
        if not all(head.paths for head in pair):
            return None
        if not all(files.exists(path) and not files.is_url(path) for head in pair for path in head.paths):
            return None
        base, other = (load_run(list(head.paths)) for head in pair)
        return compare_two_runs(base, other)
    except StepscopeError:
        return None
