"""Kernels as a table of text: a line for each launch, with its latency and how busy tensor cores and DRAM were.

Format: that of scripts of CASIO's author (medav/torchbench-ncu), byte for byte: names in 50 columns, latencies in ns
without decimals, shares of the peak from 0 to 1 with two. Readers of such tables split at `|`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analyses.kernels.kernel_launches import NCU_METRICS, kernel_launches, with_ratios
from stepscope.core.errors import MissingTable, StepscopeError
from stepscope.core.names import map_names
from stepscope.core.trace import Run  # noqa: TC001  the command line reads the signature at run time
from stepscope.exports import Export

if TYPE_CHECKING:
    from collections.abc import Sequence

WIDTH = 50
HEADER = f"{'Kernel':<{WIDTH}}  {'Latency':>10} {'Tensor':>6} {'DRAM':>6}\n"
_KIND = "export to kernel-table"
#: Taken out in this order, before the name is cut at the first bracket: `<unnamed>` begins with one.
_NOISE = ("void ", "at::native::", "<unnamed>::", "cutlass::")
_UNKNOWN = "-"


def printed_name(name: str) -> str:
    """A kernel's name as the table shows it: at most 50 characters, without namespaces and arguments.

    >>> printed_name("void at::native::<unnamed>::softmax_warp_forward<float>(int)"), printed_name("cutlass::Kernel<x>")
    ('softmax_warp_forward', 'Kernel')
    """
    for part in _NOISE:
        name = name.replace(part, "")
    name = re.split("[<(]", name, maxsplit=1)[0]
    return name if len(name) <= WIDTH else f"{name[: WIDTH - 3]}..."


def kernel_table(run: Run, _context: object) -> str:
    """The table of the only trace of a run, in order of launch (of start, where the trace has a clock).

    Values that were not measured are `-`. Units: ns, ratios 0..1.
    Source: specimens of the table; the order of the substitutions in names is that of the scripts.
    Raises StepscopeError (several traces), MissingTable (no kernels, no counters of tensor cores or DRAM).
    """
    traces = list(run.paths)
    if len(traces) != 1:
        raise StepscopeError(
            f"a kernel table holds one trace, and {len(traces)} were given", "export them one at a time"
        )
    trace = next(iter(run))
    launches = with_ratios(kernel_launches(trace.spans, needed_by=_KIND), trace.kernel_metrics)
    for ratio in ("tensor_ratio", "dram_ratio"):
        if launches[ratio].null_count() == launches.height:
            hint = f"profile with ncu --csv --metrics {NCU_METRICS}"
            raise MissingTable(f"{ratio.removesuffix('_ratio')} utilisation of kernels", needed_by=_KIND, hint=hint)
    names = map_names(launches["name"], lambda name: f"{printed_name(name):<{WIDTH}}", pl.String())
    columns = (
        names.to_list(),
        _printed(launches["dur_ns"], "%10.0f", 10),
        _printed(launches["tensor_ratio"], "%6.2f", 6),
        _printed(launches["dram_ratio"], "%6.2f", 6),
    )
    return HEADER + "".join(map("{}| {} {} {}\n".format, *columns))


def _printed(values: pl.Series, form: str, width: int) -> Sequence[str]:
    """Numbers as text of that width, as C prints them: a half goes by the double's own last bits."""
    texts = np.char.mod(form, values.cast(pl.Float64).fill_null(0.0).to_numpy())
    known = values.is_not_null().to_numpy()
    cells: Sequence[str] = np.where(known, texts, f"{_UNKNOWN:>{width}}").tolist()
    return cells


EXPORT = Export(
    name="kernel-table",
    doc="a line of text for each kernel launch: Kernel | Latency Tensor DRAM",
    run=kernel_table,
)
