"""Nodes of the op ConvChannelsLast of ``bngrad``, and its functions in a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.overloads import function_of, refuse_old_runtimes
from bngrad.opset.conv_channels_last import INPUTS, NAME, OUTPUTS
from bngrad.opset.convolutions import ATTRIBUTES, INTEGERS, output_sizes
from bngrad.opset.domain import DOMAIN, VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.builder import NodeMaker


def conv_channels_last(
    emit: NodeMaker,
    model: ir.Model,
    x: ir.Value,
    w: ir.Value,
    *,
    dilations: Sequence[int],
    group: int,
    kernel_shape: Sequence[int],
    pads: Sequence[int],
    strides: Sequence[int],
) -> ir.Value:
    """Makes a ConvChannelsLast, adds its function to the model, and returns its output with its type and shape.

    Args:
        emit: The maker of the node.
        model: The model of the node, of ai.onnx 15 or newer. It gets IR version 10, which has overloads.
        x: The data, [N, *spatial, C], of a known type.
        w: The weights, [M, *kernel, C / group], of the type of the data.
        dilations: As of Conv, and so are the others; all are required.
        group: The number of groups.
        kernel_shape: The spatial dimensions of w.
        pads: Those at the beginnings, then those at the ends.
        strides: The strides.
    """
    lists = {"dilations": dilations, "kernel_shape": kernel_shape, "pads": pads, "strides": strides}
    lists = {name: list(values) for name, values in lists.items()}
    (result,) = emit.outputs_of(NAME, x, w, outputs=["conv"], domain=DOMAIN, group=group, **lists)
    node = result.producer()
    assert node is not None, "`emit` has just made it"  # noqa: S101
    rank = len(kernel_shape)
    node.overload = str(rank)
    if (DOMAIN, NAME, node.overload) not in model.functions:
        graph = _definition(rank, model.opset_imports[""])
        model.functions[DOMAIN, NAME, node.overload] = function_of(NAME, node.overload, graph, ATTRIBUTES)
        refuse_old_runtimes(model, NAME, INPUTS, OUTPUTS, ATTRIBUTES)
    model.opset_imports.setdefault(DOMAIN, VERSION)
    result.type = x.type
    if x.shape is not None and w.shape is not None:
        batch, *spatial, _ = x.shape
        sizes = [size if isinstance(size, int) else None for size in spatial]
        result.shape = ir.Shape([batch, *output_sizes(sizes, lists), w.shape[0]])
    return result


def _definition(rank: int, opset: int) -> ir.Graph:
    """The nodes of the function for a number of spatial dimensions: Conv between Transposes."""
    to_first, to_last = [0, rank + 1, *range(1, rank + 1)], [0, *range(2, rank + 2), 1]
    inputs = [ir.Value(name="X"), ir.Value(name="W")]
    nodes = [ir.node("Transpose", [value], {"perm": to_first}, name=f"{value.name}_first") for value in inputs]
    int_, ints = ir.AttributeType.INT, ir.AttributeType.INTS
    references = {name: ir.RefAttr(name, name, int_ if name in INTEGERS else ints) for name in ATTRIBUTES}
    nodes.append(ir.node("Conv", [node.outputs[0] for node in nodes], references, name="Y_first"))
    nodes.append(ir.node("Transpose", nodes[-1].outputs, {"perm": to_last}, name="Y"))
    for node in nodes:
        node.outputs[0].name = node.name
    return ir.Graph(inputs, nodes[-1].outputs, nodes=nodes, opset_imports={"": opset}, name=NAME)
