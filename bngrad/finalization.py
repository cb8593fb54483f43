"""From training back to inference: trained weights and running statistics put into the forward model.

What a training loop holds after its last step goes into the model that it was made from; every batch norm then
normalizes by its running statistics, every Dropout passes its input on, and the loss is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveInitializersFromInputsPass, RemoveUnusedNodesPass

from bngrad.errors import InputError, ModelError
from bngrad.names import listed, unknown_name
from bngrad.passes.check import check
from bngrad.passes.infer_types import InferTypesPass
from bngrad.passes.nodes import all_nodes, describe, owner, refuse_training_graph
from bngrad.passes.raise_opset import RaiseOpsetPass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

_LOSSES = ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")


class Finalized(NamedTuple):
    """An inference model, and what was put into it."""

    model: ir.Model
    weights: list[str]
    """What got a new value."""
    kept: list[str]
    """Weights and statistics that kept the value that the forward model had."""


def finalize(model: ir.Model, weights: Mapping[str, Array], *, outputs: Sequence[str] | None = None) -> Finalized:
    """Returns a copy of a forward model for inference, with new weights and running statistics.

    Args:
        model: The forward model; it is not changed.
        weights: New values by the name of an initializer or input. A running statistic may also go by the name of
            the output that its batch norm gives the new one.
        outputs: Names of the outputs to keep; by default all but running statistics and losses.

    Raises:
        InputError: A name is unknown, or a value has another shape or type than what it is for.
        ModelError: It is a training graph, or no output is left.
    """
    refuse_training_graph(model)
    source = model
    model = RaiseOpsetPass()(model).model
    InferTypesPass()(model)
    statistics = _statistics(model.graph)
    values = _by_input(model.graph, weights, statistics)
    before = {str(value.name) for value in model.graph.initializers.values()}
    for name, array in values.items():
        _set(model.graph, name, array)
    kept = sorted((before | set(statistics.values())) - set(values))
    _keep_outputs(model.graph, outputs, set(statistics))
    for node in list(all_nodes(model)):
        _to_inference(node)
    RemoveUnusedNodesPass()(model)
    # A default that a training loop overrides is a constant from here on.
    RemoveInitializersFromInputsPass()(model)
    _drop_unused_inputs(model.graph)
    check(model, source)
    return Finalized(model, list(values), [name for name in kept if name in model.graph.initializers])


def _statistics(graph: ir.Graph) -> dict[str, str]:
    """The input that a running statistic is read from, by the name of the output that has the new one."""
    found = {}
    for node in graph:
        if (node.domain, node.op_type) == ("", "BatchNormalization"):
            for old, new in zip(node.inputs[3:5], node.outputs[1:3], strict=False):
                if old is not None and new.name:
                    found[new.name] = str(old.name)
    return found


def _by_input(graph: ir.Graph, weights: Mapping[str, Array], statistics: Mapping[str, str]) -> dict[str, Array]:
    given = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    values: dict[str, Array] = {}
    for name, given_array in weights.items():
        target = name if name in given else statistics.get(name, name)
        if target not in given:
            raise InputError(unknown_name(name, [*given, *statistics], "a weight"))
        if target in values:
            raise InputError(f"{target!r} is given twice, also as its new value {name!r}; give one of them")
        value, array = given[target], np.asarray(given_array)
        # What the model says elsewhere of an initializer's type may be anything.
        dtype, shape = (value if value.const_value is None else value.const_value).dtype, value.shape
        if dtype is not None and array.dtype != dtype.numpy():
            raise InputError(f"{name!r} is {array.dtype}; expected {dtype.numpy()}, the type of {target!r}")
        if shape is not None and (
            len(shape) != array.ndim
            or any(isinstance(want, int) and want != got for want, got in zip(shape, array.shape, strict=True))
        ):
            want = ", ".join(str(extent) for extent in shape)
            raise InputError(f"{name!r} has shape {list(array.shape)}; expected [{want}], the shape of {target!r}")
        values[target] = array
    return values


def _set(graph: ir.Graph, name: str, array: Array) -> None:
    """Gives an initializer a value, or makes an input one."""
    value = graph.initializers.get(name)
    if value is None:
        value = next(v for v in graph.inputs if v.name == name)
        value.const_value = ir.tensor(array, name=name)
        graph.register_initializer(value)
    value.const_value = ir.tensor(array, name=name)
    value.dtype, value.shape = value.const_value.dtype, ir.Shape(array.shape)
    if value.is_graph_input():
        graph.inputs.remove(value)


def _keep_outputs(graph: ir.Graph, names: Sequence[str] | None, statistics: set[str]) -> None:
    known = {str(value.name): value for value in graph.outputs}
    if names:
        for name in names:
            if name not in known:
                raise InputError(unknown_name(name, known, "an output"))
        kept = [known[name] for name in dict.fromkeys(names)]
    else:
        kept = [v for name, v in known.items() if name not in statistics and not _is_loss(v)]
    if not kept:
        raise ModelError(
            f"the model has no output but losses and running statistics ({listed(known)}); name what to keep with "
            "--keep (outputs=), after making it an output of the forward model"
        )
    graph.outputs.clear()
    graph.outputs.extend(kept)


def _is_loss(value: ir.Value) -> bool:
    """Whether an output is a loss: a scalar, or made by an op that takes labels."""
    maker = value.producer()
    scalar = value.shape is not None and len(value.shape) == 0
    return scalar or (maker is not None and maker.op_type in _LOSSES)


def _to_inference(node: ir.Node) -> None:
    if node.domain not in ("", "ai.onnx"):
        return
    if node.op_type == "BatchNormalization":
        for value in node.outputs[1:]:
            if value.uses() or value.is_graph_output():
                raise ModelError(
                    f"{describe(node)} cannot be one of inference: its output {value.name!r}, which only training "
                    "has, is read by other nodes; leave them out with --keep"
                )
        node.resize_outputs(1)
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
    elif node.op_type == "Dropout" and not node.outputs[1:]:
        copy = ir.node("Identity", [node.inputs[0]], name=node.name)
        ir.convenience.replace_nodes_and_values(owner(node), node, [node], [copy], node.outputs, copy.outputs)


def _drop_unused_inputs(graph: ir.Graph) -> None:
    """Takes out inputs that only the loss read, such as labels."""
    for value in list(graph.inputs):
        if not value.uses() and not value.is_graph_output():
            graph.inputs.remove(value)
