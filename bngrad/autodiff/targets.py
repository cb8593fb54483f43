"""What to differentiate, and by what: the names that were given, checked, or the obvious ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.autodiff.edges import reads, rule_of, smooth_inputs, why_no_gradient
from bngrad.errors import ModelError
from bngrad.names import listed, unknown_name
from bngrad.passes.nodes import SUPPORTED_DTYPES, all_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import onnx_ir as ir

_WEIGHT_SLOTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        ("Conv", "ConvTranspose", "Gemm", "BatchNormalization", "BatchNormInternal"), frozenset({1, 2})
    ),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), frozenset({1, 2})),
    **dict.fromkeys(("MatMul", "PRelu", "RMSNormalization"), frozenset({1})),
}
"""Where a graph input that has no initializer must stand to count as a weight rather than as data."""

_SETTING_SLOTS: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(("BatchNormalization", "BatchNormInternal"), frozenset({3, 4})),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "OneHot", "Pad", "SoftmaxCrossEntropyLoss"), frozenset({2})),
    "Range": frozenset({0, 2}),
}
"""Inputs that have a gradient, and that make no weight of what is read there alone: statistics, class weights."""

_NUMBER_SLOTS: Mapping[str, frozenset[int]] = {"Clip": frozenset({1, 2}), "Pow": frozenset({1})}
"""Where an initializer stands that says what the op does: it has a gradient, but is no weight."""


def find_loss(model: ir.Model, name: str | None) -> ir.Value:
    """Returns the loss: a float value of one element that a node of the main graph makes.

    Args:
        model: The forward model, with types.
        name: Its name; None for the only float output of one element.

    Raises:
        ModelError: There is no such value, none that it can only be, or it is no scalar.
    """
    made = {value.name: value for node in model.graph for value in node.outputs if value.name}
    if name is None:
        scalars = [v for v in model.graph.outputs if _is_float(v) and _is_scalar(v) and v.producer() is not None]
        if len(scalars) != 1:
            outputs = ", ".join(_typed(value) for value in model.graph.outputs if _is_float(value))
            raise ModelError(
                f"the model has {len(scalars) or 'no'} float scalar outputs; name the loss with --loss (its float "
                f"outputs are {outputs or 'none'})"
            )
        return scalars[0]
    if name not in made:
        if any(name == value.name for value in (*model.graph.inputs, *model.graph.initializers.values())):
            raise ModelError(f"loss {name!r} is an input of the graph, so it depends on nothing; name an output")
        raise ModelError(unknown_name(name, [n for n in made if n], "a value"))
    loss = made[name]
    if not _is_float(loss) or not (loss.shape is None or _is_scalar(loss)):
        raise ModelError(
            f"loss {_typed(loss)} is no float scalar; expected one element: reduce it to its mean or its sum"
        )
    return loss


def find_wrt(model: ir.Model, names: Sequence[str] | None, loss: ir.Value) -> list[ir.Value]:
    """Returns what to differentiate by: inputs and initializers of the main graph that reach the loss.

    Args:
        model: The forward model, with types.
        names: Their names; by default the weights: the float initializers but for exponents and limits, and the
            graph inputs of fixed shape that stand where an op takes a weight.
        loss: The loss.

    Raises:
        ModelError: A name is unknown, is no float, or the loss does not depend on it; there are no weights.
    """
    graph = model.graph
    given = {str(v.name): v for v in (*graph.inputs, *graph.initializers.values())}
    if not names:
        reaching = _reaching(loss, to_weights=True)
        weights = [
            v
            for v in given.values()
            if v in reaching and _is_float(v) and (_looks_like_a_weight(v) or _is_parameter(v))
        ]
        if not weights:
            raise ModelError(
                f"loss {loss.name!r} depends on no weights; name what to differentiate by with --wrt (the inputs "
                f"are {listed(str(value.name) for value in graph.inputs)})"
            )
        return weights
    reaching = _reaching(loss)
    constants = {
        str(node.outputs[0].name): node.outputs[0]
        for node in graph
        if (node.domain, node.op_type) == ("", "Constant")
    }
    found = []
    for name in dict.fromkeys(names):
        value = given.get(name, constants.get(name))
        if value is None:
            if any(name == v.name for node in all_nodes(model) for v in node.outputs):
                raise ModelError(f"{name!r} is computed by the model; differentiate by inputs and initializers")
            raise ModelError(unknown_name(name, given, "an input or initializer"))
        if not _is_float(value):
            raise ModelError(f"{_typed(value)} has no gradient; expected a float")
        if value not in reaching:
            raise ModelError(f"loss {loss.name!r} does not depend on {name!r}{why_no_gradient(value)}")
        found.append(value)
    return found


def _reaching(loss: ir.Value, *, to_weights: bool = False) -> set[ir.Value]:
    """The values that a loss depends on through inputs that a gradient can flow to.

    Args:
        loss: The loss.
        to_weights: Whether to leave out what is read only as a setting, or as an input that has no gradient.
    """
    found, waiting = {loss}, [loss]
    while waiting:
        node = waiting.pop().producer()
        values = () if node is None else _weighed(node) if to_weights else reads(node)
        new = set(values) - found
        found |= new
        waiting += new
    return found


def _weighed(node: ir.Node) -> Iterator[ir.Value]:
    """The values that a node reads through which weights may reach its output."""
    rule = rule_of(node)
    if rule is None:
        return reads(node)
    settings = _SETTING_SLOTS.get(node.op_type, frozenset())
    return (value for index, value in smooth_inputs(node) if rule.differentiates(index) and index not in settings)


def _looks_like_a_weight(value: ir.Value) -> bool:
    fixed = value.shape is not None and all(isinstance(extent, int) for extent in value.shape)
    return fixed and any(index in _WEIGHT_SLOTS.get(node.op_type, ()) for node, index in value.uses())


def _is_parameter(value: ir.Value) -> bool:
    return value.is_initializer() and any(
        i not in _NUMBER_SLOTS.get(node.op_type, ()) and i not in _SETTING_SLOTS.get(node.op_type, ())
        for node, i in value.uses()
    )


def _is_float(value: ir.Value) -> bool:
    return value.dtype in SUPPORTED_DTYPES


def _is_scalar(value: ir.Value) -> bool:
    return value.shape is not None and all(extent == 1 for extent in value.shape)


def _typed(value: ir.Value) -> str:
    dtype = value.dtype.name.lower() if value.dtype is not None else "of unknown type"
    shape = "" if value.shape is None else "[" + ", ".join(str(extent) for extent in value.shape) + "]"
    return f"{value.name!r} ({dtype}{shape})"
