"""Pad, CenterCropPad and Resize."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import NEW_TYPES, gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.linear_map import identity, pull_back
from bngrad.graph.pads import pads_of_all_axes
from bngrad.graph.shapes import dimension_of, known_dimension, shape_of, zeros
from bngrad.opset.op_attributes import ANY, RESIZE
from bngrad.passes.lower.resize import SAME_FOR_A_MATRIX

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_MOST_PADS = 2**63 - 1


@gradient(
    "Pad",
    inputs=(0, 2),
    versions=(18, 19, *NEW_TYPES),
    attributes={"mode": ("constant", "reflect", "edge", "wrap")},
)
def pad(back: Backward) -> Gradients:
    """dX = dY with the opposite pads; the gradient of padding that copies X is added to the copied elements.

    In mode constant, the gradient of the padding value is the sum of dY over the padding.
    """
    if back.attribute("mode", "constant") != "constant":
        return [_pad_with_elements(back) if back.needs(0) else None, None, None]
    pads = back.known_int64(1)
    if pads is not None and min(pads, default=0) < -_MOST_PADS:
        back.refuse(f"its pads are {list(pads)}; expected numbers that have an opposite")
    dX = dvalue = None

    def padded(data: ir.Value, pads: ir.Value, *value: ir.Value) -> ir.Value:
        all_pads = pads_of_all_axes(back, pads, back.x(3), back.dY) if back.has(3) else pads
        return back.op("Pad", data, all_pads, *value)

    if back.needs(0):
        opposite = back.op("Neg", back.x(1)) if pads is None else back.int64([-number for number in pads])
        dX = padded(back.dY, opposite)
    if back.needs(2):
        value, no = back.x(2), zeros(back, shape_of(back, back.x(0)), ir.DataType.BOOL)
        outside = padded(no, back.x(1), back.constant(True, ir.DataType.BOOL))
        dtype = statistics_dtype(value)
        there = back.op("Where", outside, back.cast(back.dY, dtype), back.constant(0, dtype))
        total = cast_like(back, back.op("ReduceSum", there, keepdims=0), dtype, value)
        dvalue = back.op("Reshape", total, shape_of(back, value))
    return [dX, None, dvalue]


def _pad_with_elements(back: Backward) -> ir.Value:
    x, mode = back.x(0), back.attribute("mode", "constant")
    rank = back.rank(x)
    axes = back.known_int64(3) if back.has(3) else list(range(rank))
    if axes is None:
        back.refuse(f"it has mode {mode!r} and axes that are computed; expected constant axes")
    matrices = {}
    for place, axis in enumerate(axes):
        ends = _ends(back, place, len(axes))
        if ends is None:
            continue
        nothing = back.int64([0])
        pads = back.op("Concat", nothing, ends[0], nothing, ends[1], axis=0)
        matrices[axis % rank] = back.op("Pad", identity(back, dimension_of(back, x, axis)), pads, mode=mode)
    return pull_back(back, back.dY, matrices, x, rank)


def _ends(back: Backward, place: int, count: int) -> tuple[ir.Value, ir.Value] | None:
    """Returns the padding at both ends of the axis at a place among the axes; None if there is none."""
    pads = back.known_int64(1)
    begin, end = place, place + count
    if pads is None:
        return back.op("Gather", back.x(1), back.int64([begin])), back.op("Gather", back.x(1), back.int64([end]))
    if pads[begin] == pads[end] == 0:
        return None
    return back.int64([pads[begin]]), back.int64([pads[end]])


@gradient("CenterCropPad", versions=(18,), attributes={"axes": ANY})
def center_crop_pad(back: Backward) -> Gradients:
    """dX = the same of dY, to the shape of X: both ways, half of the difference, rounded down, is in front."""
    shape, axes = shape_of(back, back.x(0)), back.attribute("axes", None)
    if axes is None:
        return [back.op("CenterCropPad", back.dY, shape)]
    return [back.op("CenterCropPad", back.dY, back.op("Gather", shape, back.int64(list(axes))), axes=list(axes))]


@gradient("Resize", versions=(18, 19), attributes=RESIZE)
def resize(back: Backward) -> Gradients:
    """ResizeGrad(dY, X, roi, scales), which takes the scales from the shapes if they are left out."""
    back.rank(back.x(0))
    cropped = back.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    policy = back.attribute("keep_aspect_ratio_policy", "stretch")
    if back.has(3) and policy != "stretch":
        if cropped:
            back.refuse(f"it has tf_crop_and_resize and keep_aspect_ratio_policy {policy!r}; expected stretch")
        return [_keeping_aspect_ratio(back, policy)]
    # Scales or a roi that are not used may be empty tensors.
    scales = None if back.has(3) else back.x(2)
    roi = back.optional(1) if cropped else None
    return [back.microsoft("ResizeGrad", back.dY, back.x(0), roi, scales, **back.attributes())]


def _keeping_aspect_ratio(back: Backward, policy: str) -> ir.Value:
    """Returns M dY along each axis, where M is the result of the Resize for an identity matrix.

    One scale is that of all axes, and not the quotient of an axis's own sizes, which are rounded. So the matrix is
    resized together with an axis along which it is repeated, the one that decides the scale.
    """
    if back.attribute("antialias", 0) and back.attribute("mode", "nearest") == "nearest":
        back.refuse("it has antialias and mode 'nearest'; expected linear or cubic")
    x, sizes, rank = back.x(0), back.x(3), back.rank(back.x(0))
    axes = [axis % rank for axis in back.attribute("axes", range(rank))]
    old, new = _decisive_sizes(back, axes, policy)
    attributes = {name: back.attributes()[name] for name in SAME_FOR_A_MATRIX if name in back.attributes()}
    matrices = {}
    for place, axis in enumerate(axes):
        size, channel = dimension_of(back, x, axis), back.int64([1])
        image = back.op("Unsqueeze", identity(back, size), back.int64([1, 3]))
        image = back.op("Expand", image, back.op("Concat", size, channel, size, old, axis=0))
        after = back.op("Concat", back.op("Gather", sizes, back.int64([place])), new, axis=0)
        resized = back.op(
            "Resize", image, None, None, after, axes=[2, 3], keep_aspect_ratio_policy=policy, **attributes
        )
        column = back.op("Gather", resized, back.int64(0), axis=3)
        matrices[axis] = back.op("Squeeze", column, back.int64([1]))
    return pull_back(back, back.dY, matrices, x, rank)


def _decisive_sizes(back: Backward, axes: list[int], policy: str) -> tuple[ir.Value, ir.Value]:
    """Returns the sizes whose quotient is the scale of all axes, in lowest terms if they are known."""
    x, is_least = back.x(0), policy == "not_larger"
    numbers, lengths = back.known_int64(3), [known_dimension(x, axis) for axis in axes]
    pairs = [(old, new) for old, new in zip(lengths, numbers or (), strict=False) if old]
    if len(pairs) == len(axes):
        old, new = (min if is_least else max)(pairs, key=lambda pair: pair[1] / pair[0])
        common = gcd(old, new)
        return back.int64([old // common]), back.int64([new // common])
    before, after = back.op("Gather", shape_of(back, x), back.int64(axes)), back.x(3)
    ratios = back.op("Div", *(back.op("Cast", value, to=int(ir.DataType.FLOAT)) for value in (after, before)))
    decisive = back.op("ArgMin" if is_least else "ArgMax", ratios, axis=0)
    return back.op("Gather", before, decisive), back.op("Gather", after, decisive)
