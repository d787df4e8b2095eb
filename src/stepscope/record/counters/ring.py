"""What a recording that keeps its last seconds alone is told: how many, when to dump them, how often."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from stepscope.record.counters.channel import Channel
from stepscope.record.counters.dumps import Dumps
from stepscope.record.system import meta

if TYPE_CHECKING:
    from pathlib import Path

    from stepscope.record.counters.writer import CounterFile

__all__ = ["Ring", "opened"]


@dataclass(frozen=True, slots=True)
class Ring:
    """The last `keep_s` seconds are kept. A step slower than `trigger` times the median is dumped (None: none is)."""

    keep_s: float = 60.0
    trigger: float | None = None
    max_dumps: int = 10

    def wanted(self, steps: tuple[int, int] | None) -> dict[str, Any]:
        """As the sampler is told of it; as many steps are profiled for a dump as from the start."""
        return {**asdict(self), "n_steps": steps[1] - steps[0] if steps else 0}

    def environment(self) -> dict[str, str]:
        """As the start-up hook is told of it."""
        return {"STEPSCOPE_RECORD_TRIGGER": f"{self.trigger or 0:g}"}


def opened(folder: Path, file: CounterFile, wanted: dict[str, Any] | None) -> tuple[Dumps | None, list[dict[str, Any]]]:
    """What writes the dumps of a recording with a ring, and issues: without pipes only a signal can ask for one."""
    if wanted is None:
        return None, []
    channel, issues = None, []
    try:
        channel = Channel(folder)
    except OSError as error:
        what = f"no dumps of slow steps or by --dump, only by signal: no pipe in {folder}: {error.strerror or error}"
        issues.append(meta.issue("no_triggers", what))
    return Dumps(folder, file, channel, wanted["keep_s"], wanted["max_dumps"], wanted["n_steps"]), issues
