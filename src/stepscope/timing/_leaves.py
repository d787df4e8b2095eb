"""Arrays inside of what a function takes and gives back: found in tuples, lists and mappings, and moved to NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.timing._function import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """What a value is made of, each with its place in it ('[1]["loss"]'). A list of numbers is one array."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list) and not (value and all(isinstance(v, Number) for v in value)):
        for at, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{at}]")
    else:
        yield path, value


def framework_of_tensor(value: Any) -> str | None:
    """'torch' or 'paddle' if the value is a tensor of it, or of a class made from one; else None."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        return None
    roots = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    return next((name for name in FRAMEWORKS if name in roots), None)


def as_numpy(value: Any) -> tuple[np.ndarray[Any, Any], str]:
    """A leaf as an array on the host, and the name of its own element type ('bfloat16', which NumPy lacks)."""
    framework = framework_of_tensor(value)
    if framework is None:
        array = np.asarray(value)
        return array, array.dtype.name
    dtype = str(value.dtype).rpartition(".")[2]
    lacking = dtype == "bfloat16" or dtype.startswith("float8")
    if framework == "torch":
        tensor = value.detach().cpu()
        if lacking:
            tensor = tensor.float()
        return tensor.resolve_conj().resolve_neg().numpy(), dtype
    return (value.astype("float32") if lacking else value).numpy(), dtype
