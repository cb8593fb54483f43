"""A Sigmoid whose relative error counts, which ONNX Runtime computes with an absolute error of 6e-8.

Its kernel (seen in 1.32) is 0 below -18 in float, where the function is 1.5e-8, and loses digits from -5 on; in
double from -14 on. A gate does not show that, but log(p), 1 / p and the square root of p enlarge the error::

    log(Sigmoid(x) + 1e-12)  =>  log(1 / (1 + exp(-x)) + 1e-12)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.node_reader import constant_of, dtype_of
from bngrad.graph.nodes import all_nodes, owner
from bngrad.graph.same_values import moves
from bngrad.graph.sigmoids import sigmoid
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Sequence

_ENLARGED_INPUT = {
    **dict.fromkeys(("Log", "LpNormalization", "Pow", "Reciprocal", "ReduceLogSum", "Sqrt"), 0),
    "Div": 1,
}
"""Ops whose relative or absolute error grows without limit as an input nears 0, and the index of that input."""

_KEEPS_SMALL = moves("type", "order", "size", "repetition", "selection") | {
    *("Abs", "Add", "Clip", "Div", "LeakyRelu", "Max", "Mean", "Min", "Mul", "Neg", "Pow", "PRelu", "Relu", "Sub"),
    *("Sum", "Tanh", "Where"),
    *("Concat", "DepthToSpace", "GatherElements", "GatherND", "Pad", "ScatterElements", "ScatterND"),
    *("SpaceToDepth", "Split", "TopK"),
    *("CumSum", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"),
    "ReduceSumSquare",
}
"""Ops with small results of small inputs. Products of matrices are not among them: they mix large terms in."""


class SigmoidPass(ir.passes.InPlacePass):
    """Computes every Sigmoid whose relative error counts by exp.

    Guarantees: values and their names stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        nodes = enlarged_sigmoids(model)
        if any(node.outputs[0].dtype is None for node in nodes):
            InferTypesPass()(model)
        compute_by_exp(model, nodes)
        return ir.passes.PassResult(model, modified=bool(nodes))


def enlarged_sigmoids(model: ir.Model) -> list[ir.Node]:
    """Returns the Sigmoids whose error a later node enlarges, in the order of the model."""
    nodes = list(all_nodes(model))
    waiting = [value for node in nodes if (value := _enlarged(node)) is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop().producer()
        if node is not None and node.domain == "" and node.op_type in _KEEPS_SMALL:
            values = {value for value in node.inputs if value is not None} - seen
            seen |= values
            waiting += values
    return [node for node in nodes if (node.domain, node.op_type) == ("", "Sigmoid") and node.outputs[0] in seen]


def _enlarged(node: ir.Node) -> ir.Value | None:
    """Returns the input of which a node enlarges an error near 0; None if it has no such input."""
    index = _ENLARGED_INPUT.get(node.op_type) if node.domain == "" else None
    if index is None or index >= len(node.inputs):
        return None
    if node.op_type == "Pow":
        exponent = constant_of(node.inputs[1])
        return None if exponent is not None and (exponent >= 1).all() else node.inputs[0]
    return node.inputs[index]


def compute_by_exp(model: ir.Model, nodes: Sequence[ir.Node]) -> None:
    """Replaces Sigmoids, whose types are known, by 1 / (1 + exp(-x)).

    A training graph is changed once it has the gradients, which are those of Sigmoid.
    """
    if not nodes:
        return
    names = Names(model)
    for node in nodes:
        (x,), (y,) = node.inputs, node.outputs
        assert x is not None, "a Sigmoid has an input"  # noqa: S101
        name = str(y.name)
        result = sigmoid(NodesBefore(node, names, node.name or name), x, dtype_of(y))
        result.type, result.shape = y.type, y.shape
        y.replace_all_uses_with(result, replace_graph_outputs=True)
        owner(node).remove(node, safe=True)
        result.name = name
