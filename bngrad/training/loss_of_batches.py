"""The loss of several batches, from what each adds to it: that of all their samples at once, in inference mode.

A mean over the samples that count is weighted by what counts: labels that are not ignored, by their class weights,
or what a sum is divided by. So a batch without such samples, whose own loss is NaN, adds nothing. `loss_terms`
finds the means and sums that a loss is made of; a loss of another kind is weighted by the samples of each batch.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from bngrad.autodiff.loss_terms import Combination, Independent, LossTerms, Mean, Sum, terms_of
from bngrad.autodiff.share_loss import weight_of_mean
from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.passes.prepare.infer_types import InferTypesPass

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from bngrad.autodiff.loss_terms import Term

    Array = NDArray[Any]

_DOUBLE = ir.DataType.DOUBLE


class LossOfBatches:
    """Adds an output to an evaluation graph: what a batch adds to the loss of several.

    Args:
        model: The evaluation graph; it is changed.
        data: The names of the data inputs.
        loss: The name of the loss.

    Attributes:
        output: The name of the output, a vector of doubles: a numerator and a weight for each term of the loss.

    Raises:
        ModelError: There is no such output.
    """

    def __init__(self, model: ir.Model, data: Collection[str], loss: str) -> None:
        InferTypesPass()(model)
        graph = model.graph
        losses = [value for value in graph.outputs if value.name == loss]
        if not losses:
            raise ModelError(f"the evaluation graph has no output {loss!r}; make the step again with bngrad step")
        self._loss = losses[0]
        try:
            found = terms_of(
                LossTerms(graph, [str(v.name) for v in graph.inputs if v.name not in data]), self._loss
            )
        except ModelError:
            found = {self._loss: Sum()}
        self._terms = found | {value: Independent() for value in _factors(found)}
        leaves = [(value, term) for value, term in self._terms.items() if not isinstance(term, Combination)]
        made = {value: index for index, value in enumerate(value for node in graph for value in node.outputs)}
        self._combined = sorted(
            (v for v, t in self._terms.items() if isinstance(t, Combination)), key=made.__getitem__
        )
        self._place = {value: index for index, (value, _) in enumerate(leaves)}
        names = Names(model)
        make = NodesAtEnd(graph, names, "bngrad_loss_of_batches")
        scalars = [scalar for value, term in leaves for scalar in _parts(make, value, term)]
        vector = make.op("Concat", *(make.op("Reshape", one, make.int64([1])) for one in scalars), axis=0)
        self.output = names.fresh("bngrad_loss_parts")
        vector = make.name(vector, self.output)
        vector.type, vector.shape = ir.TensorType(_DOUBLE), ir.Shape([len(scalars)])
        graph.outputs.append(vector)

    @property
    def size(self) -> int:
        """The number of elements of the output."""
        return 2 * len(self._place)

    def total(self, parts: Array, rows: Array) -> float:
        """Returns the loss of all batches; NaN if nothing of them counts.

        Args:
            parts: The output for each batch, [batches, size].
            rows: The number of samples of each batch.
        """
        values = {value: self._leaf(value, parts, rows) for value in self._place}
        for value in self._combined:
            term = self._terms[value]
            assert isinstance(term, Combination), "they were chosen"  # noqa: S101
            values[value] = _combined(term.node, [values[one] for one in term.node.inputs if one in self._terms])
        return values[self._loss]

    def _leaf(self, value: ir.Value, parts: Array, rows: Array) -> float:
        """A term that is no combination of others."""
        term, place = self._terms[value], 2 * self._place[value]
        numerators, weights = parts[:, place], parts[:, place + 1]
        if isinstance(term, Sum):  # that of a batch, on average
            numerators, weights = numerators * rows, weights * rows
        total = math.fsum(weights)
        if total == 0:
            return 0.0 if isinstance(term, Mean) and term.guarded else math.nan
        return math.fsum(numerators) / total


def _factors(found: dict[ir.Value, Term]) -> list[ir.Value]:
    """The numbers that terms are multiplied with or divided by."""
    combined = [term for term in found.values() if isinstance(term, Combination)]
    return [
        value
        for term in combined
        for index, value in enumerate(term.node.inputs)
        if value is not None and index not in term.terms and term.node.op_type in ("Mul", "Div")
    ]


def _parts(make: NodesAtEnd, value: ir.Value, term: Term) -> tuple[ir.Value, ir.Value]:
    """The numerator and the weight of a term, double scalars."""
    one = make.constant(1, _DOUBLE)
    if not isinstance(term, Mean):
        return make.cast(value, _DOUBLE), one
    weight = weight_of_mean(make, term)
    if term.sum is not None:
        return make.cast(term.sum, _DOUBLE), weight
    zero = make.constant(0, _DOUBLE)
    weighted = make.op("Mul", make.cast(value, _DOUBLE), weight)
    return make.op("Where", make.op("Equal", weight, zero), zero, weighted), weight


def _combined(node: ir.Node, operands: list[float]) -> float:
    """What a node that is linear in its terms makes of them."""
    match node.op_type:
        case "Add" | "Sum":
            return math.fsum(operands)
        case "Sub":
            return operands[0] - operands[1]
        case "Neg":
            return -operands[0]
        case "Mul":
            return operands[0] * operands[1]
        case "Div":
            return operands[0] / operands[1] if operands[1] else math.nan
    return operands[0]  # a copy
