"""The weights of a forward model: the values to differentiate with respect to by default.

A float initializer is a weight unless all its readers use it as a hyperparameter of an op (an exponent, a limit)
or as a running statistic of a batch norm, including one in inference mode that is decomposed into arithmetic::

    y = (x - mean) * (scale / sqrt(variance + epsilon)) + bias
    y = x * factor + (bias - mean * factor)                         factor = scale / sqrt(variance + epsilon)

Numbers of known formulas (`bngrad.autodiff.formula_numbers`), and scales and biases of quantized layers
(`bngrad.autodiff.quantization`), are not weights either.
In a file that records which initializers are parameters, as PyTorch's modern exporter does, these are the weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.formula_numbers import LARGEST_EPSILON, NUMBERS, formula_numbers
from bngrad.autodiff.quantization import scales
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.constant_value import has_equal_elements
from bngrad.graph.node_reader import constant_of
from bngrad.graph.same_values import SAME_VALUES, readers, source_of
from bngrad.graph.subgraphs import nodes_of
from bngrad.graph.torch_records import PARAMETER, folded_from, recorded_kinds
from bngrad.passes.imports.tensorflow.node import FORWARDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir

    Uses = set[tuple[ir.Node, int]]

WEIGHT_SLOTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "Gemm", "BatchNormalization", "BatchNormInternal"), frozenset({1, 2})
    ),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), frozenset({1, 2})),
    **dict.fromkeys(("MatMul", "PRelu", "RMSNormalization"), frozenset({1})),
}
"""The inputs of ops that are weights: a graph input without a value is a weight if it is used there."""

_NUMBER_SLOTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        ("BatchNormalization", "BatchNormInternal", "BatchNormalizationTraining", *FORWARDS), frozenset({3, 4})
    ),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss", "OneHot", "Pad"), frozenset({2})),
    **dict.fromkeys(("Clip", "Resize", "RotaryEmbedding"), frozenset({1, 2})),
    **dict.fromkeys(("Dropout", "Pow", "Upsample"), frozenset({1})),
    "Range": frozenset({0, 1, 2}),
    "GroupQueryAttention": frozenset({7, 8}),
}
"""The inputs of ops that are hyperparameters or statistics, even if they have a gradient."""


def default_weights(graph: ir.Graph) -> list[ir.Value]:
    """Returns the inputs and initializers of a graph that are weights, in their order.

    They are the float initializers that are used as weights, and the graph inputs of static shape that are used
    where an op takes a weight. In a file with a record, they are the parameters of the module.
    """
    numbers = {*_spelled_out_statistics(graph), *formula_numbers(graph), *scales(graph)}
    sources = {str(v.name): v for v in (*graph.inputs, *graph.initializers.values())}
    kinds = recorded_kinds(graph)
    if any(kinds.get(name) == PARAMETER for name in sources):
        parameters = {name for name, kind in kinds.items() if kind == PARAMETER}
        lost = parameters - set(sources)
        return [
            v
            for name, v in sources.items()
            if v.dtype in SUPPORTED_DTYPES
            and (name in parameters or (name not in kinds and v.is_initializer() and _replaces_parameter(v, lost)))
            and (v.is_initializer() or _looks_like_a_weight(v))
        ]
    return [
        v
        for v in sources.values()
        if v.dtype in SUPPORTED_DTYPES
        and (_looks_like_a_weight(v) or (v.is_initializer() and _is_parameter(v, numbers)))
    ]


def _replaces_parameter(value: ir.Value, lost: set[str]) -> bool:
    """Returns whether an optimizer computed an initializer from parameters that the file no longer has."""
    if folded_from(value) & lost:
        return True
    in_weight_slot = any(
        index in WEIGHT_SLOTS.get(node.op_type, ()) for node, index in readers(value, SAME_VALUES)
    )
    return bool(lost) and in_weight_slot and not has_equal_elements(value)


def _looks_like_a_weight(value: ir.Value) -> bool:
    fixed = value.shape is not None and value.shape.is_static()
    return fixed and any(index in WEIGHT_SLOTS.get(node.op_type, ()) for node, index in value.uses())


def _is_parameter(value: ir.Value, numbers: Uses) -> bool:
    """Returns whether any reader uses a value as something other than a hyperparameter or a statistic."""
    return not value.meta.get(NUMBERS) and any(
        index not in _NUMBER_SLOTS.get(node.op_type, ())
        and (node, index) not in numbers
        and not _is_half_of_one_hot(node)
        for node, index in readers(value, SAME_VALUES)
    )


def _is_half_of_one_hot(node: ir.Node) -> bool:
    """Returns whether a node joins the off and on values of OneHot, as tf2onnx writes them."""
    return node.op_type == "Concat" and all(
        user.op_type == "OneHot" and index == 2 for user, index in readers(node.outputs[0], SAME_VALUES)
    )


def _spelled_out_statistics(graph: ir.Graph) -> Iterator[tuple[ir.Node, int]]:
    """Yields the uses of a mean or variance by a batch norm in inference mode that is spelled in arithmetic."""
    for node in nodes_of(graph):
        add, index = _shifted_variance(node)
        if add is not None:
            yield add, index
            yield add, 1 - index  # epsilon
            scales = _made_of_parameters(node.outputs[0])
            for scale in scales:
                for user, index in scale.uses():
                    yield from _uses_as_mean(user, index, scales)


def _shifted_variance(node: ir.Node) -> tuple[ir.Node | None, int]:
    """Returns the variance + epsilon whose square root or power -0.5 a node computes, and its variance input."""
    if node.op_type == "Pow" and len(node.inputs) > 1:
        exponent = constant_of(node.inputs[1])
        if exponent is None or exponent.size != 1 or abs(float(exponent.flat[0])) != 0.5:
            return None, 0
    elif node.op_type != "Sqrt":
        return None, 0
    shifted = source_of(node.inputs[0] if node.inputs else None)
    add = shifted.producer() if shifted is not None else None
    if add is None or add.op_type != "Add" or len(add.inputs) != 2:
        return None, 0
    for index, value in enumerate(add.inputs):
        epsilon = constant_of(source_of(add.inputs[1 - index]))
        small = epsilon is not None and epsilon.size == 1 and 0 <= float(epsilon.flat[0]) <= LARGEST_EPSILON
        if small and _comes_from_parameter(value):
            return add, index
    return None, 0


def _made_of_parameters(deviation: ir.Value) -> set[ir.Value]:
    """Returns a standard deviation, its inverse, and both multiplied by a scale, in any type or shape."""
    deviations, waiting = {deviation}, [deviation]
    while waiting:
        for node, index in waiting.pop().uses():
            other = node.inputs[1 - index] if len(node.inputs) == 2 else None
            same = node.op_type in SAME_VALUES and index == 0
            scaled = (node.op_type == "Div" and index == 1) or node.op_type == "Mul"
            if same or node.op_type == "Reciprocal" or (scaled and _comes_from_parameter(other)):
                new = set(node.outputs) - deviations
                deviations |= new
                waiting += new
    return deviations


def _uses_as_mean(node: ir.Node, index: int, scales: set[ir.Value]) -> Iterator[tuple[ir.Node, int]]:
    """Yields the uses of a mean: in (x - mean) * scale, (x - mean) / deviation, or bias - mean * scale."""
    if len(node.inputs) != 2 or node.op_type not in ("Mul", "Div") or (node.op_type == "Div" and index == 0):
        return
    other = source_of(node.inputs[1 - index])
    centered = other.producer() if other is not None else None
    if centered is not None and centered.op_type == "Sub" and _comes_from_parameter(centered.inputs[1]):
        yield centered, 1
    elif node.op_type == "Mul" and _comes_from_parameter(other) and node.outputs[0] in scales:
        shifted = [
            user for user, slot in readers(node.outputs[0], SAME_VALUES) if user.op_type == "Sub" and slot == 1
        ]
        if shifted:
            yield node, 1 - index


def _comes_from_parameter(value: ir.Value | None) -> bool:
    """Returns whether a value is an initializer or a constant, in any type or shape."""
    source = source_of(value)
    if source is None:
        return False
    node = source.producer()
    return source.is_initializer() if node is None else node.op_type == "Constant"
