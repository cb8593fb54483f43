"""Pad and Resize."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import NEW_TYPES, gradient
from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.linear_map import identity, pull_back
from bngrad.graph.pads import pads_of_all_axes
from bngrad.graph.shapes import dimension_of, shape_of, zeros
from bngrad.opset.op_attributes import RESIZE

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


@gradient("Resize", versions=(18, 19), attributes=RESIZE)
def resize(back: Backward) -> Gradients:
    """ResizeGrad(dY, X, roi, scales), which takes the scales from the shapes if they are left out."""
    policy = back.attribute("keep_aspect_ratio_policy", "stretch")
    if back.has(3) and policy != "stretch":
        back.refuse(f"it has keep_aspect_ratio_policy {policy!r}; expected stretch")
    back.rank(back.x(0))
    cropped = back.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    # Scales or a roi that are not used may be empty tensors.
    scales = None if back.has(3) else back.x(2)
    roi = back.optional(1) if cropped else None
    return [back.microsoft("ResizeGrad", back.dY, back.x(0), roi, scales, **back.attributes())]
