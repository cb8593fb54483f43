"""Adds nodes that turn the biased running variance of ONNX's batch norms into the unbiased one, as in PyTorch.

With M elements per channel, new_running_var = momentum * running_var + (1 - momentum) * var * M / max(M - 1, 1).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from bngrad.graph.nodes import owner
from bngrad.graph.subgraphs import nodes_of
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL

_INV_STD = 4
"""The output of BatchNormInternal from which the batch's variance is computed, as ORT overwrites running_var."""


def unbias_running_variances(graph: ir.Graph) -> None:
    """Makes the running variances returned by the training-mode batch norms of a graph and its bodies unbiased.

    Args:
        graph: The main graph of a model of ONNX ops or ops of ORT's dialect. It is modified; names of outputs are
            kept.
    """
    for node in list(nodes_of(graph)):
        trains = (node.domain, node.op_type) == BATCH_NORM_INTERNAL or (
            (node.domain, node.op_type) == ("", "BatchNormalization")
            and node.attributes.get_int("training_mode", 0) != 0
        )
        if trains and len(node.outputs) > 2 and node.outputs[2].name:
            _unbias(owner(node), node)


def _unbias(graph: ir.Graph, node: ir.Node) -> None:
    biased, old = node.outputs[2], node.inputs[4]
    assert old is not None, "a batch norm has a running variance"  # noqa: S101
    name, dtype = biased.name, old.dtype or ir.DataType.FLOAT
    nodes: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value | None, **attributes: int | ir.TensorProtocol) -> ir.Value:
        new = ir.node(op_type, inputs, attributes, name=f"{name}/{op_type}_{len(nodes)}")
        new.outputs[0].name = f"{name}/unbiased_{len(nodes)}"
        nodes.append(new)
        return new.outputs[0]

    def number(value: float) -> ir.Value:
        return op("Constant", value=ir.tensor(np.asarray(value, dtype.numpy()), dtype=dtype))

    def count(value: ir.Value | None) -> ir.Value:
        return op("Cast", op("Size", value), to=dtype)

    unit = number(1.0)
    M = op("Div", count(node.inputs[0]), count(old))
    excess = op("Sub", op("Div", M, op("Max", op("Sub", M, unit), unit)), unit)
    momentum = float(np.float32(node.attributes.get_float("momentum", 0.9)))
    if node.op_type == BATCH_NORM_INTERNAL[1]:
        inv_std, epsilon = node.outputs[_INV_STD], float(np.float32(node.attributes.get_float("epsilon", 1e-5)))
        variance = op("Sub", op("Reciprocal", op("Mul", inv_std, inv_std)), number(epsilon))
        batch = op("Mul", op("Sub", unit, number(momentum)), variance)
    else:
        batch = op("Sub", None, op("Mul", number(momentum), old))
    result = op("Add", None, op("Mul", batch, excess))
    biased.replace_all_uses_with(result, replace_graph_outputs=True)
    for new in (batch.producer(), result.producer()):
        if new is not None and new.inputs[0] is None:
            new.replace_input_with(0, biased)
    graph.insert_after(node, nodes)
    result.name, biased.name = name, f"{name}/biased"
    result.type, result.shape = biased.type, biased.shape
