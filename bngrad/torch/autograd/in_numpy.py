"""Runs single nodes in NumPy, with onnx's reference evaluator: those that no gradient passes.

They are the ops that have no function in the table, such as NonZero, and those that draw random numbers, which
must be the numbers of the graph under test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator

from bngrad.autodiff.prepare_forward import OPSET as NEWER
from bngrad.autodiff.straight_through import is_quantizer
from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import describe
from bngrad.opset.ort_dialect import MICROSOFT
from bngrad.torch.autograd.table import ELSEWHERE
from bngrad.validation.float64 import is_in_evaluator
from bngrad.validation.training_ops import FUNCTIONS, OP_RUNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bngrad.torch.autograd.table import Value

_ZERO = ("Bernoulli", "EyeLike", "RandomNormalLike", "RandomUniformLike", "Shape", "Size")
"""The ops whose output does not depend on the elements of their input, or jumps: their gradient is zero."""
_DROPOUT = ("", "Dropout")


def can_run(node: ir.Node, opset: int) -> bool:
    """Returns whether NumPy has an implementation of a node's op, which newer opsets do not replace by another."""
    if (node.domain, node.op_type) in FUNCTIONS:
        return True
    if node.domain != "" or not is_in_evaluator(node.op_type, opset):
        return False
    return not (onnx.defs.has(node.op_type, NEWER) and onnx.defs.get_schema(node.op_type, NEWER).deprecated)


def run(node: ir.Node, values: Mapping[str, Value], opset: int, *, first: int = 0) -> list[Value]:
    """Returns the outputs of a node, or the last of them.

    Args:
        node: The node.
        values: The tensors in reach, by name.
        opset: The version of the default domain.
        first: The index of the first output to return.

    Raises:
        UnsupportedNodeError: A gradient passes the node.
    """
    names = _reads(node)
    inputs = {name: values[name] for name in names}
    if (node.domain, node.op_type) == _DROPOUT:
        return _dropout(node, inputs, opset)
    outputs = _evaluated(node, {name: _array(value) for name, value in inputs.items()}, opset)[first:]
    floats = any(tensor.is_floating_point() for value in outputs for tensor in _tensors(value))
    passes = (floats and node.op_type not in _ZERO) or is_quantizer(node)
    if passes and any(map(_needs_gradient, inputs.values())):
        raise UnsupportedNodeError(
            f"{describe(node)} has no equivalent in PyTorch, and a gradient passes it; {ELSEWHERE}"
        )
    return outputs


def _dropout(node: ir.Node, inputs: Mapping[str, Value], opset: int) -> list[Value]:
    """The input times Dropout's output for ones, which draws the same numbers."""
    x = inputs[str(node.inputs[0].name)]  # type: ignore[union-attr]
    assert isinstance(x, torch.Tensor), "checked by onnx"  # noqa: S101
    ones = {name: _array(value) for name, value in inputs.items()}
    ones[str(node.inputs[0].name)] = np.ones(x.shape)  # type: ignore[union-attr]
    scale, *mask = _evaluated(node, ones, opset)
    assert isinstance(scale, torch.Tensor), "as the input"  # noqa: S101
    return [x * scale, *mask]


def _evaluated(node: ir.Node, arrays: Mapping[str, Any], opset: int) -> list[Value]:
    named = [str(value.name) for value in node.outputs if value.name]
    inputs, outputs = (list(map(helper.make_empty_tensor_value_info, names)) for names in (arrays, named))
    graph = helper.make_graph([ir.to_proto(node)], "node", inputs, outputs)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports)
    with np.errstate(all="ignore"):
        results = iter(ReferenceEvaluator(model, new_ops=OP_RUNS).run(None, dict(arrays)))
    return [_value(next(results)) if value.name else torch.empty(0) for value in node.outputs]


def _reads(node: ir.Node) -> list[str]:
    """The names of the values that a node reads, also in its subgraphs."""
    names = {str(value.name): None for value in node.inputs if value is not None and value.name}
    for attribute in node.attributes.values():
        graphs: Sequence[ir.Graph] = ()
        if attribute.type == ir.AttributeType.GRAPH:
            graphs = [attribute.as_graph()]
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs = attribute.as_graphs()
        for graph in graphs:
            own = {value.name for value in (*graph.inputs, *graph.initializers.values())}
            own |= {value.name for inner in graph.all_nodes() for value in inner.outputs}
            inputs = [value for inner in graph.all_nodes() for value in inner.inputs if value is not None]
            names |= {str(value.name): None for value in (*inputs, *graph.outputs) if value.name not in own}
    return list(names)


def _needs_gradient(value: Value) -> bool:
    return any(tensor.requires_grad for tensor in _tensors(value))


def _tensors(value: Value) -> list[torch.Tensor]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _array(value: Value) -> Any:  # noqa: ANN401 - an array, or a list of them
    if isinstance(value, list):
        return [_array(item) for item in value]
    return None if value is None else value.detach().numpy()


def _value(result: Any) -> Value:  # noqa: ANN401 - an output of the evaluator
    return (
        [torch.from_numpy(np.array(item)) for item in result]
        if isinstance(result, list)
        else torch.from_numpy(np.array(result))
    )
