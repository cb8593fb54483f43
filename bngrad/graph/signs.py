"""Sign and finiteness analysis of the values of a graph.

All answers are conservative: False also means unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.node_reader import constant_of
from bngrad.graph.same_values import moves

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_DEEPEST = 16
"""The most nodes between a value and the one that decides the answer."""

_MOVES = moves("order", "size", "repetition", "selection")
"""Ops whose output has the numbers of their first input."""

_MEANS = frozenset(("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean"))
_SUMS = _MEANS | {"ReduceMin", "ReduceSum"}
"""Ops that keep the sign that all their numbers have."""

_NONNEGATIVE = frozenset(
    (
        *("Abs", "Exp", "HardSigmoid", "ReduceL1", "ReduceL2", "ReduceSumSquare", "Relu", "Sigmoid"),
        *("Softmax", "Softplus", "Sqrt"),
    )
)


def is_positive(value: ir.Value | None, depth: int = 0) -> bool:
    """Returns whether all numbers of a value are above 0, whatever is fed."""
    numbers, node = _constant_numbers(value), _producer(value, depth)
    if numbers is not None:
        return bool((numbers > 0).all())
    if node is None:
        return False
    inputs, deeper = node.inputs, depth + 1
    if node.op_type in _MOVES | _SUMS | {"Sqrt"} or _is_widening(node):
        return is_positive(inputs[0], deeper)
    if node.op_type == "Pow":
        exponent = _number(inputs[1])
        return exponent is not None and 0 < exponent <= 1 and is_positive(inputs[0], deeper)
    if node.op_type == "Add":
        return any(
            is_positive(a, deeper) and is_nonnegative(b, deeper) for a, b in (inputs, reversed(tuple(inputs)))
        )
    return _has_floor(node, lambda floor: is_positive(floor, deeper))


def is_nonnegative(value: ir.Value | None, depth: int = 0) -> bool:
    """Returns whether no number of a value is below 0, whatever is fed."""
    numbers, node = _constant_numbers(value), _producer(value, depth)
    if numbers is not None:
        return bool((numbers >= 0).all())
    if node is None:
        return False
    inputs, deeper = node.inputs, depth + 1
    if node.op_type in _NONNEGATIVE or _is_square(node):
        return True
    if node.op_type in _MOVES | _SUMS | {"Cast", "Pow"}:
        return is_nonnegative(inputs[0], deeper)
    if node.op_type in ("Add", "Div", "Mul", "Sum"):
        return all(is_nonnegative(operand, deeper) for operand in inputs)
    return _has_floor(node, lambda floor: is_nonnegative(floor, deeper))


def is_nonzero(value: ir.Value | None) -> bool:
    """Returns whether no number of a value is 0, whatever is fed."""
    numbers = _constant_numbers(value)
    return bool((numbers != 0).all()) if numbers is not None else is_positive(value)


def may_overflow(value: ir.Value | None) -> bool:
    """Returns whether a value may be infinite or NaN at finite inputs of its node, as 1 / 0 and log 0 are."""
    node = _producer(value, 0)
    for _ in range(_DEEPEST):
        if node is None or node.op_type not in _MOVES:
            break
        node = _producer(node.inputs[0], 0)
    return node is not None and (node.op_type in ("Cosh", "Exp", "Sinh") or is_singular(node))


def is_singular(node: ir.Node) -> bool:
    """Returns whether the derivative of a node may be infinite or NaN at finite inputs, such as Sqrt at 0."""
    if node.domain:
        return False
    if node.op_type in ("Log", "ReduceLogSum", "Reciprocal", "Sqrt"):
        return not is_positive(node.inputs[0])
    if node.op_type in ("Div", "Mod"):
        return not is_nonzero(node.inputs[1])
    if node.op_type == "Pow":
        exponent = _number(node.inputs[1])
        smooth = exponent is not None and (exponent >= 1 or exponent == 0)
        return not smooth and not is_positive(node.inputs[0])
    return node.op_type in ("Acos", "Acosh", "Asin", "Atanh")


def _has_floor(node: ir.Node, fits: Callable[[ir.Value | None], bool]) -> bool:
    """Returns whether a node is a Max or Clip with a lower limit that fits."""
    if node.op_type == "Max":
        return any(map(fits, node.inputs))
    # Where the limits of Clip cross, the result is the upper one.
    return (
        node.op_type == "Clip"
        and all(index >= len(node.inputs) or fits(node.inputs[index]) for index in (1, 2))
        and len(node.inputs) > 1
    )


def _is_square(node: ir.Node) -> bool:
    """Returns whether a node computes an even power of its input."""
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    exponent = _number(node.inputs[1]) if node.op_type == "Pow" else None
    return exponent is not None and exponent % 2 == 0


def _is_widening(node: ir.Node) -> bool:
    """Returns whether a node is a Cast to a type whose smallest positive value is not flushed to 0."""
    to = node.attributes.get("to")
    return node.op_type == "Cast" and to is not None and to.value in (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def _producer(value: ir.Value | None, depth: int) -> ir.Node | None:
    node = None if value is None or depth > _DEEPEST else value.producer()
    return node if node is not None and node.domain == "" else None


def _constant_numbers(value: ir.Value | None) -> NDArray[np.float64] | None:
    """Returns the numbers of a constant; None where it is computed, is not finite, or has another type."""
    array = constant_of(value)
    if array is None or array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        return None
    return np.asarray(array, np.float64)


def _number(value: ir.Value | None) -> float | None:
    numbers = _constant_numbers(value)
    return float(numbers.item()) if numbers is not None and numbers.size == 1 else None
