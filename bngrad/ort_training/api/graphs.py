"""The graphs of a training run, as files of onnxruntime.training or of this package, made to run on stock ORT."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.io.files import load
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL
from bngrad.ort_training.errors import OrtTrainingError, as_ort_training_error
from bngrad.ort_training.training_model import RESET, STATE_KEY, copied_output
from bngrad.passes.pipeline import for_target, foreign_nodes, unknown_to_stock
from bngrad.passes.prepare.return_state import state_of

if TYPE_CHECKING:
    import os
    from collections.abc import Collection

    import onnx_ir as ir

_BUFFER = "_grad.accumulation.buffer"
_DONE = "_grad.accumulation.out"


@dataclass
class TrainingGraph:
    """A training graph that runs on stock ONNX Runtime, and what its inputs and outputs are."""

    model: ir.Model
    user_inputs: list[ir.Value]
    user_outputs: list[str]
    parameters: list[ir.Value]
    """The inputs that are parameters of the state, in the order of the graph."""
    buffers: dict[str, str]
    """The input that accumulates the gradient of each parameter that is trained."""
    statistics: list[ir.Value]
    """Running statistics that are not parameters, with their initial values."""
    updates: dict[str, str]
    """The output with the next value of each input that has one."""
    resets: str | None
    """The input that has gradients replace those before, instead of being added."""


@dataclass
class EvalGraph:
    """An evaluation graph: as it was read, and as it runs."""

    source: ir.Model
    model: ir.Model
    user_inputs: list[ir.Value]
    user_outputs: list[str]
    parameters: list[str]


def read_training_graph(path: str | os.PathLike[str], parameters: Collection[str]) -> TrainingGraph:
    """Reads a training graph and rewrites it if need be.

    Args:
        path: The file.
        parameters: The names of the parameters in the state.

    Raises:
        OrtTrainingError: The file cannot be read or rewritten, or a gradient is not that of a parameter.
    """
    with as_ort_training_error():
        model = load(path)
        own = [str(value.name) for value in model.graph.outputs]
        if STATE_KEY in model.metadata_props:
            updates = _recorded(model, path)
        else:
            _make_statistics_inputs(model.graph)
            model, _ = for_target(model, target="stock", custom_ops=True)
            # The outputs of the file stay the user's: state among them needs an output of its own.
            updates = {
                old: copied_output(model, new) if new in own else new for old, new in state_of(model).items()
            }
    graph = TrainingGraph(model, [], [], [], {}, [], updates, None)
    for value in model.graph.inputs:
        name = str(value.name)
        if name in parameters:
            graph.parameters.append(value)
        elif name.endswith(_BUFFER) and name in updates:
            parameter = name.removesuffix(_BUFFER)
            if parameter not in parameters:
                raise OrtTrainingError(
                    f"{path}: its input {name!r} is for {parameter!r}, not a parameter of the state"
                )
            graph.buffers[parameter] = name
        elif name == RESET:
            graph.resets = name
        elif name in updates:
            graph.statistics.append(value)
        else:
            graph.user_inputs.append(value)
    new = set(updates.values())
    graph.user_outputs = [name for name in own if name not in new and not name.endswith(_DONE)]
    for value in graph.statistics:
        if value.const_value is None:
            raise OrtTrainingError(
                f"{path}: the running statistic {value.name!r} has no value, in it or the state"
            )
        model.graph.initializers.pop(str(value.name), None)
    return graph


def _make_statistics_inputs(graph: ir.Graph) -> None:
    """Makes running statistics that are initializers inputs: they are state even where the model returns them."""
    for node in graph:
        if (node.domain, node.op_type) == BATCH_NORM_INTERNAL:
            for value in node.inputs[3:5]:
                if value is not None and value.is_initializer() and not value.is_graph_input():
                    graph.inputs.append(value)


def _recorded(model: ir.Model, path: str | os.PathLike[str]) -> dict[str, str]:
    """The state that a training model of this package records in its metadata."""
    inputs, outputs = ({value.name for value in values} for values in (model.graph.inputs, model.graph.outputs))
    try:
        updates = dict(json.loads(model.metadata_props[STATE_KEY]))
        valid = inputs >= updates.keys() and outputs >= set(updates.values())
    except (ValueError, TypeError):
        valid = False
    if not valid:
        raise OrtTrainingError(
            f"{path}: its metadata {STATE_KEY} do not name an output for each input that is state; "
            "make the model again with generate_artifacts"
        )
    return updates


def read_eval_graph(
    path: str | os.PathLike[str], parameters: Collection[str], statistics: Collection[str]
) -> EvalGraph:
    """Reads an evaluation graph.

    Args:
        path: The file.
        parameters: The names of the parameters in the state.
        statistics: The names of the running statistics that training moves and the state does not have; here they
            become inputs, too.

    Raises:
        OrtTrainingError: The file cannot be read or rewritten.
    """
    with as_ort_training_error():
        source = load(path)
        for node in source.graph:
            _leave_out_statistics(node)
        for name in statistics:
            if value := source.graph.initializers.pop(name, None):
                source.graph.inputs.append(value)
        model = source
        if unknown_to_stock(source) or foreign_nodes(source):
            model, _ = for_target(source, target="stock", custom_ops=True)
    state = {*parameters, *statistics}
    return EvalGraph(
        source,
        model,
        [value for value in model.graph.inputs if value.name not in state],
        [str(value.name) for value in model.graph.outputs],
        [str(value.name) for value in model.graph.inputs if value.name in state],
    )


def _leave_out_statistics(node: ir.Node) -> None:
    """Removes the running statistics that onnxruntime.training leaves at a batch norm in inference mode."""
    if (node.domain, node.op_type) != ("", "BatchNormalization") or len(node.outputs) == 1:
        return
    mode = node.attributes.get("training_mode")
    unused = not any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    if unused and (mode is None or mode.value == 0):
        node.resize_outputs(1)
