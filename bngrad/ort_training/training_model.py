"""The training and the evaluation model of a forward model with a loss.

The inputs of the training model are, in this order, the forward model's, the parameters, a buffer
``<name>_grad.accumulation.buffer`` for each trainable one, and ``lazy_reset_grad``, bool [1]. Its outputs are the
forward model's, and ``<name>_grad.accumulation.out``, bool [1], for each buffer. In 1.19.2 these are all, since
kernels update buffers and running statistics in place. The models of this package return the new values as further
outputs; JSON under `STATE_KEY` in the model's metadata_props names the output for each input. Running statistics
that are not parameters are further inputs, with their initial values as defaults.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from bngrad.autodiff.body_statistics import return_statistics_of_bodies
from bngrad.autodiff.new_statistics import new_statistics
from bngrad.autodiff.prepare_forward import inlined, prepare
from bngrad.autodiff.running_statistics import is_of_onnx, is_of_tensorflow
from bngrad.autodiff.stop_gradient import stops_to_identity
from bngrad.autodiff.training_graph import training_graph
from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import unknown_name
from bngrad.graph.nodes import all_nodes, default_opset
from bngrad.graph.subgraphs import nodes_of
from bngrad.opset.gradient_names import gradient_name
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT
from bngrad.options import ForwardOptions
from bngrad.oracle.refusals import refuse_overwritten
from bngrad.passes.check import check
from bngrad.passes.pipeline import for_target
from bngrad.passes.prepare.large_initializers import hide_initializers
from bngrad.passes.prepare.return_state import state_of
from bngrad.training.differentiate import in_ort_dialect
from bngrad.training.finalize import refuse_other_systems
from bngrad.training.to_inference import batch_norm_to_inference

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

Target = Literal["stock", "ort"]
"""The system that runs a training model: any ONNX Runtime, or a consumer of the training build's dialect."""

STATE_KEY = "bngrad.ort_training_state"
"""Of ``ModelProto.metadata_props``."""

RESET = "lazy_reset_grad"
"""The input that decides whether the accumulation begins anew."""


def training_model(
    forward: ir.Model,
    *,
    parameters: Collection[str],
    trainable: Collection[str],
    target: Target = "stock",
    custom_ops: bool = False,
) -> ir.Model:
    """Returns the training model of a forward model.

    Every batch norm uses the statistics of the batch.

    Args:
        forward: The forward model with types; its first output is the loss. It is not changed.
        parameters: The initializers that become inputs; other names are ignored.
        trainable: The parameters and inputs to differentiate the loss with respect to.
        target: The system that runs it.
        custom_ops: Whether a library that the user registers may have kernels for ops of other domains.

    Raises:
        ModelError: A trainable name is neither an initializer nor an input, or the loss cannot be differentiated
            with respect to it.
        UnsupportedNodeError: Nodes between the loss and the trainable parameters have no gradient.
    """
    _require_given(forward.graph, trainable)
    model = with_inputs(forward, parameters)
    inputs, outputs = (
        [str(value.name) for value in values] for values in (model.graph.inputs, model.graph.outputs)
    )
    wrt = [name for name in inputs if name in trainable]
    model, gradients, statistics = _differentiated(model, outputs[0], wrt)
    buffers = _accumulate(model, gradients)
    if target == "ort":
        refuse_overwritten(model, "target stock")
        _arrange(model, [*inputs, *buffers.values(), RESET], [*outputs, *buffers])
        return in_ort_dialect(model, forward)
    model, _ = for_target(model, target="stock", source=forward, custom_ops=custom_ops)
    accumulated = state_of(model)
    state = {buffer: accumulated[buffer] for buffer in buffers.values()}
    state |= {old: copied_output(model, new) if new in outputs else new for old, new in statistics.items()}
    idle = [name for name in statistics if name not in inputs]
    _arrange(model, [*inputs, *buffers.values(), RESET, *idle], [*outputs, *buffers, *state.values()])
    model.metadata_props[STATE_KEY] = json.dumps(state)
    return model


def evaluation_model(forward: ir.Model, *, parameters: Collection[str]) -> ir.Model:
    """Returns the evaluation model of a forward model: in inference mode, and with parameters as inputs.

    Args:
        forward: The forward model with types. It is not changed.
        parameters: The initializers that become inputs; other names are ignored.

    Raises:
        ModelError: A batch norm is of another system and in training mode, or a node reads an output that
            one has only in training mode.
    """
    refuse_other_systems(forward)
    model = inlined(with_inputs(forward, parameters))
    stops_to_identity(model)
    names, opset = Names(model), default_opset(model) or 0
    for node in list(all_nodes(model)):
        if (node.domain, node.op_type) in {("", "BatchNormalization"), BATCH_NORM_INTERNAL}:
            batch_norm_to_inference(node, opset, names)
        elif (node.domain, node.op_type) == ("", "Dropout") and len(node.inputs) > 2:
            node.replace_input_with(2, None)
    check(model, forward)
    return model


def with_inputs(forward: ir.Model, parameters: Collection[str]) -> ir.Model:
    """Returns a copy of a model whose inputs are its own, then the parameters in the order of its initializers."""
    model = forward.clone()
    names = {name: None for name in model.graph.initializers if name in parameters}
    own = [str(value.name) for value in model.graph.inputs if value.name not in names]
    hide_initializers(model.graph, lambda value: value.name in names)
    for value in model.graph.inputs:
        if value.name in names:
            value.const_value = None
    _arrange(model, [*own, *names], [str(value.name) for value in model.graph.outputs])
    return model


def _require_given(graph: ir.Graph, trainable: Collection[str]) -> None:
    names = {*graph.initializers, *(str(value.name) for value in graph.inputs)}
    for name in sorted(set(trainable) - names):
        raise ModelError(f"{unknown_name(name, names, 'an initializer or input')}; requires_grad takes such names")


def _differentiated(
    model: ir.Model, loss: str, wrt: Sequence[str]
) -> tuple[ir.Model, dict[str, str], dict[str, str]]:
    """Returns a model in ORT's dialect with gradients, their names, and the names of new running statistics."""
    model = inlined(model)
    batch_norms = any(is_of_onnx(node) or is_of_tensorflow(node) for node in nodes_of(model.graph))
    training = ["*"] if batch_norms else []
    if wrt:
        graph = training_graph(model, loss=loss, wrt=wrt, training=training, shared_statistics="chain")
        return graph.model, graph.gradients, graph.running_statistics
    model = prepare(model, ForwardOptions(training=training, shared_statistics="chain"))
    return_statistics_of_bodies(model, list(nodes_of(model.graph)))
    stops_to_identity(model)
    return model, {}, {str(old.name): str(new.name) for old, new in new_statistics(model).items()}


def _accumulate(model: ir.Model, gradients: Mapping[str, str]) -> dict[str, str]:
    """Replaces gradients among the outputs by ``com.microsoft.InPlaceAccumulatorV2``.

    Args:
        model: A model with gradients as outputs, which is changed.
        gradients: The gradients by what they are with respect to.

    Returns:
        The buffers, which become inputs, by the outputs that state whether they are written.

    Raises:
        ModelError: The model has a name that an input or output of the accumulation needs.
    """
    graph, names = model.graph, Names(model)
    reset = _new_input(graph, names, RESET, ir.TensorType(ir.DataType.BOOL), ir.Shape([1]))
    outputs = {value.name: value for value in graph.outputs}
    buffers = {}
    for name, gradient in gradients.items():
        value, stem = outputs[gradient], f"{gradient_name(name)}.accumulation"
        buffer = _new_input(graph, names, f"{stem}.buffer", value.type, value.shape)
        node = ir.node(
            "InPlaceAccumulatorV2",
            [buffer, value, reset],
            domain=MICROSOFT,
            name=names.fresh(f"GradientAccumulator_{name}"),
        )
        (done,) = node.outputs
        done.name, done.type, done.shape = _unused(names, f"{stem}.out"), reset.type, reset.shape
        graph.append(node)
        graph.outputs[:] = [*(output for output in graph.outputs if output is not value), done]
        buffers[str(done.name)] = str(buffer.name)
    if any(node.domain == MICROSOFT for node in graph):
        model.opset_imports.setdefault(MICROSOFT, 1)
    return buffers


def _new_input(
    graph: ir.Graph, names: Names, name: str, type_: ir.TypeProtocol | None, shape: ir.Shape | None
) -> ir.Value:
    value = ir.Value(name=_unused(names, name), type=type_, shape=shape)
    graph.inputs.append(value)
    return value


def _unused(names: Names, name: str) -> str:
    if names.fresh(name) != name:
        raise ModelError(
            f"the model has a value or node {name!r}, a name that the training model needs; rename it"
        )
    return name


def copied_output(model: ir.Model, name: str) -> str:
    """Makes a copy of an output another output, and returns its name."""
    (value,) = (value for value in model.graph.outputs if value.name == name)
    node = ir.node("Identity", [value], name=Names(model).fresh(f"{name}_copy"))
    (copy,) = node.outputs
    copy.name, copy.type, copy.shape = node.name, value.type, value.shape
    model.graph.append(node)
    model.graph.outputs.append(copy)
    return str(copy.name)


def _arrange(model: ir.Model, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Makes the named values the inputs and outputs of a model, in this order."""
    graph = model.graph
    sources = {value.name: value for value in (*graph.initializers.values(), *graph.inputs)}
    values = {
        value.name: value for value in (*sources.values(), *(v for n in graph for v in n.outputs), *graph.outputs)
    }
    graph.inputs[:] = [sources[name] for name in inputs]
    graph.outputs[:] = [values[name] for name in outputs]
