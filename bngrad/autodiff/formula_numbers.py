"""Numbers of known formulas, which are not weights although they are float initializers.

::

    sqrt(variance + epsilon), mean = sum / N, max(variance, 0)      of a normalization that computes its statistics
    log(x + epsilon), x / (y + epsilon), x / max(y, epsilon)        below a logarithm, a root or a fraction
    softmax(q k^T / sqrt(d) + mask)                                 of an attention: a root of a whole number
    x (1 + erf(x / sqrt(2))) 0.5                                    of GELU, with erf or tanh

Each has one element. A scale or an epsilon that no formula identifies stays a weight.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bngrad.graph.constant_value import constant_tensor
from bngrad.graph.same_values import SAME_VALUES, readers, source_of
from bngrad.graph.subgraphs import nodes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import onnx_ir as ir

NUMBERS = "bngrad.numbers"
"""The key in the ``meta`` of values that are no weights, whose reader is replaced by others."""

LARGEST_EPSILON = 0.1
"""The largest epsilon below a root."""
_LARGEST_OF_FRACTION = 1e-3
_LARGEST_HEAD = 4096
"""The most elements of a query."""
_MOST_MASKS = 6
"""The most ops between the scores of an attention and their softmax."""

_SUMS = ("ReduceSum", "ReduceSumSquare")
_ROOTS = (("Sqrt", 0), ("Pow", 0))
_FRACTIONS = (("Log", 0), ("Reciprocal", 0), ("Div", 1))
_MASKS = ("Add", "Sub", "Mul", "Div", "Where", "Clip")
_SIGMOIDS = ("Erf", "Tanh")
_BEFORE_SIGMOID = (math.sqrt(0.5), math.sqrt(2), math.sqrt(2 / math.pi), 0.044715)


def formula_numbers(graph: ir.Graph) -> Iterator[tuple[ir.Node, int]]:
    """Yields the uses of such numbers, as nodes and indices of inputs."""
    for node in nodes_of(graph):
        is_number_of = _FORMULAS.get(node.op_type)
        if is_number_of is None or node.domain or len(node.inputs) < 2 or len(node.outputs) != 1:
            continue
        for index, value in enumerate(node.inputs):
            number = _number(source_of(value))
            if number is not None and is_number_of(node, index, number):
                yield node, index


def _number(value: ir.Value | None) -> float | None:
    """Returns the element of a float constant that has one; others are not read, as they may be large."""
    if value is None or value.is_graph_input():
        return None
    tensor = constant_tensor(value)
    if tensor is None or tensor.size != 1:
        return None
    array = tensor.numpy()
    return float(array.flat[0]) if array.dtype.kind == "f" else None


def _in_sum(node: ir.Node, index: int, number: float) -> bool:
    """Returns whether a summand is an epsilon, or the 1 of GELU."""
    read_by = [(user.op_type, slot) for user, slot in readers(node.outputs[0], SAME_VALUES)]
    if 0 <= number <= LARGEST_EPSILON and any(use in _ROOTS for use in read_by):
        return True
    if 0 < number <= _LARGEST_OF_FRACTION and any(use in _FRACTIONS for use in read_by):
        return True
    return node.op_type == "Add" and number == 1 and _made_by(node.inputs[1 - index]) in _SIGMOIDS


def _in_maximum(node: ir.Node, index: int, number: float) -> bool:
    return number == 0 or _in_sum(node, index, number)


def _in_quotient(node: ir.Node, index: int, number: float) -> bool:
    """Returns whether a divisor is the N of a mean, or the inverse of a factor that `_in_product` accepts."""
    if index == 0 or number <= 0:
        return False
    is_count = number >= 1 and number.is_integer() and _made_by(node.inputs[0]) in _SUMS
    return is_count or _is_scale_of_scores(node, 1 / number) or _is_of_gelu(node, number)


def _in_product(node: ir.Node, index: int, number: float) -> bool:
    """Returns whether a factor is the 1 / N of a mean, a scale of scores, or a factor of GELU."""
    is_share = number <= 0.5 and _is_share(number) and _made_by(node.inputs[1 - index]) in _SUMS
    return is_share or _is_scale_of_scores(node, number) or _is_of_gelu(node, number)


_FORMULAS: Mapping[str, Callable[[ir.Node, int, float], bool]] = {
    "Add": _in_sum,
    "Max": _in_maximum,
    "Div": _in_quotient,
    "Mul": _in_product,
}


def _is_share(number: float) -> bool:
    """Returns whether a number is 1 / N, as float32 rounds it."""
    size = 1 / number if number > 0 else math.inf  # infinite, too, for a number of few digits
    return math.isfinite(size) and abs(size - round(size)) <= 1e-6 * size


def _is_scale_of_scores(node: ir.Node, number: float) -> bool:
    """Returns whether a softmax reads queries, keys or their products scaled by 1 / sqrt(d) or its root."""
    is_root = any(_is_share(power) and 2 <= 1 / power <= _LARGEST_HEAD for power in (number**2, number**4))
    if not is_root:
        return False
    waiting, seen = [(node, _made_by(node.inputs[0]) == "MatMul", _MOST_MASKS)], {node}
    while waiting:
        current, is_score, left = waiting.pop()
        for user, _ in readers(current.outputs[0], SAME_VALUES):
            if is_score and user.op_type == "Softmax":
                return True
            if user not in seen and left and user.op_type in (_MASKS if is_score else ("MatMul",)):
                seen.add(user)
                waiting.append((user, True, left - 1))
    return False


def _is_of_gelu(node: ir.Node, number: float) -> bool:
    """Returns whether a factor belongs to a GELU: before its erf or tanh, or the 0.5 of its product."""
    if any(math.isclose(number, constant, rel_tol=1e-3) for constant in _BEFORE_SIGMOID):
        return _leads_to_sigmoid(node, 3)
    others = [user for user, _ in readers(node.outputs[0], SAME_VALUES)]
    others += [maker for value in node.inputs if (maker := _maker(value)) is not None]
    return number == 0.5 and any(
        candidate.op_type == "Mul" and _has_gate(candidate) for candidate in (node, *others)
    )


def _leads_to_sigmoid(node: ir.Node, left: int) -> bool:
    users = [user for user, _ in readers(node.outputs[0], SAME_VALUES)]
    return any(
        user.op_type in _SIGMOIDS
        or (left > 0 and user.op_type in ("Add", "Mul") and _leads_to_sigmoid(user, left - 1))
        for user in users
    )


def _has_gate(node: ir.Node) -> bool:
    """Returns whether an input is 1 + erf or 1 + tanh."""
    makers = [maker for value in node.inputs if (maker := _maker(value)) is not None]
    return any(
        maker.op_type == "Add" and any(_made_by(value) in _SIGMOIDS for value in maker.inputs) for maker in makers
    )


def _made_by(value: ir.Value | None) -> str | None:
    maker = _maker(value)
    return None if maker is None else maker.op_type


def _maker(value: ir.Value | None) -> ir.Node | None:
    """Returns the node that computes a value, in any type or shape."""
    source = source_of(value)
    return None if source is None else source.producer()
