"""Runs small parts of a graph in float64 NumPy, on values of any size along each axis.

Shapes come from the layouts, so that a part of a large network runs on a few channels. Constants that are one
number are exact: 1 / N and not its rounding to float32, whose error a mean of 1000 would magnify.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.node_reader import constant_of, read_attribute
from bngrad.opset import reference
from bngrad.opset.functions import DOMAIN
from bngrad.opset.reduction import ieee_warnings_off
from bngrad.opset.schemas import signature
from bngrad.passes.imports.decomposed.constants import meant_number
from bngrad.passes.imports.decomposed.ops.record import INTEGERS, op_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.ops.record import Array


class Evaluator:
    """Evaluates values.

    Args:
        forms: The forms, which define the leaves.
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

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The shape of a value in this evaluation."""
        layout = None if value is None else self._forms.layouts.of(value)
        assert layout is not None, "what a form explains has a layout"  # noqa: S101
        return tuple(prod(self._size_of(axis) for axis in dimension) for dimension in layout)

    def run(self, value: ir.Value) -> Array:
        """The elements of a value, which is computed even if its readers take it as a leaf."""
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
            missing = [operand for operand in _operands(node) if operand not in self._found]
            if missing:
                waiting += missing
            else:
                self._compute(node)
        return self._found[value]

    def _is_given(self, value: ir.Value) -> bool:
        node = value.producer()
        if node is None or node.domain == DOMAIN or node.op_type in ("Constant", "BatchNormalization"):
            return node is None or node.op_type == "Constant"
        if value.dtype in INTEGERS or node.graph is None or self._forms.sizes.knows(node):
            return False
        if value in self._forms.opened:
            return False
        explained = node in self._forms.layouts.explained
        return not explained or (self._forms.is_leaf(value) and value.dtype != ir.DataType.BOOL)

    def _given(self, value: ir.Value) -> Array:
        if value.dtype in INTEGERS:
            return constant_of(value)
        filled = self._forms.layouts.filled(value)
        if filled is not None:
            return np.asarray(meant_number(filled, value.dtype))
        return self._draw(value, self.shape(value))

    def _compute(self, node: ir.Node) -> None:
        if node.domain == DOMAIN or node.op_type == "BatchNormalization":
            results = _batch_norm(node, list(map(self._whole, _operands(node))))
        else:
            op, operands = op_of(node), [self._found[operand] for operand in _operands(node)]
            with ieee_warnings_off():
                results = (op.compute(self, node, *operands),)
        self._found.update(zip(node.outputs, results, strict=False))

    def _whole(self, value: ir.Value) -> Array:
        """A value, broadcast to its shape if it is one number."""
        array = self._found[value]
        return array if array.ndim or array.dtype.kind in "iu" else np.broadcast_to(array, self.shape(value))


def _operands(node: ir.Node) -> list[ir.Value]:
    """The inputs whose elements a node's outputs are computed from."""
    return [value for value in node.inputs[: op_of(node).operands] if value is not None]


def _batch_norm(node: ir.Node, inputs: Sequence[Array]) -> Sequence[Array]:
    if node.op_type == "BatchNormalization":
        x, *parameters = inputs
        over = [axis for axis in range(x.ndim) if axis != 1]
        scale, bias, mean, variance = (np.expand_dims(parameter, over) for parameter in parameters)
        return ((x - mean) / np.sqrt(variance + read_attribute(node, "epsilon", 1e-5)) * scale + bias,)
    attributes = {name: read_attribute(node, name, _DEFAULTS[name]) for name in signature(node.op_type)[2]}
    return _REFERENCES[node.op_type](*inputs, **attributes)


_DEFAULTS = {"epsilon": 1e-5, "momentum": 0.9, "unbiased_running_var": 0, "training_mode": 1}
_REFERENCES: Mapping[str, Callable[..., Sequence[Array]]] = {
    "BatchNormalizationStatistics": reference.batch_normalization_statistics,
    "BatchNormalizationTraining": reference.batch_normalization_training,
    "BatchNormalizationGrad": reference.batch_normalization_grad,
}
