"""Paths to the loss that no gradient can follow, since a float passes in a type that carries none."""

from __future__ import annotations

import onnx_ir as ir

from bngrad.autodiff.straight_through import is_quantizer, rounding_of
from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import captured_values


def refuse_hidden_paths(loss: ir.Value, moving: set[ir.Value]) -> None:
    """Refuses nodes that output a float in a type that carries no gradient: as bits, as text, or quantized.

    Raises:
        UnsupportedNodeError: The loss depends on the output of such a node, whose input is not constant.
    """
    seen, waiting = {loss.producer()}, [loss.producer()]
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if is_quantizer(node) and not moving.isdisjoint(node.inputs[:2]):
            name = None if node.inputs[0] is None else node.inputs[0].name
            raise UnsupportedNodeError(
                f"{describe(node)} cannot be differentiated: it rounds {name!r}, and the loss depends on the "
                "result through another op than a DequantizeLinear of the same graph; expected only that op, or "
                "--no-straight-through (straight_through=False), which gives roundings the gradient 0"
            )
        if _hides_a_float(node) and node.inputs[0] in moving:
            raise UnsupportedNodeError(
                f"{describe(node)} cannot be differentiated: it has no gradient with respect to input 0, "
                f"{node.inputs[0].name!r}, whose value it outputs as bits or text; expected a constant"
            )
        operands = [*node.inputs, *captured_values(node)]
        rounding = rounding_of(node)
        if rounding is not None:
            operands = [rounding.x, rounding.scale, *node.inputs[1:]]
        makers = {value.producer() for value in operands if value is not None} - seen
        if rounding is not None:
            makers.discard(rounding.quantizer)
        seen |= makers
        waiting += makers


def _hides_a_float(node: ir.Node) -> bool:
    if node.domain or not node.inputs or not node.outputs:
        return False
    return node.op_type == "BitCast" or (node.op_type == "Cast" and node.outputs[0].dtype == ir.DataType.STRING)
