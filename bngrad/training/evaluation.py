"""The evaluation graph of a training step: the forward model in inference mode, with the state as its inputs.

Weights and running statistics are inputs without defaults, so that one session evaluates every state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.forward_info import new_buffers
from bngrad.graph.constant_value import new_initializer
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import nodes_at_start
from bngrad.passes.check import check
from bngrad.passes.prepare.stable_logs import StableLogsPass
from bngrad.passes.quantize.deploy import deploy
from bngrad.passes.quantize.form import quantizable
from bngrad.passes.quantize.round_values import round_values
from bngrad.passes.workarounds.all_axes import AllAxesPass
from bngrad.passes.workarounds.bernoulli import BernoulliPass
from bngrad.passes.workarounds.matrix_vector import MatrixVectorPass
from bngrad.passes.workarounds.present_keys import remove_unused_nodes
from bngrad.passes.workarounds.sigmoid import SigmoidPass
from bngrad.training.finalize import finalize, inlined_copy, running_outputs, to_inference_model
from bngrad.training.step_info import KEY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.passes.quantize.quantization import Quantization
    from bngrad.training.step_info import StepInfo

    Array = NDArray[Any]


def evaluation_graph(
    model: ir.Model,
    values: Mapping[str, Array],
    loss: str,
    *,
    batch_statistics: bool = False,
    in_place: bool = False,
    quantization: Quantization | None = None,
) -> ir.Model:
    """Returns the evaluation graph of a forward model, which is still to be checked.

    Its outputs are those of the forward model without running statistics, and the loss.

    Args:
        model: The forward model; it is not changed, except with ``in_place``.
        values: The weights and running statistics, by the names of the training graph's inputs.
        loss: The name of the loss.
        batch_statistics: Whether batch norms in primitives may use the statistics of the batch.
        in_place: Whether the model may be changed, as nothing else needs it.
        quantization: What is rounded; None for nothing.

    Raises:
        ModelError: The loss depends on values that only training mode has, or an output, unless accepted, on
            the statistics of the batch.
    """
    model = inlined_copy(model, in_place=in_place)
    if all(value.name != loss for value in model.graph.outputs):
        model.graph.outputs.append(next(v for node in model.graph for v in node.outputs if v.name == loss))
    left_out = running_outputs(model)
    outputs = [str(value.name) for value in model.graph.outputs if value not in left_out]
    rounding = () if quantization is None else quantization.state
    of_model = {name: array for name, array in values.items() if name not in rounding}
    result = to_inference_model(
        model, of_model, outputs=outputs, random=True, batch_statistics=batch_statistics
    ).model
    if quantization is not None:
        result = quantizable(result)
        round_values(result, quantization)
    make_state_inputs(result, values)
    return result


def make_state_inputs(model: ir.Model, values: Mapping[str, Array]) -> None:
    """Converts the weights and running statistics of a model in inference mode to inputs.

    Args:
        model: The model; it is changed.
        values: Arrays of their types, by the names of initializers; the model may lack some.
    """
    BernoulliPass()(model)
    MatrixVectorPass()(model)
    AllAxesPass()(model)
    StableLogsPass()(model)
    SigmoidPass()(model)
    take_state(model, {name: array for name, array in values.items() if name in model.graph.initializers})


def take_state(model: ir.Model, values: Mapping[str, Array]) -> None:
    """Converts weights and running statistics to inputs without defaults; 16-bit types are float inputs and cast.

    Args:
        model: The model; it is changed.
        values: Arrays of their types, by the names of inputs and initializers.
    """
    graph = model.graph
    make = nodes_at_start(graph, Names(model), "bngrad_state")
    by_name = {str(value.name): value for value in (*graph.inputs, *graph.initializers.values())}
    for name, array in values.items():
        value = by_name[name]
        graph.initializers.pop(name, None)
        value.const_value = None
        if value.is_graph_input():
            graph.inputs.remove(value)
        dtype, wide = (ir.DataType.from_numpy(kind) for kind in (array.dtype, state_dtype(array.dtype)))
        value.dtype, value.shape = dtype, ir.Shape(array.shape)
        if dtype != wide:
            value.name = None
            master = ir.val(name, wide, array.shape)
            value.replace_all_uses_with(make.cast(master, dtype), replace_graph_outputs=True)
            value = master
        graph.inputs.append(value)


def state_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in the state: float for the 16-bit types, whose updates would be lost in rounding."""
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype


def with_state(
    evaluation: ir.Model, info: StepInfo, state: Mapping[str, Array], *, averages: bool = True
) -> ir.Model:
    """Returns the inference model: the evaluation graph with a state as initializers, without the loss.

    Args:
        evaluation: The evaluation graph, of any layout; it is not changed.
        info: The metadata of the step.
        state: The state, in the named layout.
        averages: Whether moving averages, if the step has them, take the place of weights and statistics.

    Raises:
        InputError: The state is not that of the step.
        ModelError: The forward model has no output but losses, or one depends on a random node.
    """
    state = info.require_state(state)
    state = info.averaged(state) if averages else state
    model = evaluation.clone()
    graph = model.graph
    values = {str(v.name): v for v in (*graph.inputs, *(v for node in graph for v in node.outputs))}
    for name in info.names("weight", "running_statistic"):
        if name in values:
            _fold(graph, values[name], state[name])
    remove_unused_nodes(model)
    model.metadata_props.pop(KEY, None)
    left_out = {info.loss, *new_buffers(model)}
    outputs = [str(value.name) for value in graph.outputs if value.name not in left_out]
    # Batch norms in the evaluation graph were accepted when the step was made.
    result = finalize(model, {}, outputs=outputs or None, batch_statistics=True).model
    if info.quantization is not None:
        deploy(result, info.quantization)
        check(result, evaluation)
    return result


def _fold(graph: ir.Graph, value: ir.Value, array: Array) -> None:
    """Replaces an input, or a part of the flat state, by an initializer; casts to a 16-bit type are folded."""
    name, value.name = str(value.name), None
    if value.is_graph_input():
        graph.inputs.remove(value)
    for node in [node for node, _ in value.uses() if node.op_type == "Cast" and len(value.uses()) == 1]:
        value = node.outputs[0]
        array = array.astype(ir.DataType(node.attributes["to"].as_int()).numpy())
    value.replace_all_uses_with(new_initializer(graph, name, ir.tensor(array)), replace_graph_outputs=True)
