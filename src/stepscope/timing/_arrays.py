"""Arrays from a short description, and the arrays inside any value.

{"shape": [16, 32], "dtype": "float32", "seed": 0} gives the same numbers in every library.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Mapping
from numbers import Number
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from stepscope.core.errors import StepscopeError
from stepscope.timing._function import FRAMEWORKS

if TYPE_CHECKING:
    from collections.abc import Iterator

VALUES = ("normal", "uniform", "zeros", "ones", "arange")
LIBRARIES = ("numpy", *FRAMEWORKS)
KEYS = ("shape", "dtype", "seed", "values", "low", "high", "library", "device")
#: Element types that torch and paddle have and NumPy does not: made as float32 and cast.
_WIDER = ("bfloat16", "float8")
#: Whole numbers lie below this unless the spec says otherwise: it fits every integer type.
_HIGH = 100
#: Accelerators of torch, the first that is there is used.
TORCH_DEVICES = ("cuda", "xpu", "mps")


class ArraySpec(msgspec.Struct, frozen=True):
    """How to make an array. `values` None is normal for floats, uniform for integers; `library` None the function's."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    seed: int | None = None
    values: str | None = None
    low: float | None = None
    high: float | None = None
    library: str | None = None
    device: str | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def array_spec(table: Mapping[str, Any], names: Mapping[str, Any], where: str) -> ArraySpec:
    """The spec that a table of a sweep file holds; `names` are the sizes that its shape may refer to.

    Raises StepscopeError, which names `where` the table stands.
    """
    unknown = sorted(set(table) - set(KEYS))
    if unknown or "shape" not in table:
        what = f"has no {', '.join(unknown)}" if unknown else "needs a shape"
        hint = 'write {"shape": [16, 32], "dtype": "float32", "seed": 0}; known are ' + ", ".join(KEYS)
        raise StepscopeError(f"{where}: an array {what}", hint)
    given = table["shape"]
    shape = tuple(_size(size, names, where) for size in (given if isinstance(given, list | tuple) else [given]))
    rest = {key: _named(table[key], names) for key in KEYS[1:] if table.get(key) is not None}
    for key, kinds in (("dtype", str), ("seed", int), ("low", (int, float)), ("high", (int, float)), ("device", str)):
        if key in rest and (isinstance(rest[key], bool) or not isinstance(rest[key], kinds)):
            raise StepscopeError(f"{where}: {key} of an array is {rest[key]!r}", f"known are {', '.join(KEYS)}")
    for key, known in (("values", VALUES), ("library", LIBRARIES)):
        if key in rest and rest[key] not in known:
            raise StepscopeError(f"{where}: {key} of an array is {rest[key]!r}", f"choose from {', '.join(known)}")
    if rest.get("seed", 0) < 0:
        raise StepscopeError(f"{where}: the seed of an array is {rest['seed']}", "seeds are 0 or more")
    return ArraySpec(shape, **rest)


def _named(value: Any, names: Mapping[str, Any]) -> Any:
    return names.get(value, value) if isinstance(value, str) else value


def _size(size: Any, names: Mapping[str, Any], where: str) -> int:
    number = _named(size, names)
    if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
        return number
    known = [name for name, value in names.items() if isinstance(value, int) and not isinstance(value, bool)]
    hint = f"sizes are whole numbers or names of them: {', '.join(known)}" if known else "sizes are whole numbers"
    raise StepscopeError(f"{where}: {size!r} is not a size of an array", hint)


def specs_in(value: Any) -> list[ArraySpec]:
    """The specs that an argument is or holds."""
    if isinstance(value, list):
        return [spec for inner in value for spec in specs_in(inner)]
    return [value] if isinstance(value, ArraySpec) else []


def made(value: Any, name: str, *, library: str, device: str | None = None) -> Any:
    """An argument as the function gets it: specs as arrays of `library` on `device`, also within lists.

    Without a device, the accelerator if the library sees one. Raises StepscopeError: an unknown type or device, no
    memory, a library that is not installed.
    """
    if isinstance(value, list):
        return [made(v, f"{name}[{at}]", library=library, device=device) for at, v in enumerate(value)]
    if not isinstance(value, ArraySpec):
        return value
    library = value.library or library
    move = {"numpy": _to_numpy, "torch": _to_torch, "paddle": _to_paddle}[library]
    try:
        return move(_numbers(value, name), value, value.device or device)
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError) as error:
        said = str(error).strip().split("\n", 1)[0]
        hint = "check its shape, dtype and device"
        raise StepscopeError(f"{library} cannot make {name}, {value}: {said}", hint) from error


def _numbers(spec: ArraySpec, name: str) -> np.ndarray[Any, Any]:
    """The values in NumPy's nearest type. Without a seed the name is the seed: arrays differ, but repeat each time."""
    dtype = np.dtype("float32" if spec.dtype.startswith(_WIDER) else spec.dtype)
    if dtype.kind not in "fciub":
        msg = f"arrays of {dtype} are not made"
        raise TypeError(msg)
    match spec.values:
        case "zeros":
            return np.zeros(spec.shape, dtype)
        case "ones":
            return np.ones(spec.shape, dtype)
        case "arange":
            return np.arange(np.prod(spec.shape, dtype=np.int64)).astype(dtype).reshape(spec.shape)
    random = np.random.default_rng([0, zlib.crc32(name.encode())] if spec.seed is None else spec.seed)
    return _random(random, spec, dtype)


def _random(random: np.random.Generator, spec: ArraySpec, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    if dtype.kind == "b":
        return random.integers(0, 2, spec.shape).astype(dtype)
    if dtype.kind in "iu":
        if spec.values == "normal":
            msg = "whole numbers are uniform, not normal"
            raise ValueError(msg)
        low = 0 if spec.low is None else int(spec.low)
        return random.integers(low, low + _HIGH if spec.high is None else int(spec.high), spec.shape, dtype)
    # Drawn in the type itself where NumPy can: half the time and memory of drawing in float64.
    own: type[np.float32 | np.float64] = np.float32 if dtype.itemsize <= 4 or dtype == np.complex64 else np.float64
    if dtype.kind == "c":
        values = _floats(random, spec, own) + 1j * _floats(random, spec, own)
    else:
        values = _floats(random, spec, own)
    return values.astype(dtype, copy=False)


def _floats(random: np.random.Generator, spec: ArraySpec, dtype: type[np.float32 | np.float64]) -> np.ndarray[Any, Any]:
    if spec.values != "uniform" and (spec.values == "normal" or (spec.low is None and spec.high is None)):
        return random.standard_normal(spec.shape, dtype)
    low = 0.0 if spec.low is None else spec.low
    high = low + 1.0 if spec.high is None else spec.high
    return random.random(spec.shape, dtype) * dtype(high - low) + dtype(low)


def _to_numpy(array: np.ndarray[Any, Any], spec: ArraySpec, device: str | None) -> Any:  # noqa: ARG001  on the host only
    if spec.dtype.startswith(_WIDER):
        msg = f"NumPy has no {spec.dtype}"
        raise TypeError(msg)
    return array


def _to_torch(array: np.ndarray[Any, Any], spec: ArraySpec, device: str | None) -> Any:
    torch = _library("torch")
    return torch.as_tensor(array).to(device=device or torch_device(torch), dtype=getattr(torch, spec.dtype))


def _to_paddle(array: np.ndarray[Any, Any], spec: ArraySpec, device: str | None) -> Any:
    return _library("paddle").to_tensor(array, dtype=spec.dtype, place=device)


def torch_device(torch: Any) -> str:
    """The accelerator that torch sees, else its processor."""
    for kind in TORCH_DEVICES:
        module = torch.backends.mps if kind == "mps" else getattr(torch, kind, None)
        if module is not None and module.is_available():
            return kind
    return "cpu"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise StepscopeError(f"arrays of {name} need {name}, which is not installed", f"install {name}") from None


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
