"""The gradient of Resize in standard ONNX."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.linear_map import identity, pull_back
from bngrad.graph.node_reader import axes_refusal, constant_of, dtype_of, like, read_attribute
from bngrad.graph.nodes import known_rank
from bngrad.graph.shapes import dimension_of
from bngrad.opset.known_shapes import known_shape
from bngrad.opset.op_attributes import RESIZE
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site

SAME_FOR_A_MATRIX = (
    "antialias",
    "coordinate_transformation_mode",
    "cubic_coeff_a",
    "exclude_outside",
    "mode",
    "nearest_mode",
)
"""The attributes that a Resize of one axis of a matrix has too; nothing is extrapolated, so that it is linear."""

_REPEATS = {("asymmetric", "floor")} | {
    (f"{mode}half_pixel{kind}", f"round_prefer_{way}")
    for mode, kind in (("", ""), ("", "_symmetric"), ("pytorch_", ""))
    for way in ("floor", "ceil")
}
"""The coordinates and roundings with which nearest repeats every element k times where the scale is a number k."""


def refusal(node: ir.Node) -> str | None:
    """Returns the reason why a ResizeGrad cannot be lowered; None if it can."""
    policy = read_attribute(node, "keep_aspect_ratio_policy", "stretch")
    if _given_scales(node) is None and policy != "stretch":
        return f"it has keep_aspect_ratio_policy {policy!r} and no scales; expected stretch"
    x = node.inputs[1] if len(node.inputs) > 1 else None
    if x is None or x.dtype is None or known_rank(node.inputs[:2]) is None:
        return "the type and rank of its X are not known; expected a model that shape inference can read"
    if read_attribute(node, "antialias", 0) and read_attribute(node, "mode", "nearest") == "nearest":
        return "it has antialias and mode 'nearest'; expected linear or cubic"
    return _axes_refusal(node)


def _axes_refusal(node: ir.Node) -> str | None:
    """Returns the reason why its axes or scales do not fit its data; None if they do."""
    rank = known_rank(node.inputs[:2]) or 0
    ranks = [len(shape) for value in node.inputs[:2] if (shape := known_shape(value)) is not None]
    if len(set(ranks)) > 1:
        return f"its dY has {ranks[0]} dimensions, its X {ranks[1]}; expected as many"
    axes = read_attribute(node, "axes", list(range(rank)))
    scales = constant_of(_given_scales(node))
    if scales is not None and scales.shape != (len(axes),):
        return f"its scales are {scales.size} numbers; expected {len(axes)}, one for each axis"
    if scales is not None and not (np.isfinite(scales) & (scales > 0)).all():
        return f"its scales are {scales.tolist()}; expected numbers above 0"
    return axes_refusal(axes, rank)


@lowering("ResizeGrad", refusal=refusal, attributes=RESIZE)
def resize_grad(site: Site) -> Outputs:
    """ResizeGrad(dY, X, roi, scales) -> dX; without scales, the shapes determine them.

    Where Resize repeated elements along the spatial axes, dX is the sum over each window, the fast form. Otherwise
    it is a linear map of each axis.
    """
    dY, x = site.x(0), site.x(1)
    rank = known_rank([x, dY]) or 0
    scales = [_scale(site, axis, rank) for axis in range(rank)]
    if _repeats(site, scales):
        window = [int(scale or 1) for scale in scales[2:]]
        mean = site.op("AveragePool", dY, kernel_shape=window, strides=window)
        return [site.op("Mul", mean, like(site, math.prod(window), x))]
    matrices = {axis: _matrix(site, axis, rank) for axis, scale in enumerate(scales) if scale != 1}
    return [pull_back(site, dY, matrices, x, rank)]


def _repeats(site: Site, scales: list[float | None]) -> bool:
    method = (
        site.attribute("coordinate_transformation_mode", "half_pixel"),
        site.attribute("nearest_mode", "round_prefer_floor"),
    )
    whole = all(scale is not None and scale >= 1 and scale == int(scale) for scale in scales)
    pools = site.x(1).dtype == ir.DataType.FLOAT and 3 <= len(scales) <= 5 and scales[:2] == [1, 1]
    return site.attribute("mode", "nearest") == "nearest" and method in _REPEATS and whole and pools


def _scale(site: Site, axis: int, rank: int) -> float | None:
    """The scale of an axis, 1 only if the axis does not change; None if it is known only at run time."""
    places = _places(site, rank)
    if axis not in places:
        return 1
    if _is_cropped(site):
        return None
    scales = _given_scales(site.node)
    if scales is not None:
        numbers = constant_of(scales)
        return None if numbers is None else float(numbers[places.index(axis)])
    before, after = (value.shape[axis] if value.shape is not None else None for value in (site.x(1), site.x(0)))
    if isinstance(before, int) and isinstance(after, int):
        return after / before if before else None
    same = isinstance(before, ir.SymbolicDim) and before.value is not None and before == after
    return 1 if same else None


def _matrix(site: Site, axis: int, rank: int) -> ir.Value:
    """The result of the Resize for an identity matrix along its second axis."""
    dY, x = site.x(0), site.x(1)
    places = _places(site, rank)
    place = places.index(axis)
    size = dimension_of(site, x, axis)
    roi = scales = sizes = None
    if _is_cropped(site):
        start, end = (_element(site, site.x(2), place + half) for half in (0, len(places)))
        first, last = (site.constant([number], dtype_of(site.x(2))) for number in (0, 1))
        # ONNX Runtime reads a roi in the type of the data, which is a matrix in float here.
        roi = site.op("Concat", first, start, last, end, axis=0)
        roi.dtype = dtype_of(site.x(2))
        roi = site.cast(roi, ir.DataType.FLOAT)
    node_scales = _given_scales(site.node)
    if node_scales is not None:
        unit = site.constant([1], ir.DataType.FLOAT)
        scales = site.op("Concat", unit, _element(site, node_scales, place), axis=0)
    else:
        sizes = site.op("Concat", size, dimension_of(site, dY, axis), axis=0)
    attributes = {name: site.node.attributes[name] for name in SAME_FOR_A_MATRIX if name in site.node.attributes}
    return site.op("Resize", identity(site, size), roi, scales, sizes, **attributes)


def _given_scales(node: ir.Node) -> ir.Value | None:
    """The scales; None where the shapes determine them: scales are omitted, or an empty tensor."""
    scales = node.inputs[3] if len(node.inputs) > 3 else None
    numbers = constant_of(scales)
    return None if numbers is not None and not numbers.size else scales


def _element(site: Site, vector: ir.Value, place: int) -> ir.Value:
    return site.op("Gather", vector, site.int64([place]))


def _places(site: Site, rank: int) -> list[int]:
    """The axes of the scales and the roi, in their order."""
    return [axis % rank for axis in site.attribute("axes", range(rank))]


def _is_cropped(site: Site) -> bool:
    mode: str = site.attribute("coordinate_transformation_mode", "half_pixel")
    return mode == "tf_crop_and_resize"
