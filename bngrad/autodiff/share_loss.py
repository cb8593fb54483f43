"""This rank's share of the loss of the whole batch, whose parts are on several ranks.

The shares of all ranks add up to the loss of the whole batch, and so do their gradients. Each mean in the loss is
multiplied by W / sum W, where W is the count that it averages on this rank, and the sum is over the ranks. So
ranks may have different numbers of samples, and none at all. `loss_terms` defines the terms of a loss.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.loss_terms import Combination, Independent, LossTerms, Mean, Sum, terms_of
from bngrad.autodiff.stop_gradient import DOMAIN, NAME
from bngrad.graph.class_labels import weight_of_each
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.node_reader import dtype_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from bngrad.autodiff.loss_terms import Term

KEY = "weights"
"""The key of the exchange of the weights."""

_DOUBLE = ir.DataType.DOUBLE


def share_loss(
    model: ir.Model,
    loss: ir.Value,
    weights: Collection[str],
    gather: Callable[[NodesAtEnd, ir.Value], ir.Value] | None = None,
) -> ir.Value:
    """Adds this rank's share of a loss to a forward model, under the name of the loss.

    Args:
        model: The forward model, with types; it is changed.
        loss: The loss, a value of one element, which gets another name.
        weights: The names of the values that the loss is differentiated with respect to.
        gather: A function that makes the nodes that gather a vector over the ranks; by default AllGather.

    Returns:
        The share. It takes the place of the loss among the outputs.

    Raises:
        ModelError: The loss is not a mean or a sum over the batch, or a linear combination of these.
    """
    graph = model.graph
    name = str(loss.name)
    names = Names(model)
    make = NodesAtEnd(graph, names, "bngrad_share")
    share = _Share(make, LossTerms(graph, weights), gather or _all_gather).of(loss)
    loss.name = names.fresh(f"{name}_of_rank")
    result = make.op("Identity", share) if share is loss else share
    result.name, result.type, result.shape = name, loss.type, loss.shape
    for index, value in enumerate(graph.outputs):
        if value is loss:
            graph.outputs[index] = result
    return result


def _all_gather(make: NodesAtEnd, vector: ir.Value) -> ir.Value:
    return make.bngrad("AllGather", vector, key=KEY)[0]


def weight_of_mean(make: NodesAtEnd, term: Mean) -> ir.Value:
    """Makes the weight of a mean, the count that it averages in this graph: a double scalar."""
    if term.of is not None:
        return make.cast(make.op("Size", term.of), _DOUBLE)
    if term.loss is not None:
        return _weight_of_labels(make, term.loss)
    assert term.total is not None, "one of the three is there"  # noqa: S101
    return make.op("Reshape", make.cast(term.total, _DOUBLE), make.int64([]), allowzero=1)


def _weight_of_labels(make: NodesAtEnd, node: ir.Node) -> ir.Value:
    """Returns the sum of the class weights of the labels that a loss counts."""
    labels, class_weight = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    assert labels is not None, "an input that the loss always has"  # noqa: S101
    ignored = node.attributes.get("ignore_index")
    index = None if ignored is None else ignored.as_int()
    weight = weight_of_each(make, labels, class_weight, index, _DOUBLE)
    if weight is None:
        return make.cast(make.op("Size", labels), _DOUBLE)
    return make.op("ReduceSum", weight, keepdims=0)


class _Share:
    def __init__(
        self, make: NodesAtEnd, terms: LossTerms, gather: Callable[[NodesAtEnd, ir.Value], ir.Value]
    ) -> None:
        self._make, self._terms, self._gather = make, terms, gather
        self._weights: list[ir.Value] = []
        self._index: dict[Term, int] = {}

    def of(self, loss: ir.Value) -> ir.Value:
        """Makes the share of a loss."""
        terms = terms_of(self._terms, loss)
        for term in terms.values():
            if isinstance(term, Independent | Mean) and term not in self._index:
                self._index[term] = len(self._weights)
                self._weights.append(self._weight(term))
        ratios = self._ratios() if self._weights else None
        return self._made(loss, terms, ratios, {})

    def _weight(self, term: Independent | Mean) -> ir.Value:
        """Returns the weight of a term on this rank, a double scalar."""
        make = self._make
        if isinstance(term, Independent):
            return make.constant(1, _DOUBLE)
        return weight_of_mean(make, term)

    def _ratios(self) -> ir.Value:
        """Returns W / sum W for all weights, or 1 / sum W where a sum is divided by W, without a gradient."""
        make = self._make
        axis, unit = make.int64([0]), make.constant(1, _DOUBLE)
        vector = self._vector(self._weights)
        total = make.op("ReduceSum", self._gather(make, vector), axis, keepdims=0)
        terms = list(self._index)
        divided = [_sum_of(term) is not None for term in terms]
        if any(divided):
            vector = self._vector([unit if d else w for d, w in zip(divided, self._weights, strict=True)])
        ratios = make.op("Div", vector, total)
        if any(isinstance(term, Mean) and term.guarded for term in terms):
            # A guarded mean of nothing is 0; other means of nothing are not.
            guarded = [float(isinstance(term, Mean) and term.guarded) for term in terms]
            zero = make.constant(0, _DOUBLE)
            guards = self._vector([make.constant(number, _DOUBLE) for number in guarded])
            none = make.op("And", make.op("Equal", total, zero), make.op("Greater", guards, zero))
            ratios = make.op("Where", none, zero, ratios)
        # A mean may be over values that depend on the weights; the count that it averages has no gradient.
        return make.outputs_of(NAME, ratios, outputs=["ratios"], domain=DOMAIN)[0]

    def _vector(self, scalars: list[ir.Value]) -> ir.Value:
        make = self._make
        axis = make.int64([0])
        vector = make.op("Concat", *(make.op("Unsqueeze", scalar, axis) for scalar in scalars), axis=0)
        vector.type, vector.shape = ir.TensorType(_DOUBLE), ir.Shape([len(scalars)])
        return vector

    def _made(
        self,
        value: ir.Value,
        terms: dict[ir.Value, Term],
        ratios: ir.Value | None,
        shares: dict[ir.Value, ir.Value],
    ) -> ir.Value:
        """Returns the share of a value, which is made once."""
        if value not in shares:
            shares[value] = self._share(value, terms, ratios, shares)
        return shares[value]

    def _share(
        self,
        value: ir.Value,
        terms: dict[ir.Value, Term],
        ratios: ir.Value | None,
        shares: dict[ir.Value, ir.Value],
    ) -> ir.Value:
        make, term = self._make, terms[value]
        if isinstance(term, Sum):
            return value
        if isinstance(term, Combination):
            node = term.node
            operands = list(node.inputs)
            for index in term.terms:
                operand = operands[index]
                assert operand is not None, "a node is linear in it"  # noqa: S101
                operands[index] = self._made(operand, terms, ratios, shares)
            result = make.op(node.op_type, *operands, **dict(node.attributes))
        else:
            assert ratios is not None, "the term has a weight"  # noqa: S101
            index = self._index[term]
            ratio = make.cast(make.op("Gather", ratios, make.int64(index)), dtype_of(value))
            counted = self._counted(value, term)
            result = make.op("Mul", counted, ratio)
            result.type, result.shape = value.type, counted.shape
            if len(value.shape or ()) != len(counted.shape or ()):
                result = make.op("Reshape", result, make.int64([1] * len(value.shape or ())), allowzero=1)
        result.type, result.shape = value.type, value.shape
        return result

    def _counted(self, value: ir.Value, term: Term) -> ir.Value:
        """Returns the value that is multiplied by the ratio of a term."""
        total = _sum_of(term)
        if isinstance(term, Independent):
            return value
        return self._without_nan(value, self._weights[self._index[term]]) if total is None else total

    def _without_nan(self, value: ir.Value, weight: ir.Value) -> ir.Value:
        """Returns a mean; 0 instead of the mean of nothing, which is NaN."""
        make, dtype = self._make, dtype_of(value)
        none = make.op("Equal", weight, make.constant(0, _DOUBLE))
        result = make.op("Where", none, make.constant(0, dtype), value)
        result.type, result.shape = value.type, value.shape
        return result


def _sum_of(term: Term) -> ir.Value | None:
    """Returns the sum that a mean divides; it may be nonzero where the total of a rank is 0."""
    return term.sum if isinstance(term, Mean) else None
