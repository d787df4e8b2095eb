"""Records a job several times in turns with another, so that a machine whose speed drifts is as slow for both."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.errors import StepscopeError
from stepscope.record.system import meta

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepscope.record.recording import Recorded

#: Folders of `compare`'s two sides.
BASE, OTHER = "normal", "abnormal"
#: Of a command that is recorded by itself.
SINGLE = "run"


@dataclass(frozen=True, slots=True)
class Earlier:
    """The command of an earlier recording, and the folder that it ran in."""

    command: tuple[str, ...]
    cwd: Path

    @staticmethod
    def of(folder: Path, command: Sequence[str]) -> Earlier:
        """What was recorded there. Raises StepscopeError (no recording of a command, it is this command)."""
        path = folder / meta.NAME
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            earlier = Earlier(tuple(map(str, facts["command"])), Path(facts["cwd"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            hint = "name the folder of an earlier recording that started a command: stepscope record -o DIR -- COMMAND"
            raise StepscopeError(f"no command in {path}: {error}", hint) from None
        if not earlier.command:
            raise StepscopeError(f"{path} is of a process that was joined", "name a recording that started a command")
        if not earlier.cwd.is_dir():
            raise StepscopeError(f"{earlier.cwd}, in which {folder} was recorded, is gone", "record the base again")
        if (earlier.command, earlier.cwd) == (tuple(command), Path.cwd()):
            hint = "keep the other version in a folder of its own (git worktree), or give other arguments"
            raise StepscopeError(f"this is the command of {folder}: both would run the same program", hint)
        return earlier


def turns(n: int, *, is_against: bool) -> Iterator[str]:
    """The folders of `n` recordings, of each side where there are two, in the order in which they are made.

    Sides take turns in being first, so that a machine that slows steadily is as slow for both.
    """
    for i in range(1, n + 1):
        names = [BASE, OTHER] if is_against else [SINGLE]
        yield from (f"{name}{i}" for name in (names if i % 2 else names[::-1]))


def repeated(
    record: Callable[[Sequence[str], Path], Recorded],
    command: Sequence[str],
    folder: Path,
    n: int,
    against: Earlier | None,
) -> Iterator[tuple[Path, Recorded]]:
    """Record a command `n` times into folders of `folder`, in turns with the earlier one. Ends with a job that fails.

    `record` makes one recording. Raises StepscopeError (as it does).
    """
    folder = folder.absolute()
    for name in turns(n, is_against=against is not None):
        if against is not None and name.startswith(BASE):
            with contextlib.chdir(against.cwd):
                done = record(against.command, folder / name)
        else:
            done = record(command, folder / name)
        yield folder / name, done
        if done.exit_code:
            return
