"""Ops that only move or copy elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.rule import NEW_TYPES, gradient
from bngrad.graph.broadcasting import sum_to
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.nodes import known_rank
from bngrad.graph.shapes import dimension_of, lengths_of, shape_of, zeros
from bngrad.opset.op_attributes import ANY, AXIS, FLAG

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients

_BLOCKS = {"blocksize": ANY, "mode": ("DCR", "CRD")}


@gradient("Flatten", versions=(13, *NEW_TYPES), attributes=AXIS)
@gradient("Reshape", versions=(14, 19, *NEW_TYPES), attributes={"allowzero": FLAG})
def reshape(back: Backward) -> Gradients:
    """dX = dY in the shape of X, for Reshape and Flatten."""
    return [_shaped(back, back.dY, back.x(0))]


@gradient("Squeeze", versions=(13, *NEW_TYPES))
def squeeze(back: Backward) -> Gradients:
    """dX = dY with the axes put back."""
    if not back.has(1):
        return reshape(back)
    return [back.op("Unsqueeze", back.dY, back.x(1))]


@gradient("Unsqueeze", versions=(13, *NEW_TYPES))
def unsqueeze(back: Backward) -> Gradients:
    """dX = dY without the new axes."""
    axes = back.x(1)
    # ONNX Runtime accepts a scalar axis, as PyTorch's exporter writes it, only for Unsqueeze.
    vector = axes if known_rank([axes]) == 1 else back.op("Reshape", axes, back.int64([-1]))
    return [back.op("Squeeze", back.dY, vector)]


@gradient("Transpose", versions=(13, *NEW_TYPES), attributes={"perm": ANY})
def transpose(back: Backward) -> Gradients:
    """dX = dY under the inverse permutation. Without perm the axes are reversed, which is its own inverse."""
    perm = back.attribute("perm", None)
    if perm is None:
        return [back.op("Transpose", back.dY)]
    return [back.op("Transpose", back.dY, perm=sorted(range(len(perm)), key=list(perm).__getitem__))]


@gradient("Expand", versions=(13,))
def expand(back: Backward) -> Gradients:
    """dX = dY summed over the axes along which X was repeated."""
    return [sum_to(back, back.dY, back.x(0), back.y())]


@gradient("Tile", versions=(13,))
def tile(back: Backward) -> Gradients:
    """dX = dY summed over the copies: each axis of dY is first split into the copies and the axis of X."""
    x, repeats = back.x(0), back.x(1)
    columns = back.int64([-1, 1])
    pairs = [back.op("Reshape", value, columns) for value in (repeats, shape_of(back, x))]
    by_copy = back.op("Reshape", back.op("Concat", *pairs, axis=1), back.int64([-1]))
    split = back.op("Reshape", back.dY, by_copy, allowzero=1)
    return [back.op("ReduceSum", split, back.int64(list(range(0, 2 * back.rank(x), 2))), keepdims=0)]


@gradient("Concat", inputs=None, versions=(13,), attributes=AXIS)
def concat(back: Backward) -> Gradients:
    """dX_i = the part of dY that X_i became."""
    axis, inputs = back.attribute("axis", 0), [back.x(index) for index in range(len(back.node.inputs))]
    if len(inputs) == 1:
        return [back.dY]
    lengths = lengths_of(back, inputs, axis)
    return back.outputs_of("Split", back.dY, lengths, outputs=[f"dX{i}" for i in range(len(inputs))], axis=axis)


@gradient("Split", versions=(18,), attributes={**AXIS, "num_outputs": ANY})
def split(back: Backward) -> Gradients:
    """dX = the gradients of all pieces, concatenated; zeros for a piece that the loss does not depend on."""
    pieces = [
        zeros(back, shape_of(back, back.y(index)), dtype_of(back.x(0))) if dY is None else dY
        for index, dY in enumerate(back.all_dY)
    ]
    return [back.op("Concat", *pieces, axis=back.attribute("axis", 0))]


@gradient("DepthToSpace", versions=(13, 28), attributes=_BLOCKS)
def depth_to_space(back: Backward) -> Gradients:
    """dX = SpaceToDepth(dY), whose channels are blocks first.

    In mode CRD they are blocks last, as they are where each channel is an image of its own.
    """
    block = back.attribute("blocksize", None)
    if back.attribute("mode", "DCR") == "DCR":
        return [back.op("SpaceToDepth", back.dY, blocksize=block)]
    spatial = [dimension_of(back, back.y(), axis) for axis in (-2, -1)]
    # Not -1, which Reshape does not accept for images without pixels.
    count = back.op("ReduceProd", back.op("Shape", back.dY, end=2), keepdims=1)
    shape = back.op("Concat", count, back.int64([1]), *spatial, axis=0)
    images = back.op("Reshape", back.dY, shape, allowzero=1)
    return [_shaped(back, back.op("SpaceToDepth", images, blocksize=block), back.x(0))]


@gradient("SpaceToDepth", versions=(13, 28), attributes=_BLOCKS)
def space_to_depth(back: Backward) -> Gradients:
    """dX = DepthToSpace(dY) of the same mode, which is DCR below opset 28."""
    block, mode = back.attribute("blocksize", None), back.attribute("mode", "DCR")
    return [back.op("DepthToSpace", back.dY, blocksize=block, mode=mode)]


def _shaped(back: Backward, gradient: ir.Value, x: ir.Value) -> ir.Value:
    # Without allowzero, a dimension of 0 in the shape means an unchanged one.
    return back.op("Reshape", gradient, shape_of(back, x), allowzero=1)
