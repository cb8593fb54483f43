"""Benchmark cases: an op at a shape, and the bytes that it has to move."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import InputError
from bngrad.opset.axes import normalize_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

OPS = {
    "grad": "BatchNormalizationGrad",
    "relu-grad": "BatchNormalizationReluGrad",
    "training": "BatchNormalizationTraining",
    "grad-grad": "BatchNormalizationGradGrad",
    "statistics": "BatchNormalizationStatistics",
}
"""The ops of the domain, by their names on the command line."""

ARRAYS = {"grad": 3, "relu-grad": 4, "training": 2, "grad-grad": 5, "statistics": 1}
"""The number of arrays of X's size that an op reads or writes, each counted once: dY, X and dX for ``grad``."""

FREEZABLE = ("grad", "relu-grad", "grad-grad")
"""The ops that also have a mode with frozen statistics."""

DTYPES = ("float", "double", "float16", "bfloat16")
"""The element types of the ops, by their ONNX names."""

LAYOUTS = ("NCHW", "NHWC")
"""Channels in dimension 1, or in the last dimension; for any rank, although the names are those of rank 4."""


@dataclass(frozen=True)
class Case:
    """One op at one shape.

    Raises:
        InputError: A dimension is not positive, the axes are invalid for the shape, the dtype or the op is
            unknown, or the op has no frozen mode.
    """

    shape: tuple[int, ...]
    """The shape of X; rank 1 to 8."""
    axes: tuple[int, ...]
    """The reduction axes; normalized to sorted non-negative axes."""
    dtype: str = "float"
    """The type of X and of arrays of its shape, one of `DTYPES`. Parameters are float for 16-bit data."""
    op: str = "grad"
    """A key of `OPS`."""
    frozen: bool = False
    """True if mean and inv_std are constants (training_mode = 0)."""

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape):
            raise InputError(f"shape {self.shape_text} has an empty dimension; expected sizes of 1 or more")
        object.__setattr__(self, "axes", normalize_axes(self.axes, len(self.shape)))
        for name, value, choices in (("dtype", self.dtype, DTYPES), ("op", self.op, OPS)):
            if value not in choices:
                raise InputError(f"{name} is {value!r}; expected one of {', '.join(choices)}")
        if self.frozen and self.op not in FREEZABLE:
            raise InputError(f"op {self.op} has no frozen mode; expected one of {', '.join(FREEZABLE)}")

    @property
    def shape_text(self) -> str:
        """The shape as on the command line: ``32x64x56x56``."""
        return "x".join(map(str, self.shape))

    @property
    def op_text(self) -> str:
        """The op and its mode: ``grad, frozen``."""
        return f"{self.op}, frozen" if self.frozen else self.op

    @property
    def data_bytes(self) -> int:
        """The size of X in bytes."""
        return math.prod(self.shape) * ir.DataType[self.dtype.upper()].bitwidth // 8

    @property
    def moved_bytes(self) -> int:
        """The size of all arrays of X's shape that the op reads or writes, each counted once, in bytes."""
        return ARRAYS[self.op] * self.data_bytes


def parse_shape(text: str) -> tuple[int, ...]:
    """Parses a shape such as ``32x64x56x56``.

    Raises:
        InputError: The text is not a shape.
    """
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", text):
        raise InputError(f"shape {text!r} is invalid; expected sizes separated by x, such as 32x64x56x56")
    return tuple(int(size) for size in text.split("x"))


def parse_axes(text: str) -> tuple[int, ...]:
    """Parses axes such as ``0,2,3``; axes may be negative, and an empty text means no axes.

    Raises:
        InputError: The text is not a list of axes.
    """
    if text and not re.fullmatch(r"-?[0-9]{1,9}(,-?[0-9]{1,9})*", text):
        raise InputError(f"axes {text!r} are invalid; expected integers separated by commas, such as 0,2,3")
    return tuple(int(axis) for axis in text.split(",") if axis)


def layout_axes(layout: str, rank: int) -> tuple[int, ...]:
    """Returns the reduction axes of a layout: all except that of the channels.

    Args:
        layout: One of `LAYOUTS`.
        rank: The rank of X.

    Raises:
        InputError: The rank is below 2, so X has no dimension for the channels.
    """
    channel = 1 if layout == "NCHW" else rank - 1
    if rank < 2:
        raise InputError(f"a shape of rank {rank} has no layout; pass the reduction axes with --axes")
    return tuple(axis for axis in range(rank) if axis != channel)


def cases_of_shapes(
    shapes: Sequence[str], *, axes: str | None, layout: str | None, dtype: str, op: str, frozen: bool
) -> dict[Case, int]:
    """Returns the distinct cases of the options of a command line, each with the count 1.

    Args:
        shapes: Shapes in the form that `parse_shape` parses.
        axes: Axes in the form that `parse_axes` parses; None for the axes of the layout.
        layout: One of `LAYOUTS`; None for NCHW. Not together with ``axes``.
        dtype: One of `DTYPES`.
        op: A key of `OPS`.
        frozen: Whether the statistics are constants.

    Raises:
        InputError: An option is invalid.
    """
    if axes is not None and layout is not None:
        raise InputError("--axes and --layout are both given; both set the reduction axes, so pass only one")
    given_axes = None if axes is None else parse_axes(axes)
    cases = {}
    for shape in map(parse_shape, shapes):
        reduced = layout_axes(layout or "NCHW", len(shape)) if given_axes is None else given_axes
        cases[Case(shape, reduced, dtype, op, frozen)] = 1
    return cases
