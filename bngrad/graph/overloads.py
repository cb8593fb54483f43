"""Functions of an op of ``bngrad`` that nodes name by their overload."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.opset.convolutions import MIN_IR_VERSION
from bngrad.opset.domain import DOMAIN

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from bngrad.graph.node_makers import NodesAtEnd

_REQUIRES = "bngrad.requires"
"""The domain of a node that no runtime has, and the overload of its function."""


def function_of(name: str, overload: str, graph: ir.Graph, attributes: Collection[str]) -> ir.Function:
    """Returns a function of an op.

    Args:
        name: The op.
        overload: The name of the function among those of the op.
        graph: The nodes of the function.
        attributes: The names of its attributes.
    """
    undefined = [ir.Attr(attribute, ir.AttributeType.UNDEFINED, None) for attribute in attributes]
    return ir.Function(DOMAIN, name, overload, graph=graph, attributes=undefined)


def call_of(
    model: ir.Model,
    make: NodesAtEnd,
    function: ir.Function,
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[str],
    attributes: Mapping[str, float],
) -> Sequence[ir.Value]:
    """Adds a function of `function_of` to a model and makes a node that calls it; returns the node's outputs.

    Args:
        model: The model.
        make: Makes the node.
        function: The function.
        inputs: Its inputs; None for one that is left out.
        outputs: A word for each output, which its name ends with.
        attributes: Its attributes.
    """
    model.functions[function.identifier()] = function
    values = make.outputs_of(function.name, *inputs, outputs=outputs, domain=function.domain, **attributes)
    node = values[0].producer()
    assert node is not None, "it has just been made"  # noqa: S101
    node.overload = function.overload
    return values


def refuse_old_runtimes(
    model: ir.Model, name: str, inputs: Collection[str], outputs: Collection[str], attributes: Collection[str]
) -> None:
    """Adds a last overload of an op, which no node calls, with a node that no runtime has.

    ONNX Runtime below 1.27 takes the last overload for each call, and would compute wrong results. The model gets
    an IR version that has overloads.
    """
    values = [ir.Value(name=value) for value in inputs]
    node = ir.node(
        "OnnxRuntime_1_27_or_newer", values, domain=_REQUIRES, num_outputs=len(outputs), name="requirement"
    )
    for value, output in zip(node.outputs, outputs, strict=True):
        value.name = output
    imports = {"": model.opset_imports[""], _REQUIRES: 1}
    graph = ir.Graph(values, node.outputs, nodes=[node], opset_imports=imports, name=name)
    model.functions.pop((DOMAIN, name, _REQUIRES), None)
    model.functions[DOMAIN, name, _REQUIRES] = function_of(name, _REQUIRES, graph, attributes)
    model.ir_version = max(model.ir_version or 0, MIN_IR_VERSION)
