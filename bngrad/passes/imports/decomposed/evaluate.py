"""Runs small parts of a graph in float64 NumPy, on values of any size along each axis.

Shapes come from the layouts, so that a part of a large network runs on a few channels. Constants that are one
number are exact: 1 / N, not what float32 makes of it, which a mean of 1000 would magnify.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.graph.node_reader import constant_of, known_integers, read_attribute
from bngrad.opset import reference
from bngrad.opset.functions import DOMAIN
from bngrad.opset.reduction import ieee_warnings_off
from bngrad.passes.imports.decomposed.constants import meant_number
from bngrad.passes.imports.decomposed.layouts import equation_of, reduced_dimensions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.passes.imports.decomposed.forms import Forms

_INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)

Array = Any  # NDArray[np.float64] or of booleans or integers


class Evaluator:
    """Evaluates values.

    Args:
        forms: Says which values are leaves.
        size_of: The size of each axis.
        leaf: Draws a leaf of a shape.
    """

    def __init__(
        self,
        forms: Forms,
        size_of: Callable[[int], int],
        leaf: Callable[[ir.Value, tuple[int, ...]], NDArray[np.float64]],
    ) -> None:
        self._forms, self._size_of, self._draw = forms, size_of, leaf
        self._found: dict[ir.Value, Array] = {}

    def shape(self, value: ir.Value) -> tuple[int, ...]:
        """The shape of a value here."""
        layout = self._forms.layouts.of(value)
        assert layout is not None, "what a form explains has a layout"  # noqa: S101
        return tuple(int(np.prod([self._size_of(axis) for axis in one], dtype=np.int64)) for one in layout)

    def run(self, value: ir.Value) -> Array:
        """The elements of a value, which is computed even if it is a leaf to its readers."""
        waiting: list[ir.Value] = [value]
        while waiting:
            last = waiting[-1]
            node = last.producer()
            if last in self._found:
                waiting.pop()
                continue
            if node is None or (last is not value and self._is_given(last)):
                self._found[last] = self._given(last)
                continue
            needed = [] if node.op_type in ("Shape", "Size") else self._operands(node)
            missing = [one for one in needed if one not in self._found]
            if missing:
                waiting += missing
            else:
                self._compute(node)
        return self._found[value]

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        inputs = [one for one in node.inputs if one is not None]
        moves = node.op_type in ("Reshape", "Expand", "Squeeze", "Tile", "Unsqueeze", "ConstantOfShape")
        return inputs[: 0 if node.op_type == "ConstantOfShape" else 1] if moves else inputs

    def _is_given(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None or node.domain == DOMAIN or node.op_type in ("Constant", "BatchNormalization"):
            return node is None or node.op_type == "Constant"
        if value.dtype in _INTEGERS or node.graph is None or self._forms.sizes.knows(node):
            return False
        if value in self._forms.opened:
            return False
        explained = node in self._forms.layouts.explained
        return not explained or (self._forms.is_leaf(value) and value.dtype != ir.DataType.BOOL)

    def _given(self, value: ir.Value) -> Array:
        if value.dtype in _INTEGERS:
            return constant_of(value)
        filled = self._forms.layouts.filled(value)
        if filled is not None:
            return np.asarray(meant_number(filled, value.dtype))
        return self._draw(value, self.shape(value))

    def _compute(self, node: ir.Node) -> None:
        if node.domain == DOMAIN or node.op_type == "BatchNormalization":
            results = _batch_norm(node, [self._whole(one) for one in node.inputs if one is not None])
        else:
            with ieee_warnings_off():
                results = (_OPS[node.op_type](self, node),)
        self._found.update(zip(node.outputs, results, strict=False))

    def _whole(self, value: ir.Value) -> Array:
        """A value in its shape, even if it is one number."""
        found = self._found[value]
        return found if found.ndim or found.dtype.kind in "iu" else np.broadcast_to(found, self.shape(value))

    def __getitem__(self, value: ir.Value | None) -> Array:
        assert value is not None, "a node that a form explains has its inputs"  # noqa: S101
        return self._found[value]


def _batch_norm(node: ir.Node, inputs: Sequence[Array]) -> Sequence[Array]:
    epsilon = float(read_attribute(node, "epsilon", 1e-5))
    if node.op_type == "BatchNormalization":
        x, scale, bias, mean, variance = inputs
        over = [axis for axis in range(x.ndim) if axis != 1]
        scale, bias, mean, variance = (np.expand_dims(one, over) for one in (scale, bias, mean, variance))
        return ((x - mean) / np.sqrt(variance + epsilon) * scale + bias,)
    if node.op_type == "BatchNormalizationStatistics":
        x, axes = inputs
        return reference.batch_normalization_statistics(x, axes, epsilon)
    if node.op_type == "BatchNormalizationTraining":
        x, scale, bias, mean, variance, axes = inputs
        momentum = float(read_attribute(node, "momentum", 0.9))
        unbiased = bool(read_attribute(node, "unbiased_running_var", 0))
        return reference.batch_normalization_training(
            x, scale, bias, mean, variance, axes, epsilon, momentum, unbiased
        )
    dy, x, scale, mean, inv_std, axes = inputs
    training = bool(read_attribute(node, "training_mode", 1))
    return reference.batch_normalization_grad(dy, x, scale, mean, inv_std, axes, training)


def _fold(function: Callable[[Array, Array], Array]) -> Callable[[Evaluator, ir.Node], Array]:
    def compute(known: Evaluator, node: ir.Node) -> Array:
        result = known[node.inputs[0]]
        for value in node.inputs[1:]:
            result = function(result, known[value])
        return result

    return compute


def _one(function: Callable[[Array], Array]) -> Callable[[Evaluator, ir.Node], Array]:
    return lambda known, node: function(known[node.inputs[0]])


def _cast(known: Evaluator, node: ir.Node) -> Array:
    x = np.asarray(known[node.inputs[0]])
    return x if node.outputs[0].dtype in _INTEGERS else x.astype(np.float64)


def _moved(known: Evaluator, node: ir.Node) -> Array:
    """A change of shape, which the layout has; a constant that is one number has no shape."""
    x = known[node.inputs[0]]
    if x.ndim and x.size == 1 and node.op_type in ("Reshape", "Squeeze") and not known.shape(node.outputs[0]):
        return x.reshape(())
    if x.ndim == 0 or x.dtype.kind in "iu":
        return x
    if node.op_type in ("Expand", "Tile"):
        return np.broadcast_to(x, known.shape(node.outputs[0]))
    return x.reshape(known.shape(node.outputs[0]))


def _transposed(known: Evaluator, node: ir.Node) -> Array:
    x = known[node.inputs[0]]
    return x if x.ndim == 0 else x.transpose(read_attribute(node, "perm", list(range(x.ndim))[::-1]))


def _reduced(known: Evaluator, node: ir.Node) -> Array:
    x, shape = known[node.inputs[0]], known.shape(_required(node.inputs[0]))
    axes = tuple(reduced_dimensions(node, len(shape)) or ())
    x = np.broadcast_to(x, shape) if x.ndim == 0 else x
    keep = bool(read_attribute(node, "keepdims", 1))
    if node.op_type == "ReduceSumSquare":
        return np.sum(x * x, axes, keepdims=keep)
    return (np.mean if node.op_type == "ReduceMean" else np.sum)(x, axes, keepdims=keep)


def _pooled(known: Evaluator, node: ir.Node) -> Array:
    x = known[node.inputs[0]]
    return x.mean(tuple(range(2, x.ndim)), keepdims=True)


def _matmul(known: Evaluator, node: ir.Node) -> Array:
    a, b = known[node.inputs[0]], known[node.inputs[1]]
    if a.ndim == 0 or b.ndim == 0:
        data, other, place = (b, a, 0) if a.ndim == 0 else (a, b, 1)
        shape = list(known.shape(_required(node.inputs[place])))
        shape[-1 if place == 0 else max(-2, -len(shape))] = data.shape[max(-2, -data.ndim) if place == 0 else -1]
        filled = np.broadcast_to(other, shape)
        a, b = (filled, data) if place == 0 else (data, filled)
    return a @ b


def _einsum(known: Evaluator, node: ir.Node) -> Array:
    terms, output = equation_of(node) or ([], "")
    arrays = [known[value] for value in node.inputs]
    sizes: dict[str, int] = {}
    for term, value, array in zip(terms, node.inputs, arrays, strict=True):
        shape = known.shape(_required(value)) if array.ndim == 0 else array.shape
        for letter, size in zip(term, shape, strict=True):
            if array.ndim or letter not in sizes:
                sizes[letter] = size
    operands = [
        np.broadcast_to(array, [sizes[letter] for letter in term]) if array.ndim == 0 else array
        for term, array in zip(terms, arrays, strict=True)
    ]
    return np.einsum(f"{','.join(terms)}->{output}", *operands)


def _shape(known: Evaluator, node: ir.Node) -> Array:
    shape = known.shape(_required(node.inputs[0]))
    if node.op_type == "Size":
        return np.asarray(np.prod(shape, dtype=np.int64))
    return np.asarray(shape[read_attribute(node, "start", 0) : read_attribute(node, "end", len(shape))])


def _gathered(known: Evaluator, node: ir.Node) -> Array:
    return known[node.inputs[0]][known[node.inputs[1]]]


def _sliced(known: Evaluator, node: ir.Node) -> Array:
    bounds = [known_integers(node, index) for index in range(1, len(node.inputs)) if index != 3]
    return known[node.inputs[0]][slice(*(one[0] for one in bounds if one))]


def _constant_of_shape(known: Evaluator, node: ir.Node) -> Array:  # noqa: ARG001
    value = node.attributes.get("value")
    return np.asarray(0.0 if value is None else float(value.as_tensor().numpy().item()))


def _clipped(known: Evaluator, node: ir.Node) -> Array:
    return np.maximum(known[node.inputs[0]], known[node.inputs[1]])


def _concatenated(known: Evaluator, node: ir.Node) -> Array:
    return np.concatenate([np.atleast_1d(known[value]) for value in node.inputs])


def _divided(a: Array, b: Array) -> Array:
    return a // b if a.dtype.kind == b.dtype.kind == "i" else a / b


def _required(value: ir.Value | None) -> ir.Value:
    assert value is not None, "a node that a form explains has its inputs"  # noqa: S101
    return value


_OPS: Mapping[str, Callable[[Evaluator, ir.Node], Array]] = {
    **dict.fromkeys(("Identity",), _one(lambda x: x)),
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Add": _fold(np.add),
    "Sum": _fold(np.add),
    "Sub": _fold(np.subtract),
    "Mul": _fold(np.multiply),
    "Div": _fold(_divided),
    "Pow": _fold(np.power),
    "Max": _fold(np.maximum),
    "And": _fold(np.logical_and),
    "Or": _fold(np.logical_or),
    "Equal": _fold(np.equal),
    "Greater": _fold(np.greater),
    "GreaterOrEqual": _fold(np.greater_equal),
    "Less": _fold(np.less),
    "LessOrEqual": _fold(np.less_equal),
    "Neg": _one(np.negative),
    "Abs": _one(np.abs),
    "Sqrt": _one(np.sqrt),
    "Not": _one(np.logical_not),
    "Reciprocal": _one(lambda x: 1.0 / x),
    "Relu": _one(lambda x: np.maximum(x, 0.0)),
    "ReduceProd": _one(lambda x: np.asarray(np.prod(x))),
    "Clip": _clipped,
    "Where": lambda known, node: np.where(*(known[value] for value in node.inputs)),
    **dict.fromkeys(("Expand", "Flatten", "Reshape", "Squeeze", "Tile", "Unsqueeze"), _moved),
    "Transpose": _transposed,
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceSumSquare"), _reduced),
    "GlobalAveragePool": _pooled,
    "MatMul": _matmul,
    "Einsum": _einsum,
    "ConstantOfShape": _constant_of_shape,
    **dict.fromkeys(("Shape", "Size"), _shape),
    "Gather": _gathered,
    "Slice": _sliced,
    "Concat": _concatenated,
}
