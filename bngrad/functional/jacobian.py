"""The Jacobian of an output: the backward pass of each of its elements, in a Scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.functional.products import free_name, mark, vjp
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.shapes import shape_of
from bngrad.graph.subgraphs import captured_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.training.options import DifferentiateOptions

_PREFIX = "bngrad_jacobian"


def jacobian(
    model: ir.Model, output: str | None, wrt: Sequence[str] | None, options: DifferentiateOptions
) -> ir.Model:
    """Returns a model with the Jacobian of an output, with the dimensions of the output before those of x.

    Args:
        model: The model; it is not changed.
        output: The output; by default the only float that is not a running statistic.
        wrt: See `vjp`.
        options: See `vjp`.

    Raises:
        ModelError: As `vjp`; or the model has several outputs and none is named.
        UnsupportedNodeError: As `vjp`.
    """
    result, seeds, gradients = vjp(model, None if output is None else [output], wrt, options)
    if len(seeds) > 1:
        raise ModelError(f"the model has {len(seeds)} float outputs, {', '.join(seeds)}; name one with output=")
    ((name, seed_name),) = seeds.items()
    graph, names = result.graph, Names(result)
    y = next(value for value in graph.outputs if value.name == name)
    seed = next(value for value in graph.inputs if value.name == seed_name)
    graph.inputs.remove(seed)
    rows = [value for value in graph.outputs if value.name in gradients.values()]
    backward = _depending(graph, seed)
    for row in rows:
        graph.outputs.remove(row)
    graph.remove(backward)
    make = NodesAtEnd(graph, names, _PREFIX)
    shape = shape_of(make, y)
    positions = make.op("Range", make.int64(0), make.op("ReduceProd", shape, keepdims=0), make.int64(1))
    scan = _scan(graph, seed, rows, backward, positions, shape, names)
    graph.append(scan)
    for x, row, stacked in zip(gradients, rows, scan.outputs, strict=True):
        stacked.name, stacked.type = names.fresh(f"{_PREFIX}_rows"), row.type
        whole_shape = make.op("Concat", shape, make.op("Shape", stacked, start=1), axis=0)
        whole = make.op("Reshape", stacked, whole_shape, allowzero=1)
        whole.name, whole.type = free_name(names, f"{x}_jacobian"), row.type
        if y.shape is not None and row.shape is not None:
            whole.shape = ir.Shape([*y.shape, *row.shape])
        graph.outputs.append(whole)
    mark(result, "jacobian")
    return result


def _scan(
    graph: ir.Graph,
    seed: ir.Value,
    rows: Sequence[ir.Value],
    backward: Sequence[ir.Node],
    positions: ir.Value,
    shape: ir.Value,
    names: Names,
) -> ir.Node:
    """Returns a Scan over the positions of the elements, whose body has the backward pass of one."""
    position = ir.Value(
        name=names.fresh(f"{_PREFIX}_position"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([])
    )
    body = ir.Graph([position], [], nodes=[], name=_PREFIX, opset_imports=graph.opset_imports)
    make = NodesAtEnd(body, names, _PREFIX)
    unit = make.op("Cast", make.op("Equal", positions, position), to=int(dtype_of(seed)))
    of_element = make.op("Reshape", unit, shape, allowzero=1)
    of_element.type, of_element.shape = seed.type, seed.shape
    seed.replace_all_uses_with(of_element)
    body.extend(backward)
    body.outputs.extend(rows)
    attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", 1)]
    return ir.Node("", "Scan", [positions], attributes, num_outputs=len(rows), name=names.fresh(_PREFIX))


def _depending(graph: ir.Graph, seed: ir.Value) -> list[ir.Node]:
    """Returns the nodes that depend on a value, in their order."""
    reached, nodes = {seed}, []
    for node in graph:
        if not reached.isdisjoint((*node.inputs, *captured_values(node))):
            nodes.append(node)
            reached.update(node.outputs)
    return nodes
