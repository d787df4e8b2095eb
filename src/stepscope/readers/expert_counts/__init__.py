"""How many tokens the experts of a model got, as engines count them: MindIE's and SGLang's files, and tables as CSV."""

from __future__ import annotations

from stepscope.core import files
from stepscope.core.errors import StepscopeError
from stepscope.core.patterns import regex
from stepscope.readers.formats import PACKING, Format, Sign

#: A hotspot file of MindIE: DUMP/decode/decode_3.csv has the experts of rank 3. Files with _topk_ hold something else.
HOTSPOT = regex(rf"(?:^|[/\\])(prefill|decode)_(\d{{1,7}})\.csv{PACKING}")

#: A dump of SGLang's recorder of expert distributions.
RECORDED = regex(r"(?:^|[/\\])expert_distribution_recorder_[\d.]+\.pt$")


def hotspots_of(path: str) -> list[str]:
    """The hotspot files of all ranks and phases that were dumped with one, in order; the file itself without any."""
    if HOTSPOT.search(path) is None:
        return [path]
    folder = files.split(path)[0]
    above, phase = files.split(folder)
    folders = (
        [files.joined(above, one) for one in ("decode", "prefill")] if phase in ("decode", "prefill") else [folder]
    )
    every = {path}
    for one in folders:
        try:
            every.update(file for file in files.files_in(one or ".", deep=False) if HOTSPOT.search(file))
        except StepscopeError:  # no such folder, or one whose files may be read and not listed
            continue
    return sorted(every, key=_in_order)


def recorded_of(path: str) -> list[str]:
    """The dumps of SGLang's recorder in the folder of one, in order; each begins to count anew."""
    if RECORDED.search(path) is None:
        return [path]
    try:
        listed = files.files_in(files.split(path)[0] or ".", deep=False)
    except StepscopeError:  # a folder whose files may be read and not listed
        listed = []
    return sorted({path, *(file for file in listed if RECORDED.search(file))})


def phase_and_rank(path: str) -> tuple[str, int]:
    """The phase and the rank in the name of a hotspot file. Raises ValueError (it has none)."""
    match = HOTSPOT.search(path)
    if match is None:
        raise ValueError(path)
    return match[1], int(match[2])


def _in_order(path: str) -> tuple[str, int]:
    return phase_and_rank(path)


FORMATS = (
    Format(
        name="expert-recorder",
        doc="tokens by expert that SGLang records (`expert_distribution_recorder_….pt`, mode stat), without PyTorch",
        module="expert_counts.reader",
        signs=(Sign(0.9, regex(rb"\x80[\x02-\x05]"), holds=(b"logical_count",)),),
        provides=("expert_tokens", "issues"),
        companion_files=recorded_of,
        endings=(".pt",),
        function="read_recorded",
    ),
    Format(
        name="expert-hotspots",
        doc="tokens by expert that MindIE counts (`decode/decode_0.csv`): all ranks and phases of a folder together",
        module="expert_counts.reader",
        signs=(Sign(0.9, regex(rb"[ \t]*\d+(?:[ \t]*,[ \t]*\d+)*[ \t]*(?:\r?\n|\Z)"), path=HOTSPOT),),
        provides=("expert_tokens", "issues"),
        companion_files=hotspots_of,
        endings=(".csv",),
        function="read_hotspots",
    ),
    Format(
        name="expert-counts",
        doc="tokens by expert as CSV with the columns layer, expert and tokens, perhaps rank and phase; see serving.md",
        module="expert_counts.reader",
        signs=(Sign(0.8, columns=("layer", "expert", "tokens")),),
        provides=("expert_tokens", "issues"),
        cacheable=True,
        endings=(".csv",),
        function="read_table",
    ),
)  # fmt: skip
