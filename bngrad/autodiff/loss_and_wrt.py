"""Selects the loss and the values to differentiate it with respect to, by name or by default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.dependence import moving_values
from bngrad.autodiff.edges import (
    can_have_gradient,
    reads,
    rounded_floats,
    rule_of,
    smooth_operands,
    why_no_gradient,
)
from bngrad.autodiff.new_statistics import new_statistics
from bngrad.autodiff.quantization import is_quantization, scales
from bngrad.autodiff.weights import default_weights
from bngrad.errors import ModelError
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.graph.name_messages import listed, unknown_name
from bngrad.graph.nodes import all_nodes, describe
from bngrad.graph.same_values import SAME_VALUES, origin
from bngrad.graph.shapes import has_one_element
from bngrad.graph.subgraphs import captured_values, subgraphs
from bngrad.opset.known_shapes import type_text
from bngrad.passes.imports.tensorflow.node import FORWARDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx_ir as ir

_BATCH_NORMS = ("BatchNormalization", "BatchNormInternal", "BatchNormalizationTraining", *FORWARDS)
"""Forward batch norms, whose outputs after the first are statistics."""


class IndependentError(ModelError):
    """The loss does not depend on some values in a way that has a gradient."""

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = names
        """The names of the values."""


def find_loss(model: ir.Model, name: str | None) -> ir.Value:
    """Returns the loss: a float value of one element that a node of the main graph computes.

    Args:
        model: The forward model, with types.
        name: Its name; by default the only float output of one element that is not a running statistic.

    Raises:
        ModelError: The value does not exist, there is no unique default, or it is not a scalar.
    """
    computed = {value.name: value for node in model.graph for value in node.outputs if value.name}
    if name is None:
        scalars = default_losses(model)
        if len(scalars) != 1:
            outputs = ", ".join(_typed(value) for value in model.graph.outputs if _is_float(value))
            remedy = "" if scalars else ", or append one with --loss-fn (loss_fn=)"
            raise ModelError(
                f"the model has {len(scalars) or 'no'} float scalar outputs; name the loss with --loss{remedy} "
                f"(its float outputs are {outputs or 'none'})"
            )
        return scalars[0]
    if name not in computed:
        if any(name == value.name for value in (*model.graph.inputs, *model.graph.initializers.values())):
            raise ModelError(f"loss {name!r} is an input of the graph, so it depends on nothing; name an output")
        raise ModelError(unknown_name(name, [n for n in computed if n], "a value"))
    loss = computed[name]
    if not _is_float(loss) or not (loss.shape is None or has_one_element(loss)):
        raise ModelError(
            f"loss {_typed(loss)} is not a float scalar; expected one element: reduce it to its mean or its sum"
        )
    return loss


def default_losses(model: ir.Model) -> list[ir.Value]:
    """Returns the outputs that can be the loss: the float ones of one element that are not running statistics.

    Args:
        model: The forward model, with types.
    """
    statistics = set(new_statistics(model).values())
    scalars = [v for v in model.graph.outputs if _is_float(v) and has_one_element(v)]
    scalars = [v for v in scalars if v not in statistics and not is_new_statistic(v)]
    if len(scalars) > 1:
        # An accuracy, or a learning rate that is passed on, is not a loss.
        scalars = [
            v for v in scalars if any(source.producer() is None for source in reaching_values(v))
        ] or scalars
    return scalars


def find_wrt(model: ir.Model, names: Sequence[str] | None, loss: ir.Value) -> list[ir.Value]:
    """Returns the values to differentiate with respect to: inputs and initializers that the loss depends on.

    Args:
        model: The forward model, with types.
        names: Their names; by default the weights, see `default_weights`.
        loss: The loss.

    Raises:
        IndependentError: The loss does not depend on a named value.
        ModelError: A name is unknown or not a float, or there are no weights.
    """
    graph = model.graph
    sources = {str(v.name): v for v in (*graph.inputs, *graph.initializers.values())}
    if not names:
        reaching = reaching_values(loss, as_weights=True)
        captured = _captured_for_others(graph)
        weights = [
            value
            for value in default_weights(graph)
            if value in reaching and (value not in captured or loss in moving_values(graph, [value]))
        ]
        _refuse_scales(graph, weights)
        if not weights:
            raise ModelError(_no_weights(loss, graph))
        return weights
    reaching = reaching_values(loss)
    constants = {
        str(node.outputs[0].name): node.outputs[0]
        for node in graph
        if (node.domain, node.op_type) == ("", "Constant")
    }
    wrt = []
    for name in dict.fromkeys(names):
        value = sources.get(name, constants.get(name))
        if value is None:
            if any(name == v.name for node in all_nodes(model) for v in node.outputs):
                raise ModelError(
                    f"{name!r} is computed by the model; differentiate with respect to inputs and initializers"
                )
            raise ModelError(unknown_name(name, sources, "an input or initializer"))
        if not _is_float(value):
            raise ModelError(f"{_typed(value)} has no gradient; expected a float")
        if value not in reaching:
            raise IndependentError(
                f"loss {loss.name!r} does not depend on {name!r}{why_no_gradient(value)}", [name]
            )
        wrt.append(value)
    return wrt


def _captured_for_others(graph: ir.Graph) -> set[ir.Value]:
    """Returns what bodies of nodes with several outputs read, perhaps for those that a loss does not depend on."""
    several = [node for node in graph if len(node.outputs) > 1 and any(True for _ in subgraphs(node))]
    return {value for node in several for value in captured_values(node)}


def _no_weights(loss: ir.Value, graph: ir.Graph) -> str:
    """Says that a loss depends on no weights, and what could be trained, or differentiated, instead."""
    reaching = reaching_values(loss)
    constants = [node.outputs[0] for node in graph if (node.domain, node.op_type) == ("", "Constant")]
    candidates = {
        "name what to train with": [v for v in constants if _is_float(v) and not has_one_element(v)],
        # A step has no values of inputs to begin with.
        "for gradients of inputs, differentiate takes": [value for value in graph.inputs if _is_float(value)],
    }
    phrases = [
        f"{remedy} --wrt (wrt=): {listed(names)}"
        for remedy, values in candidates.items()
        if (names := [str(value.name) for value in values if value in reaching])
    ]
    message = f"loss {loss.name!r} depends on no weights, which are float initializers"
    return "; ".join([message, *phrases]) if phrases else f"{message}, nor on a float input or constant"


def _refuse_scales(graph: ir.Graph, weights: Sequence[ir.Value]) -> None:
    """Refuses a weight that is also a scale of a quantized layer: exporters merge equal values.

    Raises:
        ModelError: There is such a weight.
    """
    scaled = {
        origin(value, SAME_VALUES): node
        for node, index in scales(graph)
        if (value := node.inputs[index]) is not None
    }
    for weight in weights:
        if (node := scaled.get(weight)) is not None:
            raise ModelError(
                f"{weight.name!r} is a weight and a scale of {describe(node)}, which training must not change; "
                "give each an initializer of its own, or leave it out with --wrt (wrt=)"
            )


def reaching_values(loss: ir.Value, *, as_weights: bool = False) -> set[ir.Value]:
    """Returns the values that a loss depends on through inputs that a gradient can flow to.

    Args:
        loss: The loss.
        as_weights: Whether to leave out values that it depends on only as statistics of batch norms, through
            inputs that have no gradient, or through a quantized layer.
    """
    reaching, waiting = {loss}, [loss]
    while waiting:
        node = waiting.pop().producer()
        values = () if node is None else _reads_weights(node) if as_weights else reads(node)
        new = set(values) - reaching
        reaching |= new
        waiting += new
    return reaching


def _reads_weights(node: ir.Node) -> Iterator[ir.Value]:
    rule = rule_of(node)
    if is_quantization(node):
        if rule is not None and rule.differentiates(0):
            data = rounded_floats(node) or node.inputs
            yield from (value for value in data[:1] if value is not None and can_have_gradient(value))
        return
    if rule is None:
        yield from reads(node)
        return
    for body in subgraphs(node):
        yield from body.outputs
    for index, value in smooth_operands(node):
        if rule.differentiates(index) and not (node.op_type in _BATCH_NORMS and index in (3, 4)):
            yield value


def is_new_statistic(value: ir.Value) -> bool:
    """Returns whether an output is a new running statistic of a batch norm, or a copy of an input of the model."""
    value = origin(value)
    node = value.producer()
    return node is None or (node.op_type in _BATCH_NORMS and value is not node.outputs[0])


def _is_float(value: ir.Value) -> bool:
    return value.dtype in SUPPORTED_DTYPES


def _typed(value: ir.Value) -> str:
    return f"{value.name!r} ({type_text(value)})"
