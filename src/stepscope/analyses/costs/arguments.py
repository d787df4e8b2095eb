"""What an operator was called with, as recorded: shapes, element types and plain values by position."""

from __future__ import annotations

import math
from typing import Any

import msgspec

Shape = tuple[int, ...]

#: Bytes of an element, by PyTorch's C++ name of its type.
ELEMENT_BYTES = {
    "float": 4, "double": 8, "int": 4, "long int": 8, "long": 8, "short int": 2, "short": 2, "signed char": 1,
    "unsigned char": 1, "char": 1, "bool": 1, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2": 1, "c10::Float8_e5m2fnuz": 1, "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}  # fmt: skip
#: The name under which the hardware's peaks are listed.
PRECISION = {
    "float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16", "signed char": "int8",
    "unsigned char": "int8", "c10::Float8_e4m3fn": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2": "fp8",
    "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip
#: Element types by the number of their torch.dtype (c10::ScalarType), as recorded among an operator's values.
_SCALAR_TYPES = {
    "0": "unsigned char", "1": "signed char", "2": "short int", "3": "int", "4": "long int", "5": "c10::Half",
    "6": "float", "7": "double", "11": "bool", "15": "c10::BFloat16", "23": "c10::Float8_e5m2",
    "24": "c10::Float8_e4m3fn", "25": "c10::Float8_e5m2fnuz", "26": "c10::Float8_e4m3fnuz",
}  # fmt: skip
#: A plain number among the operands is passed to the kernel in four bytes.
_SCALAR_BYTES = 4


NO_SHAPES = "shapes were not recorded"


class Unclear(Exception):
    """The recorded arguments lack what the formula needs; the message says what."""


class Arguments(msgspec.Struct, frozen=True):
    """Arguments by position; `types` and `values` may be shorter than `shapes` where less was recorded."""

    shapes: list[Any]
    types: list[str]
    values: list[str]

    @classmethod
    def parse(cls, shapes: str | None, types: str | None, values: str | None) -> Arguments:
        """From the compact JSON of the table `ops`. Raises Unclear if shapes or types are missing or malformed."""
        if shapes is None:
            raise Unclear(NO_SHAPES)
        if types is None:
            raise Unclear("element types were not recorded")
        try:
            parts = [msgspec.json.decode(text.encode()) if text else [] for text in (shapes, types, values)]
        except (ValueError, RecursionError, AttributeError):
            raise Unclear("its recorded arguments are no JSON") from None
        if not all(isinstance(part, list) for part in parts):
            raise Unclear("its recorded arguments are no lists")
        return cls(parts[0], [str(t) for t in parts[1]], [str(v) for v in parts[2]])

    def has(self, at: int) -> bool:
        """Whether there is a tensor at this position."""
        return at < len(self.shapes) and at < len(self.types) and self.types[at] in ELEMENT_BYTES

    def shape(self, at: int, dimensions: int | None = None) -> Shape:
        """The shape of a tensor. Raises Unclear if it is unknown or does not have that many dimensions."""
        dims = self.shapes[at] if self.has(at) else None
        if not isinstance(dims, list) or not all(isinstance(n, int) and n >= 0 for n in dims):
            raise Unclear(f"argument {at} is no tensor of a known shape")
        if dimensions is not None and len(dims) != dimensions:
            raise Unclear(f"argument {at} has {len(dims)} dimensions, not {dimensions}")
        return tuple(dims)

    def dtype(self, at: int) -> str:
        """The element type of a tensor. Raises Unclear."""
        if not self.has(at):
            raise Unclear(f"argument {at} is no tensor of a known type")
        return self.types[at]

    def element(self, at: int) -> int:
        """Bytes of an element of a tensor. Raises Unclear."""
        return ELEMENT_BYTES[self.dtype(at)]

    def count(self, at: int) -> int:
        """Elements of a tensor. Raises Unclear."""
        return math.prod(self.shape(at))

    def nbytes(self, at: int) -> int:
        """Bytes of a tensor, or of a plain number in its place; 0 if there is nothing. Raises Unclear."""
        if at < len(self.types) and self.types[at] == "Scalar":
            return _SCALAR_BYTES
        return self.count(at) * self.element(at) if self.has(at) else 0

    def value(self, at: int) -> str:
        """A plain value as recorded; empty if there is none."""
        return self.values[at] if at < len(self.values) else ""

    def flag(self, at: int) -> bool:
        """A plain value that is true or false. Raises Unclear."""
        text = self.value(at)
        if text not in ("True", "False"):
            raise Unclear(f"argument {at} is neither True nor False")
        return text == "True"

    def numbers(self, at: int) -> list[int]:
        """A list of integers; a single one counts as a list. Raises Unclear."""
        text = self.value(at).strip("[]")
        try:
            return [int(word) for word in text.split(",")] if text else []
        except ValueError:
            raise Unclear(f"argument {at} is no list of whole numbers") from None

    def flags(self, at: int) -> list[bool]:
        """A list of values that are true or false. Raises Unclear."""
        values = [word.strip() for word in self.value(at).strip("[]").split(",")]
        if not set(values) <= {"True", "False"}:
            raise Unclear(f"argument {at} is no list of True and False")
        return [word == "True" for word in values]

    def wanted_dtype(self, at: int, default: str) -> str:
        """The element type that was requested by number, else the default."""
        return _SCALAR_TYPES.get(self.value(at), default)
