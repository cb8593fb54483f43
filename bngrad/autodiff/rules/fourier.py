"""DFT and STFT: linear maps of the signal, whose adjoint is a DFT in the other direction."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.node_reader import axes_refusal, constant_of
from bngrad.graph.shapes import dimension_of, known_dimension, shape_of
from bngrad.opset.op_attributes import ANY, FLAG

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_AXIS_IS_INPUT = 20
"""The first opset whose DFT has its axis as an input."""


class _Transform(NamedTuple):
    """DFTs of one axis, in a type that ONNX Runtime has the op in."""

    back: Backward
    axis: int | ir.Value
    """The axis: a number, or an int64 scalar that is computed."""
    length: ir.Value
    """The number of elements of the whole spectrum: int64, a scalar."""
    dtype: ir.DataType

    def dft(self, value: ir.Value, *, inverse: int = 0, onesided: int = 0) -> ir.Value:
        """Transforms a value, which has the length."""
        back, axis = self.back, self.axis
        flags = {"inverse": inverse, "onesided": onesided}
        if back.opset < _AXIS_IS_INPUT:
            return back.op("DFT", value, **flags, axis=axis)
        return back.op("DFT", value, None, back.int64(axis) if isinstance(axis, int) else axis, **flags)

    def half(self) -> ir.Value:
        """Returns the number of frequencies of a one-sided spectrum."""
        return self.back.op("Add", self.back.op("Div", self.length, self.back.int64(2)), self.back.int64(1))

    def number(self) -> ir.Value:
        """Returns the length as a float."""
        return self.back.op("Cast", self.length, to=int(self.dtype))

    def adjoint(self, dY: ir.Value) -> ir.Value:
        """Returns the adjoint of a DFT; real and imaginary parts."""
        return self.back.op("Mul", self.dft(dY, inverse=1), self.number())

    def one_sided_adjoint(self, dY: ir.Value) -> ir.Value:
        """Returns the adjoint of a DFT to the first half of its frequencies."""
        # Not by dft_length: ONNX Runtime takes a computed one for the size of the axis.
        return self.adjoint(_filled(self.back, dY, self.axis, self.half(), self.length))

    def inverse_adjoint(self, dY: ir.Value) -> ir.Value:
        """Returns the adjoint of an inverse DFT."""
        return self.back.op("Div", self.dft(dY), self.number())

    def one_sided_inverse_adjoint(self, dY: ir.Value, rank: int) -> ir.Value:
        """Returns the adjoint of an inverse DFT to real numbers, for which each frequency has its conjugate, too.

        The frequencies 0 and length / 2 are their own conjugates.
        """
        back = self.back
        spectrum = self.dft(dY, onesided=1)
        numbers = back.op("Range", back.int64(0), self.half(), back.int64(1))
        alone = back.op("Mod", back.op("Mul", numbers, back.int64(2)), self.length)
        alone = back.op("Equal", alone, back.int64(0))
        times = back.op("Where", alone, back.constant(1, self.dtype), back.constant(2, self.dtype))
        factors = back.op("Div", times, self.number())
        half = back.op("Reshape", self.half(), back.int64([1]))
        shape = back.op("ScatterElements", back.int64([1] * rank), _vector(back, self.axis), half)
        return back.op("Mul", spectrum, back.op("Reshape", factors, shape))


@gradient("DFT", versions=(17, 20), attributes={"axis": ANY, "inverse": FLAG, "onesided": FLAG})
def dft(back: Backward) -> Gradients:
    """dX = N IDFT(dY), of an inverse DFT it is DFT(dY) / N; elements that it leaves out have 0.

    One-sided, the frequencies that Y lacks are 0 in dY. An inverse one-sided DFT takes each frequency twice, but
    0 and N / 2. The gradient of a real signal is the real part.
    """
    x, dtype = back.x(0), statistics_dtype(back.x(0))
    inverse, onesided = back.attribute("inverse", 0), back.attribute("onesided", 0)
    axis = _axis(back)
    both = inverse and onesided
    length = _length(back, 1) if back.has(1) else _size(back, back.y() if both else x, axis)
    transform = _Transform(back, axis, length, dtype)
    dY = back.cast(back.dY, dtype)
    if both:
        _require_every_frequency(back, axis)
        return [cast_like(back, transform.one_sided_inverse_adjoint(dY, back.rank(x)), dtype, x)]
    if inverse:
        dX = transform.inverse_adjoint(dY)
    else:
        dX = transform.one_sided_adjoint(dY) if onesided else transform.adjoint(dY)
    dX = _parts(back, dX)
    if back.has(1):
        size = _size(back, x, axis)
        end = back.op("Unsqueeze", size, back.int64([0]))
        dX = back.op("Slice", dX, back.int64([0]), end, _vector(back, axis))
        dX = _filled(back, dX, axis, length, size)
    return [cast_like(back, dX, dtype, x)]


@gradient("STFT", inputs=(0, 2), attributes={"onesided": FLAG}, versions=(17,))
def stft(back: Backward) -> Gradients:
    """G = F IDFT(dY) of each frame; dX = the sum of G w over the frames; dw = the sum of G X over all frames."""
    x, window, dtype = back.x(0), back.optional(2), statistics_dtype(back.x(0))
    zero, step = back.int64(0), back.int64(1)
    if window is not None and back.rank(window) != 1:
        back.refuse(f"its window has {back.rank(window)} dimensions; expected 1")
    if window is not None:
        length = _size(back, window, 0)
    elif back.has(3):
        length = _length(back, 3)
    else:
        length = _size(back, x, 1)
    count = _size(back, back.y(), 1)
    begins = back.op("Mul", back.op("Range", zero, count, step), _length(back, 1))
    indices = back.op("Add", back.op("Unsqueeze", begins, back.int64([1])), back.op("Range", zero, length, step))
    indices.dtype, indices.shape = ir.DataType.INT64, ir.Shape([None, None])
    transform, flow = _Transform(back, 2, length, dtype), back.cast(back.dY, dtype)
    flow = transform.one_sided_adjoint(flow) if back.attribute("onesided", 1) else transform.adjoint(flow)
    flow = _parts(back, flow)
    flow.dtype = dtype

    dX = dwindow = None
    if back.needs(0):
        product = flow
        if window is not None:
            factor = back.op("Unsqueeze", back.cast(window, dtype), back.int64([1]))
            product = back.times(flow, factor)
        product.dtype = dtype
        dX = back.microsoft("GatherGrad", shape_of(back, x), indices, product, axis=1)
        dX.shape = x.shape
        dX = cast_like(back, dX, dtype, x)
    if window is not None and back.needs(2):
        frames = back.op("Gather", back.cast(x, dtype), indices, axis=1)
        sums = back.op("ReduceSum", back.times(flow, frames), back.int64([0, 1, 3]), keepdims=0)
        dwindow = cast_like(back, sums, dtype, window)
    return [dX, None, dwindow]


def _axis(back: Backward) -> int | ir.Value:
    """Returns the axis of a DFT: a number from the first axis, or what computes it."""
    rank, axis = back.rank(back.x(0)), back.attribute("axis", 1)
    if back.opset >= _AXIS_IS_INPUT:
        axis = -2
        if back.has(2):
            numbers = back.known_int64(2)
            if numbers is None:
                return back.op("Squeeze", back.x(2))
            (axis,) = numbers
    if reason := axes_refusal([axis], rank):
        back.refuse(reason)
    return int(axis % rank)


def _require_every_frequency(back: Backward, axis: int | ir.Value) -> None:
    """Refuses an inverse one-sided DFT of more or fewer frequencies: ONNX Runtime computes others than ONNX."""
    if not back.has(1):
        return
    size, length = None, constant_of(back.x(1))
    if isinstance(axis, int):
        size = known_dimension(back.x(0), axis)
    if size is None or length is None:
        back.refuse("it is inverse and one-sided, and its dft_length or its size is not known; expected numbers")
    number = int(length.item())
    if size != (expected := number // 2 + 1):
        back.refuse(f"it makes {number} numbers of {size} frequencies; expected {expected} frequencies")


def _filled(back: Backward, value: ir.Value, axis: int | ir.Value, size: ir.Value, length: ir.Value) -> ir.Value:
    """Appends zeros to an axis up to a length, if its size is less."""
    missing = back.op("Max", back.op("Sub", length, size), back.int64(0))
    pads = back.op("Concat", back.int64([0]), back.op("Unsqueeze", missing, back.int64([0])), axis=0)
    return back.op("Pad", value, pads, None, _vector(back, axis))


def _parts(back: Backward, value: ir.Value) -> ir.Value:
    """Returns as many of the real and the imaginary part as the signal has."""
    x = back.x(0)
    if known_dimension(x, -1) == 2:
        return value
    return back.op("Slice", value, back.int64([0]), dimension_of(back, x, -1), back.int64([-1]))


def _vector(back: Backward, axis: int | ir.Value) -> ir.Value:
    """Returns an axis as a vector."""
    return back.int64([axis]) if isinstance(axis, int) else back.op("Unsqueeze", axis, back.int64([0]))


def _size(back: Backward, value: ir.Value, axis: int | ir.Value) -> ir.Value:
    """Returns one dimension of a value as a scalar."""
    if isinstance(axis, int):
        return back.op("Squeeze", dimension_of(back, value, axis), back.int64([0]))
    return back.op("Gather", back.op("Shape", value), axis)


def _length(back: Backward, index: int) -> ir.Value:
    """Returns an input that is a number, as an int64."""
    return back.op("Squeeze", back.cast(back.x(index), ir.DataType.INT64))
