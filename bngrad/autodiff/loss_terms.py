"""The terms of a loss: the rules by which the loss of a batch follows from the losses of its parts.

A loss is split by these rules, from its last node on:

====================================== ===========================================================================
does not depend on the data            the same for every part: its weight is 1
sum over the batch                     the sum of the parts: ReduceSum, SoftmaxCrossEntropyLoss and
                                       NegativeLogLikelihoodLoss with reduction sum
mean over the batch                    the mean of the parts, weighted by the count that each averages: ReduceMean,
                                       the two losses with reduction mean, a sum divided by a sum without gradient
sum, difference or negative of terms   the same of their parts
product, quotient                      the same of a term and a value that does not depend on the data
====================================== ===========================================================================

Anything else, such as the square root of a mean, is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bngrad.autodiff.loss_and_wrt import reaching_values
from bngrad.errors import ModelError
from bngrad.graph.constant_value import RANDOM_OPS, constant_value
from bngrad.graph.node_reader import constant_of, known_integers, read_attribute
from bngrad.graph.nodes import describe
from bngrad.graph.same_values import SAME_ORDER, origin
from bngrad.graph.shapes import has_one_element
from bngrad.graph.subgraphs import subgraphs
from bngrad.opset.known_shapes import known_shape

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import onnx_ir as ir

    from bngrad.opset.known_shapes import KnownShape

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


@dataclass(frozen=True)
class Independent:
    """A term that does not depend on the data: the same for every part of the batch."""


@dataclass(frozen=True)
class Mean:
    """A mean over the batch."""

    of: ir.Value | None = None
    """The values that are averaged, if they count alike."""
    loss: ir.Node | None = None
    """The loss with class weights or ignored labels."""
    total: ir.Value | None = None
    """The sum that a sum is divided by."""
    sum: ir.Value | None = None
    """The sum that is divided by it."""
    guarded: bool = False
    """True if the mean is 0, and not NaN, where the total is 0."""


@dataclass(frozen=True)
class Sum:
    """A sum over the batch."""


@dataclass(frozen=True)
class Combination:
    """A node that is linear in some inputs, which are terms."""

    node: ir.Node
    terms: tuple[int, ...]
    """The indices of these inputs."""


Term: TypeAlias = Independent | Mean | Sum | Combination


class LossTerms:
    """Finds the terms of a loss.

    Args:
        graph: The forward graph, with types.
        weights: The names of the values that the loss is differentiated with respect to.
    """

    def __init__(self, graph: ir.Graph, weights: Collection[str]) -> None:
        self._weights = set(weights)
        self._data = [v for v in graph.inputs if v.name not in self._weights and not v.is_initializer()]
        self._batch = {shape[0] for v in self._data if (shape := known_shape(v)) and isinstance(shape[0], str)}
        """The symbolic first dimensions of the data."""
        self._depends: dict[ir.Value, bool] = {}
        self._sums: dict[ir.Value, bool] = {}

    def term(self, value: ir.Value) -> Term:
        """Returns the term that a value of one element is.

        Raises:
            ModelError: The value of the whole batch does not follow from those of its parts.
        """
        node = value.producer()
        if not self.depends_on_data(value):
            return Independent()
        if self._is_sum(value):
            return Sum()
        if node is None or node.domain != "":
            raise self._refusal(value)
        quotient = _quotient(node)
        if quotient is not None and self._is_sum(quotient.inputs[0]) and self._is_plain_sum(quotient.inputs[1]):
            return Mean(total=quotient.inputs[1], sum=quotient.inputs[0], guarded=quotient is not node)
        if node.op_type == "ReduceMean" and self._reduces_the_batch(node):
            return Mean(of=node.inputs[0])
        if node.op_type in _LOSSES and value is node.outputs[0] and _reduction(node) == "mean":
            plain = len(node.inputs) < 3 and "ignore_index" not in node.attributes
            return Mean(of=node.inputs[1]) if plain else Mean(loss=node)
        terms = self._linear(node)
        if not terms:
            raise self._refusal(value)
        return Combination(node, terms)

    def depends_on_data(self, value: ir.Value) -> bool:
        """Returns whether a value depends on the data, other than on sizes that all batches have."""
        waiting = [value]
        while waiting:
            current = waiting[-1]
            depends = self._depends.get(current)
            unknown = [] if depends is not None else [v for v in _reads(current) if v not in self._depends]
            if depends is None and not unknown:
                self._depends[current] = self._makes_data(current) or any(
                    self._depends[v] for v in _reads(current)
                )
            waiting = waiting[:-1] if not unknown else waiting + unknown
        return self._depends[value]

    def _makes_data(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None:
            # A value of one element is not a sample: a temperature, a weight of a loss.
            return value in self._data and not has_one_element(value)
        # The values that a subgraph reads from outside are not examined.
        return node.op_type in RANDOM_OPS or any(subgraphs(node))

    def _is_sum(self, value: ir.Value | None) -> bool:
        """Returns whether a value of one element is a sum over the batch."""
        waiting = [] if value is None else [value]
        while waiting:
            current = waiting[-1]
            parts = [] if current in self._sums else self._summands(current)
            unknown = [part for part in parts if part not in self._sums] if isinstance(parts, list) else []
            if current not in self._sums and not unknown:
                self._sums[current] = parts if isinstance(parts, bool) else all(self._sums[part] for part in parts)
            waiting = waiting[:-1] if not unknown else waiting + unknown
        return value is not None and self._sums[value]

    def _summands(self, value: ir.Value) -> bool | list[ir.Value]:
        """Returns whether a value is a sum over the batch; or the values that must be sums for that."""
        node = value.producer()
        if node is None or node.domain != "" or not self.depends_on_data(value):
            return False
        if node.op_type == "ReduceSum":
            return self._reduces_the_batch(node)
        if _is_size(node) or self._is_batch_size(node):
            return True
        if node.op_type in _LOSSES:
            return value is node.outputs[0] and _reduction(node) == "sum"
        parts = [node.inputs[index] for index in self._linear(node)]
        return [part for part in parts if part is not None] if parts and None not in parts else False

    def _is_batch_size(self, node: ir.Node) -> bool:
        """Returns whether a node computes the number of samples: a dimension of a shape."""
        index, gathered = 0, node.op_type == "Gather"
        if gathered and node.inputs[0] is not None and node.inputs[1] is not None:
            constant, shape_node = constant_value(node.inputs[1]), node.inputs[0].producer()
            if constant is None or constant.size != 1 or shape_node is None:
                return False
            index, node = int(constant.numpy().item()), shape_node
        sizes = _sizes(node)
        if sizes is None or not -len(sizes) <= index < len(sizes) or not (gathered or len(sizes) == 1):
            return False
        return sizes[index] in self._batch

    def _is_plain_sum(self, value: ir.Value | None) -> bool:
        """Returns whether a value is a sum over the batch that no gradient flows to."""
        return (
            value is not None
            and self._is_sum(value)
            and not any(v.name in self._weights for v in reaching_values(value))
        )

    def _linear(self, node: ir.Node) -> tuple[int, ...]:
        """Returns the inputs that a node is linear in, if the others do not depend on the data; else empty."""
        inputs = [value for value in node.inputs if value is not None]
        if node.op_type in SAME_ORDER and has_one_element(node.outputs[0]):
            return (0,)
        if node.op_type in ("Add", "Sub", "Sum", "Neg"):
            return tuple(range(len(inputs)))
        if node.op_type in ("Mul", "Div"):
            dependent = tuple(i for i, value in enumerate(inputs) if self.depends_on_data(value))
            return dependent if dependent == (0,) or (dependent == (1,) and node.op_type == "Mul") else ()
        return ()

    def _reduces_the_batch(self, node: ir.Node) -> bool:
        shape = known_shape(node.inputs[0])
        fixed = shape is not None and all(isinstance(size, int) for size in shape)
        return has_one_element(node.outputs[0]) and not (fixed and self._batch)

    def _refusal(self, value: ir.Value) -> ModelError:
        node = value.producer()
        what = f"input {value.name!r}" if node is None else f"{describe(node)}, which computes {value.name!r},"
        return ModelError(
            f"the loss of a batch does not follow from the losses of its parts: {what} is neither a mean nor a "
            "sum over the batch; --sync requires a loss that is a mean or a sum over the batch, or a linear "
            "combination of these"
        )


def terms_of(terms: LossTerms, loss: ir.Value) -> dict[ir.Value, Term]:
    """Returns the terms of a loss, by the loss and the values that it is a combination of.

    Raises:
        ModelError: The loss of the whole batch does not follow from those of its parts.
    """
    result: dict[ir.Value, Term] = {}
    waiting = [loss]
    while waiting:
        value = waiting.pop()
        if value in result:
            continue
        result[value] = term = terms.term(value)
        if isinstance(term, Combination):
            operands = [term.node.inputs[index] for index in reversed(term.terms)]
            waiting += [operand for operand in operands if operand is not None]
    return result


def _quotient(node: ir.Node) -> ir.Node | None:
    """Returns the Div that a node is, or that it selects unless the divisor is 0: Where(b == 0, 0, a / b)."""
    if node.op_type == "Div":
        return node
    if node.op_type != "Where" or None in node.inputs:
        return None
    condition, zero, other = (value for value in node.inputs if value is not None)
    equal, div = condition.producer(), other.producer()
    if equal is None or div is None or (equal.op_type, div.op_type) != ("Equal", "Div"):
        return None
    divisor = div.inputs[1]
    compared = [value for value in equal.inputs if value is not divisor]
    return div if len(compared) == 1 and _is_zero(zero) and _is_zero(compared[0]) else None


def _is_size(node: ir.Node) -> bool:
    """Returns whether a node computes the number of elements of a value: Size, or the product of its shape."""
    if node.op_type == "Size":
        return True
    if node.op_type != "ReduceProd" or node.inputs[0] is None or not has_one_element(node.outputs[0]):
        return False
    maker = origin(node.inputs[0], ("Cast", "Identity")).producer()
    end = None
    if maker is not None and maker.op_type == "Slice" and len(maker.inputs) < 5 and maker.inputs[0] is not None:
        start, stop = (known_integers(maker, index) for index in (1, 2))
        if start != [0] or stop is None:
            return False
        end, maker = stop[0], origin(maker.inputs[0], ("Cast", "Identity")).producer()
    sizes = None if maker is None or not maker.inputs else _sizes(maker)
    whole = None if sizes is None or maker is None else known_shape(maker.inputs[0])
    return sizes is not None and whole is not None and len(sizes[:end]) == len(whole)


def _is_zero(value: ir.Value | None) -> bool:
    constant = constant_of(value)
    return constant is not None and constant.size == 1 and not constant.any()


def _reduction(node: ir.Node) -> str:
    return str(read_attribute(node, "reduction", "mean"))


def _reads(value: ir.Value) -> Iterator[ir.Value]:
    """Yields the values that a value depends on; none for a size that all batches have."""
    node = value.producer()
    if node is None or _is_fixed_size(node):
        return
    yield from (operand for operand in node.inputs if operand is not None)


def _is_fixed_size(node: ir.Node) -> bool:
    sizes = _sizes(node)
    return sizes is not None and all(isinstance(size, int) for size in sizes)


def _sizes(node: ir.Node) -> KnownShape | None:
    """Returns the known output of a Shape; None for another node, and for a shape of unknown rank."""
    shape = known_shape(node.inputs[0]) if (node.domain, node.op_type) == ("", "Shape") else None
    if shape is None:
        return None
    start, end = (node.attributes.get(name) for name in ("start", "end"))
    return shape[slice(None if start is None else start.as_int(), None if end is None else end.as_int())]
