"""The loss of several batches, from the part of each: as for all their samples at once, in inference mode.

A loss is split into means and sums over the batch, which `loss_terms` finds, and functions of these: a ratio of
sums, also with a guard against 0, a root of a mean, a weighted sum of terms. Means are weighted by the labels
that count, those not ignored, with their class weights. So a batch without such samples, whose own loss is NaN,
adds nothing. Sums are summed, and the functions are computed once. A loss of another kind is averaged by samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.loss_terms import Independent, LossTerms, Mean, Sum
from bngrad.autodiff.share_loss import weight_of_mean
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import SIXTEEN_BITS
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAtEnd
from bngrad.graph.nodes import describe
from bngrad.graph.same_values import SAME_ORDER
from bngrad.graph.shapes import has_one_element
from bngrad.opset.known_shapes import known_shape
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.training.to_inference import random_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.autodiff.loss_terms import Term

    Array = NDArray[Any]

_DOUBLE = ir.DataType.DOUBLE
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-4, 1e-2
"""For a loss against its parts: above the rounding, and below the contribution of pairs of samples."""


def _clip(value: float, low: float | None = None, high: float | None = None) -> float:
    return float(
        np.minimum(np.maximum(value, -math.inf if low is None else low), math.inf if high is None else high)
    )


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(SAME_ORDER, lambda value: value),
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Neg": np.negative,
    "Sum": lambda *values: math.fsum(values),
    "Mean": lambda *values: math.fsum(values) / len(values),
    "Max": lambda *values: np.max(values),
    "Min": lambda *values: np.min(values),
    "Clip": _clip,
    "Abs": np.abs,
    "Exp": np.exp,
    "Log": np.log,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Sqrt": np.sqrt,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "And": np.logical_and,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Where": lambda condition, yes, no: yes if condition else no,
}
"""Functions of numbers, by their ops."""


class LossOfBatches:
    """Adds an output to an evaluation graph: the part of a batch in the loss of several.

    Args:
        model: The evaluation graph; it is changed.
        data: The names of the data inputs.
        loss: The name of the loss.

    Attributes:
        output: The name of the output, a vector of doubles: the loss and 1, then a numerator and a weight for each
            term of the loss.
        obstacle: The reason why the loss is not a function of means and sums over the batch; None if it is, by its
            last nodes.
        averaged: Whether `total` is the average of the batches, weighted by samples; None until it is decided.

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
        shapes = [known_shape(value) for value in graph.inputs if value.name in data]
        self._fixed = all(shape is not None and isinstance(shape[0], int) for shape in shapes if shape != ())
        self._random = bool(random_nodes(model))
        dtypes = {value.dtype for node in graph for value in node.outputs}
        self._tolerance = _TOLERANCE if dtypes.isdisjoint(SIXTEEN_BITS) else _TOLERANCE_OF_16_BITS
        self.obstacle: str | None = None
        self.averaged: bool | None = None
        self._terms: dict[ir.Value, Term] = {}
        self._functions: list[ir.Node] = []
        try:
            terms = LossTerms(graph, [str(v.name) for v in graph.inputs if v.name not in data])
            self._terms, self._functions = _split(graph, terms, self._loss)
        except ModelError as error:
            self.obstacle = str(error)
        names = Names(model)
        make = NodesAtEnd(graph, names, "bngrad_loss_of_batches")
        pairs = [(self._loss, Sum()), *self._terms.items()]
        scalars = [scalar for value, term in pairs for scalar in _parts(make, value, term)]
        vector = make.op("Concat", *(make.op("Reshape", scalar, make.int64([1])) for scalar in scalars), axis=0)
        self.output = names.fresh("bngrad_loss_parts")
        vector = make.name(vector, self.output)
        vector.type, vector.shape = ir.TensorType(_DOUBLE), ir.Shape([len(scalars)])
        graph.outputs.append(vector)
        self.size = len(scalars)
        """The number of elements of the output."""

    def total(self, parts: Array, rows: Array) -> float:
        """Returns the loss of all batches; NaN if nothing of them counts.

        Args:
            parts: The output for each batch, [batches, size].
            rows: The number of samples of each batch.
        """
        if self.averaged:
            return _average(parts[:, 0], rows)
        return self._at_once(parts, rows)

    def decide(self, tries: Sequence[Array], rows: Array) -> str | None:
        """Decides whether `total` is an average, by the loss of some samples and of two parts of them.

        Args:
            tries: The output for the samples and for each part, [3, size], of some samples and of others.
            rows: The number of samples of each.

        Returns:
            The reason why it is an average that differs from the loss of all samples at once; None if it does not.
        """
        finite = [parts for parts in tries if math.isfinite(parts[0, 0])]
        self.averaged = self.obstacle is not None
        if self._random or not finite:
            return self.obstacle
        # A mean over pairs of samples, or a sum of means, looks like a mean over samples.
        totals = [self.total(parts[1:], rows[1:]) for parts in finite]
        wrong = [i for i, parts in enumerate(finite) if not self._near(parts, totals[i])]
        self.averaged = self.averaged or bool(wrong)
        if all(self._near(parts, self.total(parts[1:], rows[1:])) for parts in finite):
            return None
        return self.obstacle or (
            f"that of {rows[0]} samples is {finite[wrong[0]][0, 0]:.6g}, and its terms for {rows[1]} and {rows[2]}"
            f" of them make {totals[wrong[0]]:.6g}"
        )

    def _near(self, parts: Array, total: float) -> bool:
        """Tests whether a total is the loss of the first part, all samples."""
        return bool(abs(total - parts[0, 0]) <= self._tolerance * np.nanmax(np.abs(parts[:, 0])))

    def _at_once(self, parts: Array, rows: Array) -> float:
        values: dict[ir.Value | None, Any] = {None: None}
        for place, (value, term) in enumerate(self._terms.items(), start=1):
            values[value] = self._term(term, parts[:, 2 * place], parts[:, 2 * place + 1], rows)
        with np.errstate(all="ignore"):
            for node in self._functions:
                values[node.outputs[0]] = _FUNCTIONS[node.op_type](*(values[value] for value in _read(node)))
        return float(values[self._loss])

    def _term(self, term: Term, numerators: Array, weights: Array, rows: Array) -> Any:  # noqa: ANN401 - of NumPy
        if isinstance(term, Independent):
            return numerators[0]
        if isinstance(term, Sum):  # over a batch of fixed size, by which it may be divided: that of a batch
            return np.float64(_average(numerators, rows) if self._fixed else math.fsum(numerators))
        total = math.fsum(weights)
        return np.float64(math.fsum(numerators) / total if total else math.nan)


def _average(numbers: Array, rows: Array) -> float:
    return math.fsum(numbers * rows) / math.fsum(rows)


def _split(graph: ir.Graph, terms: LossTerms, loss: ir.Value) -> tuple[dict[ir.Value, Term], list[ir.Node]]:
    """Returns the terms of a loss that are not functions of others, and the functions in the order of the graph.

    Raises:
        ModelError: The loss has another part.
    """
    whole_terms: dict[ir.Value, Term] = {}
    functions: set[ir.Node] = set()
    waiting = [loss]
    while waiting:
        value = waiting.pop()
        node = value.producer()
        if value in whole_terms or node in functions:
            continue
        try:
            term = terms.term(value)
        except ModelError:
            term = None
        if term is not None and has_one_element(value) and _is_whole(term):
            whole_terms[value] = term
            continue
        if node is None or not _is_function(node):
            what = f"input {value.name!r}" if node is None else describe(node)
            raise ModelError(f"{what} is neither a mean nor a sum over the batch, nor a function of these")
        functions.add(node)
        waiting += [operand for operand in _read(node) if operand is not None]
    return whole_terms, [node for node in graph if node in functions]


def _is_whole(term: Term) -> bool:
    """Tests whether a term is not a function of others; a ratio of two sums is one."""
    return isinstance(term, Independent | Sum) or (isinstance(term, Mean) and term.total is None)


def _read(node: ir.Node) -> Sequence[ir.Value | None]:
    """Returns the inputs that are numbers, and not the shape or the axes of a copy."""
    return node.inputs[:1] if node.op_type in SAME_ORDER else node.inputs


def _is_function(node: ir.Node) -> bool:
    """Tests whether a node computes a number from numbers, as `_FUNCTIONS` do."""
    if node.domain != "" or node.op_type not in _FUNCTIONS or node.attributes.keys() & {"min", "max"}:
        return False
    operands = [value for value in _read(node) if value is not None]
    if not all(has_one_element(value) for value in (*operands, node.outputs[0])):
        return False
    dtype = node.outputs[0].dtype
    rounds = node.op_type in ("Cast", "CastLike", "Div", "Pow", "Reciprocal") and not (
        dtype and dtype.is_floating_point()
    )
    return not rounds


def _parts(make: NodesAtEnd, value: ir.Value, term: Term) -> tuple[ir.Value, ir.Value]:
    """Builds the numerator and the weight of a term, double scalars."""
    unit = make.constant(1, _DOUBLE)
    if not isinstance(term, Mean):
        return make.cast(value, _DOUBLE), unit
    weight, zero = weight_of_mean(make, term), make.constant(0, _DOUBLE)
    weighted = make.op("Mul", make.cast(value, _DOUBLE), weight)
    return make.op("Where", make.op("Equal", weight, zero), zero, weighted), weight
