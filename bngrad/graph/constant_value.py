"""The values that a model computes only from initializers and constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from bngrad.graph.nodes import owner

if TYPE_CHECKING:
    from collections.abc import Callable

RANDOM_OPS = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike", "Dropout"),
    }
)
"""The ops of ONNX whose outputs differ from run to run."""

_MOST_NODES = 100
"""The most nodes that are evaluated: a running statistic is at most cast, reshaped or filled."""

_MOST_ELEMENTS = 1 << 16
"""The most elements of an initializer of equal elements: a larger one is a matrix that was drawn."""


def constant_value(value: ir.Value) -> ir.TensorProtocol | None:
    """Returns the tensor of an initializer or Constant, or of a value computed only from these; else None.

    A graph input with a default counts as an initializer. Random nodes and nodes with subgraphs are not evaluated.
    """
    tensor = constant_tensor(value)
    return tensor if tensor is not None or value.producer() is None else _evaluated(value)


def fixed_value(value: ir.Value, sized: Callable[[ir.Value], bool]) -> ir.TensorProtocol | None:
    """Returns the tensor of a value that is the same in every run; else None.

    Args:
        value: The value, computed only from initializers that are no inputs, from constants, and from shapes.
        sized: A function that tells whether a value always has its stated shape.
    """
    tensor = None if value.is_graph_input() else constant_tensor(value)
    return tensor if tensor is not None or value.producer() is None else _evaluated(value, sized)


def constant_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Returns the tensor of an initializer or a Constant; else None.

    onnx-ir's get_const_tensor renames the tensor of a Constant, which a clone shares with its model.
    """
    node = value.producer()
    attribute = None if node is None or node.op_type != "Constant" else node.attributes.get("value")
    if value.const_value is None and attribute is not None and attribute.type == ir.AttributeType.TENSOR:
        return None if attribute.is_ref() else attribute.as_tensor()
    return ir.convenience.get_const_tensor(value)


def has_equal_elements(value: ir.Value, number: float | None = None) -> bool:
    """Returns whether all elements of an initializer are equal, and equal to a number unless it is None.

    False for one element, for large matrices, which are drawn, and where the external data is missing.
    """
    tensor = value.const_value
    if tensor is None or not 1 < tensor.size <= _MOST_ELEMENTS:
        return False
    try:
        array = tensor.numpy()
    except (OSError, ValueError):  # its external data is missing, which is reported where it is needed
        return False
    first = array.flat[0] if number is None else number
    return bool(np.all(array == first))


def renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """Returns a tensor with the same data under another name; the first may belong to another model."""
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)


def new_initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """Returns a new initializer with the data of a tensor, whose own name stays."""
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), const_value=renamed(tensor, name))
    value.shape = ir.Shape(tensor.shape.numpy())
    graph.register_initializer(value)
    return value


def lift_constant(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Replaces a Constant node by an initializer of the same name."""
    node, tensor = value.producer(), constant_tensor(value)
    assert node is not None and tensor is not None, "a Constant has a value"  # noqa: S101, PT018
    name, value.const_value = str(value.name), None  # a tensor that it has would be renamed
    value.name = None
    initializer = new_initializer(graph, name, tensor)
    value.replace_all_uses_with(initializer, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return initializer


def _evaluated(value: ir.Value, sized: Callable[[ir.Value], bool] | None = None) -> ir.TensorProtocol | None:
    nodes: dict[ir.Node, None] = {}
    sources: dict[ir.Value, None] = {}
    shapes: dict[ir.Value, ir.TensorProtocol] = {}
    waiting = [value]
    while waiting:
        current = waiting.pop()
        node = current.producer()
        if node is None:
            if current.const_value is None or (sized is not None and current.is_graph_input()):
                return None
            sources[current] = None
        elif sized is not None and (shape := _static_result(node, sized)) is not None:
            shapes[current] = shape
        elif node not in nodes:
            if len(nodes) == _MOST_NODES or not _is_evaluable(node):
                return None
            nodes[node] = None
            waiting += [operand for operand in node.inputs if operand is not None]
    if value in shapes:
        return shapes[value]
    graph = owner(next(iter(nodes)))
    proto = onnx.helper.make_graph(
        [ir.to_proto(node) for node in graph if node in nodes],
        "constants",
        [],
        [onnx.ValueInfoProto(name=value.name)],
        [
            ir.to_proto(renamed(source.const_value, str(source.name)))
            for source in sources
            if source.const_value is not None
        ]
        + [ir.to_proto(renamed(tensor, str(shape.name))) for shape, tensor in shapes.items()],
    )
    imports = [onnx.helper.make_opsetid("", version) for version in _opset(graph)]
    try:
        (array,) = ReferenceEvaluator(onnx.helper.make_model(proto, opset_imports=imports)).run(None, {})
        return ir.tensor(array)
    except Exception:  # noqa: BLE001 - a value that it cannot evaluate is not constant
        return None


def _static_result(node: ir.Node, sized: Callable[[ir.Value], bool]) -> ir.TensorProtocol | None:
    """Returns the result of a Shape or Size whose input always has a shape of numbers; else None."""
    x = node.inputs[0] if not node.domain and node.op_type in ("Shape", "Size") else None
    if x is None or x.shape is None or not x.shape.is_static() or not sized(x):
        return None
    sizes = np.array(x.shape.numpy(), np.int64)
    if node.op_type == "Size":
        return ir.tensor(np.prod(sizes, dtype=np.int64))
    return ir.tensor(sizes[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(sizes))])


def _is_evaluable(node: ir.Node) -> bool:
    return (
        node.domain == ""
        and node.op_type not in RANDOM_OPS
        and all(a.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
    )


def _opset(graph: ir.Graph) -> list[int]:
    return [version for domain, version in graph.opset_imports.items() if domain in ("", "ai.onnx")]
