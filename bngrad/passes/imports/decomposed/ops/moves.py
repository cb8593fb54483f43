"""Ops that only move elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.graph.node_reader import known_integers, read_attribute
from bngrad.passes.imports.decomposed.ops.arithmetic import same_layout
from bngrad.passes.imports.decomposed.ops.record import Op, register, sizes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.evaluate import Evaluator
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.ops.record import Array


def _reshape(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:
    sizes = sizes_of(node.outputs[0])
    return None if sizes is None else layouts.axes.reshape(layout, sizes)


def _flatten(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:  # noqa: ARG001
    axis = read_attribute(node, "axis", 1)
    axis += len(layout) if axis < 0 else 0
    return sum(layout[:axis], ()), sum(layout[axis:], ())


def _transpose(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:  # noqa: ARG001
    return tuple(layout[axis] for axis in read_attribute(node, "perm", list(range(len(layout)))[::-1]))


def _unsqueeze(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:  # noqa: ARG001
    axes = _axes_of(node)
    if axes is None:
        return None
    rank = len(layout) + len(axes)
    rest = iter(layout)
    added = {axis % rank for axis in axes}
    if len(added) < len(axes):
        return None  # an axis is named twice
    return tuple(() if place in added else next(rest) for place in range(rank))


def _squeeze(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:
    axes = _axes_of(node)
    if axes is None:
        return _reshape(layouts, node, layout)
    removed = {axis % len(layout) for axis in axes} if layout else set()
    if any(layout[axis] for axis in removed):
        return None  # its size is a symbol, and 1 in a run
    return tuple(dimension for place, dimension in enumerate(layout) if place not in removed)


def _axes_of(node: ir.Node) -> Sequence[int] | None:
    if "axes" in node.attributes:
        axes: Sequence[int] = read_attribute(node, "axes", [0])
        return axes
    return known_integers(node, 1) if len(node.inputs) > 1 else None


def _expand(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:
    sizes = sizes_of(node.outputs[0])
    if sizes is None or len(sizes) < len(layout):
        return None
    padded = (*[()] * (len(sizes) - len(layout)), *layout)
    return tuple(dimension or layouts.axes.new(size) for dimension, size in zip(padded, sizes, strict=True))


def _tile(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:
    """The layout only where the op repeats dimensions of size 1, as an Expand does."""
    sizes = sizes_of(node.outputs[0])
    if sizes is None or len(layout) != len(sizes):
        return None
    for dimension, size in zip(layout, sizes, strict=True):
        extent = layouts.axes.extent(dimension)
        if dimension and (size is None or extent != layouts.axes.extent(layouts.axes.new(size))):
            return None
    return _expand(layouts, node, layout)


def _moved(evaluator: Evaluator, node: ir.Node, x: Array) -> Array:
    """A change of shape, which the layout has; a constant that is one number has no shape."""
    if x.ndim and x.size == 1 and node.op_type in ("Reshape", "Squeeze") and not evaluator.shape(node.outputs[0]):
        return x.reshape(())
    if x.ndim == 0 or x.dtype.kind in "iu":
        return x
    if node.op_type in ("Expand", "Tile"):
        return np.broadcast_to(x, evaluator.shape(node.outputs[0]))
    return x.reshape(evaluator.shape(node.outputs[0]))


def _transposed(evaluator: Evaluator, node: ir.Node, x: Array) -> Array:  # noqa: ARG001
    return x if x.ndim == 0 else x.transpose(read_attribute(node, "perm", list(range(x.ndim))[::-1]))


_MOVE = Op(form=lambda forms, node: forms.of_input(node), evaluate=_moved, operands=1)
_MOVE_OF_SIZES = _MOVE._replace(sizes=lambda sizes, node, x: x, float_sizes=True)  # noqa: ARG005

MOVES = {
    "Identity": _MOVE_OF_SIZES._replace(layout=same_layout, numpy=np.asarray, evaluate=None),
    "Reshape": _MOVE_OF_SIZES._replace(layout=_reshape),
    "Squeeze": _MOVE_OF_SIZES._replace(layout=_squeeze),
    "Unsqueeze": _MOVE_OF_SIZES._replace(layout=_unsqueeze),
    "Flatten": _MOVE._replace(layout=_flatten),
    "Transpose": _MOVE._replace(layout=_transpose, evaluate=_transposed),
    "Expand": _MOVE._replace(layout=_expand),
    "Tile": _MOVE._replace(layout=_tile),
}
register(MOVES)
