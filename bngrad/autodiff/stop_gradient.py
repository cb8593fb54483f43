"""StopGradient of ``bngrad.autodiff``: the identity in a forward model, which no gradient passes.

`torch.Tensor.detach` and `torch.no_grad` are exported as this op. ONNX has no such op, and Identity has a
gradient. A forward model defines it as a model-local function, so that it runs anywhere; in training graphs and
inference models it is an Identity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir
from onnx.defs import OpSchema

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import all_nodes, describe
from bngrad.opset import onnx_registry
from bngrad.opset.quantities import FLOAT_TYPES

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker

DOMAIN = "bngrad.autodiff"
NAME = "StopGradient"


def stop_nodes(model: ir.Model) -> list[ir.Node]:
    """Returns the StopGradient nodes of a model, also those in subgraphs."""
    return [node for node in all_nodes(model) if is_stop(node)]


def is_stop(node: ir.Node) -> bool:
    """Returns whether a node is a StopGradient."""
    return (node.domain, node.op_type) == (DOMAIN, NAME)


def register_schema() -> None:
    """Registers the schema with onnx, for exporters that look ops up by it."""
    x, y = (OpSchema.FormalParameter(name, "T") for name in ("X", "Y"))
    constraints = [("T", FLOAT_TYPES, "Any float")]
    onnx_registry.register([OpSchema(NAME, DOMAIN, 1, inputs=[x], outputs=[y], type_constraints=constraints)])


def define(model: ir.Model) -> None:
    """Adds the definition to a model that has StopGradient nodes."""
    if not stop_nodes(model):
        return
    x = ir.val("X")
    body = ir.node("Identity", [x])
    body.outputs[0].name = "Y"
    version = model.opset_imports[""]
    graph = ir.Graph([x], [body.outputs[0]], nodes=[body], opset_imports={"": version})
    model.functions[DOMAIN, NAME, ""] = ir.Function(DOMAIN, NAME, graph=graph, attributes=[])
    model.opset_imports[DOMAIN] = 1


def stopped(make: NodeMaker, value: ir.Value) -> ir.Value:
    """Makes a StopGradient of a value."""
    result = make.outputs_of(NAME, value, outputs=["stopped"], domain=DOMAIN)[0]
    result.type, result.shape = value.type, value.shape
    return result


def stops_to_identity(model: ir.Model) -> None:
    """Converts every StopGradient to an Identity, after the gradients are added or if none are needed."""
    for node in stop_nodes(model):
        node.domain, node.op_type, node.version = "", "Identity", None
    model.functions.pop((DOMAIN, NAME, ""), None)
    model.opset_imports.pop(DOMAIN, None)


def refuse_stops(model: ir.Model, who: str) -> None:
    """Refuses a model with StopGradient nodes.

    Args:
        model: The model.
        who: The component that does not support them, for the message.

    Raises:
        UnsupportedNodeError: It has one.
    """
    for node in stop_nodes(model):
        raise UnsupportedNodeError(f"{describe(node)} is unsupported by {who}; use bngrad's own builder")
