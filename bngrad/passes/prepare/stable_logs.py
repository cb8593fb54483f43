"""Logarithms of sigmoids and of sums of exponentials, as exporters write functions that frameworks compute stably.

They are infinite or NaN, or have such gradients, where a term over- or underflows: below -18 and at -88 and 88. ::

    Log(Sigmoid(x))           =>  -Softplus(-x)
    Log(1 - Sigmoid(x))       =>  -Softplus(x)
    Log(Add(Exp(a), Exp(b)))  =>  u + Softplus(v - u), where u >= v are a and b

Powers of a constant, as of logaddexp2, count as exponentials. The new nodes have no tie: at a = b the gradient is
1/2 for both, whatever the convention of the model.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.constant_value import constant_value
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.nodes import all_nodes, default_opset, remove_unused
from bngrad.graph.same_values import SAME_ORDER, origin
from bngrad.graph.sigmoids import softplus
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from bngrad.graph.builder import NodeMaker


_WHERE = 9
"""The first opset that has Where."""


class StableLogsPass(ir.passes.InPlacePass):
    """Computes logarithms of sigmoids and of sums of two exponentials by Softplus.

    Guarantees: values and their names stay. New values have types.

    Args:
        names: The source of new names; by default those that the model has free.
    """

    def __init__(self, names: Names | None = None) -> None:
        self._names = names

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        most = 2 if (default_opset(model) or 0) >= _WHERE else 1
        operands = {node: _operands(node) for node in all_nodes(model)}
        nodes = {node: terms for node, terms in operands.items() if 0 < len(terms) <= most}
        if any(node.outputs[0].dtype is None for node in nodes):
            InferTypesPass()(model)
        if nodes:
            names = self._names or Names(model)
            for node, terms in nodes.items():
                _compute(node, terms, names)
            InferTypesPass()(model)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _operands(node: ir.Node) -> list[ir.Node]:
    """Returns the Sigmoid, or both exponentials, of which a node is the logarithm; empty for another node."""
    maker = _maker(node.inputs[0]) if (node.domain, node.op_type) == ("", "Log") else None
    if maker is None:
        return []
    p = _complement(maker) or maker
    if p.op_type == "Sigmoid":
        return [p]
    terms = [_maker(term) for term in maker.inputs] if maker.op_type == "Add" else []
    return [term for term in terms if term is not None] if terms and all(map(_is_exponential, terms)) else []


def _maker(value: ir.Value | None) -> ir.Node | None:
    """Returns the node of ONNX's default domain that computes a value."""
    node = None if value is None else origin(value).producer()
    return node if node is not None and node.domain == "" else None


def _complement(node: ir.Node) -> ir.Node | None:
    """Returns the node that computes p, if a node computes 1 - p."""
    return _maker(node.inputs[1]) if node.op_type == "Sub" and _number(node.inputs[0]) == 1 else None


def _is_exponential(node: ir.Node | None) -> bool:
    return node is not None and (node.op_type == "Exp" or (node.op_type == "Pow" and _base(node) is not None))


def _base(power: ir.Node) -> float | None:
    """Returns the base of a power if it is one positive constant."""
    base = _number(power.inputs[0])
    return base if base is not None and 0 < base < math.inf else None


def _number(value: ir.Value | None) -> float | None:
    """Returns the number of a constant of one element."""
    tensor = None if value is None else constant_value(origin(value, SAME_ORDER))
    return float(tensor.numpy().item()) if tensor is not None and tensor.size == 1 else None


def _compute(node: ir.Node, operands: list[ir.Node], names: Names) -> None:
    dtype, value = dtype_of(node.outputs[0]), node.inputs[0]
    make = NodesBefore(node, names, node.name or str(node.outputs[0].name))
    if len(operands) == 1:
        (x,) = operands[0].inputs
        assert x is not None, "a Sigmoid has an input"  # noqa: S101
        maker = _maker(value)
        node.op_type = "Neg"
        is_complement = maker is not None and maker.op_type == "Sub"
        node.replace_input_with(0, softplus(make, x if is_complement else make.op("Neg", x), dtype))
    else:
        a, b = (_exponent(make, term, dtype) for term in operands)
        larger, difference = _ordered(make, a, b, dtype)
        node.op_type = "Add"
        node.resize_inputs(2)
        node.replace_input_with(0, larger)
        node.replace_input_with(1, softplus(make, difference, dtype))
    remove_unused([maker] if value is not None and (maker := value.producer()) is not None else [])


def _exponent(make: NodeMaker, term: ir.Node, dtype: ir.DataType) -> ir.Value:
    exponent = term.inputs[-1]
    assert exponent is not None, "an exponential has its inputs"  # noqa: S101
    if term.op_type == "Exp":
        return exponent
    return make.op("Mul", exponent, make.constant(math.log(_base(term) or 1), dtype))


def _ordered(make: NodeMaker, a: ir.Value, b: ir.Value, dtype: ir.DataType) -> tuple[ir.Value, ir.Value]:
    """Returns the larger value, and the smaller one less the larger one; of equal infinities the infinity."""
    above = make.op("Greater", a, b)
    larger, smaller = make.op("Where", above, a, b), make.op("Where", above, b, a)
    is_finite = make.op("Less", make.op("Abs", larger), make.constant(math.inf, dtype))
    finite = make.op("Where", is_finite, larger, make.constant(0, dtype))
    return larger, make.op("Sub", smaller, finite)
