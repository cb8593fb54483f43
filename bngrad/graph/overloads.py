"""Functions of an op of ``bngrad`` that nodes name by their overload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.opset.convolutions import MIN_IR_VERSION
from bngrad.opset.domain import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Collection

_REQUIRES = "bngrad.requires"
"""The domain of a node that no runtime has, and the overload of its function."""


def add_overload(model: ir.Model, name: str, overload: str, graph: ir.Graph, attributes: Collection[str]) -> None:
    """Adds a function to a model, and a last overload, which no node calls, with a node that no runtime has.

    ONNX Runtime below 1.27 takes the last overload for each call, and would compute wrong results.

    Args:
        model: The model, which gets an IR version that has overloads.
        name: The op.
        overload: The name of the function among those of the op.
        graph: The nodes of the function.
        attributes: The names of its attributes.
    """

    def add(key: str, nodes: ir.Graph) -> None:
        undefined = [ir.Attr(attribute, ir.AttributeType.UNDEFINED, None) for attribute in attributes]
        model.functions.pop((DOMAIN, name, key), None)
        model.functions[DOMAIN, name, key] = ir.Function(DOMAIN, name, key, graph=nodes, attributes=undefined)

    add(overload, graph)
    inputs = [ir.Value(name=value.name) for value in graph.inputs]
    node = ir.node(
        "OnnxRuntime_1_27_or_newer", inputs, domain=_REQUIRES, num_outputs=len(graph.outputs), name="requirement"
    )
    for value, computed in zip(node.outputs, graph.outputs, strict=True):
        value.name = computed.name
    imports = {"": model.opset_imports[""], _REQUIRES: 1}
    add(_REQUIRES, ir.Graph(inputs, node.outputs, nodes=[node], opset_imports=imports, name=name))
    model.ir_version = max(model.ir_version or 0, MIN_IR_VERSION)
