"""Pad and Resize of some axes, which ONNX Runtime computes wrongly next to a Transpose.

Its transpose optimizer (seen in 1.32) moves a Transpose from the data of such a node to its result, and permutes
its pads, scales or sizes as if they were those of all axes in order: the node fails, or its result is wrong. ::

    y = Pad(x, pads, value, axes)  =>  y = Pad(x, pads of all axes, value)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.node_reader import dtype_of, read_attribute
from bngrad.graph.nodes import all_nodes
from bngrad.graph.pads import pads_of_all_axes
from bngrad.graph.shapes import shape_of

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker

_PAD_AXES = 3
"""The index of the input axes of Pad; Resize has an attribute."""


class AllAxesPass(ir.passes.InPlacePass):
    """Gives every Pad and Resize of some axes the pads, scales or sizes of all axes, if there is a Transpose.

    Requires: the ranks of values.
    Guarantees: values and their names stay. A Resize of some axes that keeps the aspect ratio stays: its policy
    depends on the axes.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        has_transpose = any((node.domain, node.op_type) == ("", "Transpose") for node in all_nodes(model))
        nodes = [node for node in all_nodes(model) if has_transpose and _has_axes(node)]
        names = Names(model) if nodes else None
        for node in nodes:
            assert names is not None, "there is a node"  # noqa: S101
            (_spread_pads if node.op_type == "Pad" else _spread_sizes)(
                node, NodesBefore(node, names, node.name or node.op_type)
            )
        return ir.passes.PassResult(model, modified=bool(nodes))


def _has_axes(node: ir.Node) -> bool:
    x = node.inputs[0] if node.inputs else None
    if node.domain or x is None or x.shape is None:
        return False
    if node.op_type == "Pad":
        return len(node.inputs) > _PAD_AXES and node.inputs[_PAD_AXES] is not None
    axes = read_attribute(node, "axes", ())
    policy = read_attribute(node, "keep_aspect_ratio_policy", "stretch")
    return node.op_type == "Resize" and len(axes) > 0 and (policy == "stretch" or len(axes) == len(x.shape))


def _spread_pads(node: ir.Node, make: NodeMaker) -> None:
    x, pads, _, axes = node.inputs
    assert x is not None and pads is not None and axes is not None, "`_has_axes` checks it"  # noqa: S101, PT018
    node.replace_input_with(1, pads_of_all_axes(make, pads, axes, x))
    node.resize_inputs(_PAD_AXES)


def _spread_sizes(node: ir.Node, make: NodeMaker) -> None:
    x, *values = node.inputs
    assert x is not None and x.shape is not None, "`_has_axes` checks it"  # noqa: S101, PT018
    rank = len(x.shape)
    axes = [axis % rank for axis in read_attribute(node, "axes", ())]
    for index, value in enumerate(values, 1):
        if value is None or _is_empty(value):
            continue
        numbers: list[Any] = [1] * rank
        if index == 1:  # the starts of the region, then its ends
            places, full = (
                [*axes, *(axis + rank for axis in axes)],
                make.constant([0] * rank + numbers, dtype_of(value)),
            )
        elif index == 2:
            places, full = axes, make.constant(numbers, dtype_of(value))
        else:
            places, full = axes, shape_of(make, x)
        node.replace_input_with(index, make.op("ScatterElements", full, make.int64(places), value, axis=0))
    del node.attributes["axes"]


def _is_empty(value: ir.Value) -> bool:
    return value.shape is not None and 0 in value.shape
