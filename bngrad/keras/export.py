"""Builds forward models from a Keras model and its loss: in training mode, and in inference mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from bngrad.autodiff import stop_gradient
from bngrad.errors import BngradError, InputError, ModelError
from bngrad.graph.name_messages import listed
from bngrad.graph.subgraphs import subgraphs
from bngrad.keras.convert import LOSS, convert_call
from bngrad.keras.data import DataInputs
from bngrad.keras.packages import import_exporter
from bngrad.keras.refusals import methods_not_called, refuse_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.keras.places import Places


class Exported(NamedTuple):
    """A forward model, and its data, places, weights and warnings."""

    model: ir.Model
    data: DataInputs
    places: Places
    weights: list[str]
    """The trainable weights that the loss depends on."""
    warnings: list[str]

    @property
    def options(self) -> dict[str, Any]:
        """The options of `bngrad.differentiate` that the conventions of Keras determine."""
        return {
            "loss": LOSS,
            "wrt": self.weights,
            "running_variance": "biased",
            # A layer that is called twice updates its statistics twice, one after the other.
            "shared_statistics": "chain",
        }


def export_model(model: Any, loss: Any, example: Sequence[Any], *, dynamic_batch: bool) -> Exported:  # noqa: ANN401
    """Exports a model and its loss in training mode; see `bngrad.keras.export`."""
    keras, *_ = import_exporter()
    warnings = methods_not_called(keras, model, loss)
    trainable, others = _variables(keras, model)
    refuse_layers(model)
    data = DataInputs(keras, example, dynamic_batch=dynamic_batch and not _has_fixed_batch(model))
    result, places, _ = convert_call(model, loss, data, [*trainable, *others], training=True)
    weights = _name_state(result, [*trainable, *others], {variable.path for variable in trainable})
    return Exported(result, data, places, weights, warnings)


def export_inference(model: Any, loss: Any, exported: Exported) -> ir.Model:  # noqa: ANN401
    """Exports a model as Keras calls it with ``training=False``, with the loss if it can be computed there.

    Args:
        model: The Keras model.
        loss: See `bngrad.keras.export`.
        exported: The model in training mode; it gets warnings.

    Returns:
        The model. All its variables are initializers under their paths.

    Raises:
        ModelError: The model cannot be exported in inference mode.
        UnsupportedNodeError: tf2onnx does not convert an op.
    """
    try:
        return _inference(model, loss, exported, with_loss=True)
    except BngradError as error:
        without_loss = str(error)
    try:
        result = _inference(model, loss, exported, with_loss=False)
    except BngradError as error:
        raise type(error)(f"in inference mode (training=False): {error}") from error
    exported.warnings.append(
        f"the evaluation graph has no loss, which cannot be computed with training=False: {without_loss}"
    )
    return result


def _inference(model: Any, loss: Any, exported: Exported, *, with_loss: bool) -> ir.Model:  # noqa: ANN401
    keras, *_ = import_exporter()
    trainable, others = _variables(keras, model)
    variables = [*trainable, *others]
    result, _, marks = convert_call(model, loss, exported.data, variables, training=False, with_loss=with_loss)
    stop_gradient.stops_to_identity(result)
    graph = result.graph
    paths = {f"state_{number}": variable for number, variable in enumerate(variables)}
    for value in list(graph.inputs):
        variable = paths.get(str(value.name))
        if variable is not None and value.uses():
            value.name = variable.path
            value.const_value = ir.tensor(np.asarray(variable), name=variable.path)
            graph.register_initializer(value)
        if variable is not None or not value.uses():
            graph.inputs.remove(value)
    if rates := marks.dropout_rates():
        exported.warnings.append(
            f"{len(rates)} dropouts (first: rate {rates[0]:g}) are called with training=True, so that Keras drops "
            "in inference, too; the evaluation graph and the inference model drop nothing"
        )
    return result


def _has_fixed_batch(model: Any) -> bool:  # noqa: ANN401
    """Tests whether an input of a model has a batch size of its own, as by ``Input(batch_shape=...)``."""
    inputs = getattr(model, "inputs", None) or []
    return any(x.shape is not None and len(x.shape) > 0 and x.shape[0] is not None for x in inputs)


def _variables(keras: Any, model: Any) -> tuple[list[Any], list[Any]]:  # noqa: ANN401
    """The trainable variables, and the others of floating point."""
    if not isinstance(model, keras.Model):
        raise InputError(f"model is a {type(model).__name__}; expected a keras.Model")
    if not model.built or not model.variables:
        raise InputError(f"the model {model.name!r} has no variables yet; call it once, or model.build")
    trainable, others = list(model.trainable_variables), list(model.non_trainable_variables)
    paths = [variable.path for variable in (*trainable, *others)]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise InputError(
            f"the model has two variables with the path {listed(twice)}; give its layers names that differ"
        )
    return trainable, [v for v in others if keras.backend.is_float_dtype(v.dtype)]


def _name_state(model: ir.Model, variables: Sequence[Any], trainable: set[str]) -> list[str]:
    """Gives the weights their paths and values; those that no step changes become constants. Returns the others.

    Raises:
        ModelError: No gradient reaches a weight.
    """
    graph = model.graph
    inputs = {str(value.name): value for value in graph.inputs}
    moving = {
        value
        for node in graph
        if node.op_type == "BatchNormalization" and "training_mode" in node.attributes
        for value in node.inputs[3:5]
    }
    (loss,) = (value for value in graph.outputs if value.name == LOSS)
    reached = _with_gradient(loss)
    weights: list[str] = []
    left: list[str] = []
    for number, variable in enumerate(variables):
        value = inputs.get(f"state_{number}")
        if value is None:
            continue
        value.name = variable.path
        value.const_value = ir.tensor(np.asarray(variable), name=variable.path)
        if variable.path in trainable:
            (weights if value in reached or not value.uses() else left).append(variable.path)
        elif value not in moving:
            graph.inputs.remove(value)
        if value.uses():
            graph.register_initializer(value)
        elif value in graph.inputs:
            graph.inputs.remove(value)
    if left:
        raise ModelError(
            f"no gradient of the loss reaches {listed(left)}, which Keras would not train either; set trainable = "
            "False of these variables"
        )
    return [path for path in weights if path in {value.name for value in graph.inputs}]


def _with_gradient(loss: ir.Value) -> set[ir.Value]:
    """Returns the values that a loss depends on, not counting those through a StopGradient."""
    reached, waiting = {loss}, [loss]
    while waiting:
        node = waiting.pop().producer()
        if node is None or stop_gradient.is_stop(node):
            continue
        inner = [value for graph in subgraphs(node) for nested in graph.all_nodes() for value in nested.inputs]
        new = {value for value in (*node.inputs, *inner) if value is not None} - reached
        reached |= new
        waiting += new
    return reached
