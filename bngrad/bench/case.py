"""What is timed: an op at a shape, and the bytes that it cannot help moving."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.opset.reference import normalize_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

OPS = {
    "grad": "BatchNormalizationGrad",
    "relu-grad": "BatchNormalizationReluGrad",
    "training": "BatchNormalizationTraining",
    "grad-grad": "BatchNormalizationGradGrad",
    "statistics": "BatchNormalizationStatistics",
}
"""The ops of the domain, by the names that the command line has for them."""

ARRAYS = {"grad": 3, "relu-grad": 4, "training": 2, "grad-grad": 5, "statistics": 1}
"""How many arrays of X's size an op reads or writes, each counted once: for ``grad`` dY, X and dX."""

FREEZABLE = ("grad", "relu-grad", "grad-grad")
"""The ops that take the statistics as constants too."""

DTYPES = ("float", "double", "float16", "bfloat16")
"""The element types of the ops, by their ONNX names."""

LAYOUTS = ("NCHW", "NHWC")
"""Where the channels are: in dimension 1, or in the last. Any rank; the letters are those of rank 4."""


@dataclass(frozen=True)
class Case:
    """One op at one shape.

    Raises:
        InputError: An extent is not positive, the axes do not belong to the shape, the dtype or the op is unknown,
            or the op has no frozen mode.
    """

    shape: tuple[int, ...]
    """Of X; rank 1 to 8."""
    axes: tuple[int, ...]
    """The reduction axes; sorted and not negative once the case is made."""
    dtype: str = "float"
    """Of X and all of its shape: one of `DTYPES`. Parameters have it too, but float beside 16-bit data."""
    op: str = "grad"
    """A key of `OPS`."""
    frozen: bool = False
    """Whether mean and inv_std are constants (training_mode 0)."""

    def __post_init__(self) -> None:
        if any(extent < 1 for extent in self.shape):
            raise InputError(f"shape {self.shape_text} has an extent below 1; there is nothing to time")
        object.__setattr__(self, "axes", normalize_axes(self.axes, len(self.shape)))
        for name, value, known in (("dtype", self.dtype, DTYPES), ("op", self.op, OPS)):
            if value not in known:
                raise InputError(f"{name} is {value!r}; expected one of {', '.join(known)}")
        if self.frozen and self.op not in FREEZABLE:
            raise InputError(f"{self.op} has no frozen mode; {', '.join(FREEZABLE)} have one")

    @property
    def shape_text(self) -> str:
        """The shape as the command line has it: ``32x64x56x56``."""
        return "x".join(map(str, self.shape))

    @property
    def data_bytes(self) -> int:
        """The bytes of X."""
        return math.prod(self.shape) * ir.DataType[self.dtype.upper()].bitwidth // 8

    @property
    def moved_bytes(self) -> int:
        """The bytes of all arrays of X's shape that the op reads or writes, each counted once."""
        return ARRAYS[self.op] * self.data_bytes


def parse_shape(text: str) -> tuple[int, ...]:
    """Reads ``32x64x56x56``.

    Raises:
        InputError: The text is anything else.
    """
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", text):
        raise InputError(f"shape {text!r} is not extents with x between them, such as 32x64x56x56")
    return tuple(int(extent) for extent in text.split("x"))


def parse_axes(text: str) -> tuple[int, ...]:
    """Reads ``0,2,3``; axes may be negative, and the empty text stands for none.

    Raises:
        InputError: The text is anything else.
    """
    if text and not re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text):
        raise InputError(f"axes {text!r} are not whole numbers with commas between them, such as 0,2,3")
    return tuple(int(axis) for axis in text.split(",") if axis)


def layout_axes(layout: str, rank: int) -> tuple[int, ...]:
    """Returns the axes that a layout reduces: all but that of the channels.

    Args:
        layout: One of `LAYOUTS`.
        rank: Of X.

    Raises:
        InputError: X has no dimension for the channels.
    """
    channel = 1 if layout == "NCHW" else rank - 1
    if rank < 2:
        raise InputError(f"a shape of rank {rank} has no layout; say with --axes what is reduced")
    return tuple(axis for axis in range(rank) if axis != channel)


def cases_of_shapes(
    shapes: Sequence[str], *, axes: str | None, layout: str | None, dtype: str, op: str, frozen: bool
) -> dict[Case, int]:
    """Returns the cases of a command line, each once.

    Args:
        shapes: As `parse_shape` takes them.
        axes: As `parse_axes` takes them, or None.
        layout: One of `LAYOUTS`, or None for NCHW; not with ``axes``.
        dtype: One of `DTYPES`.
        op: A key of `OPS`.
        frozen: Whether the statistics are constants.

    Raises:
        InputError: Any of it is not what it should be.
    """
    if axes is not None and layout is not None:
        raise InputError("--axes and --layout both say what is reduced; give one of them")
    reduced = None if axes is None else parse_axes(axes)
    cases = {}
    for shape in map(parse_shape, shapes):
        of_shape = layout_axes(layout or "NCHW", len(shape)) if reduced is None else reduced
        cases[Case(shape, of_shape, dtype, op, frozen)] = 1
    return cases
