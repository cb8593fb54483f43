"""Exports a Keras model and its loss in training mode, by tf2onnx."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.graph.framework import record_framework
from bngrad.graph.fresh_names import Names
from bngrad.graph.name_messages import listed
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.nodes import all_nodes, owner
from bngrad.io.files import to_proto
from bngrad.keras.data import DataInputs
from bngrad.keras.marks import Marks, marking
from bngrad.keras.packages import import_exporter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPSET = 17
LOSS = "loss"
"""The name of the output with the loss."""


def export(model: Any, loss: Any, example: Sequence[Any], *, dynamic_batch: bool = True) -> onnx.ModelProto:  # noqa: ANN401
    """Exports the forward pass of a Keras model and its loss, in training mode.

    Batch norms are BatchNormalization in training mode, with the momentum, epsilon and biased variance of Keras;
    those with trainable=False are in inference mode. Dropouts are Dropout in training mode. Trainable weights and
    moving statistics are inputs under their `variable.path`, with their values as defaults; other variables are
    initializers.

    The model is called once with symbolic data, while `BatchNormalization.call` and Keras's dropout are replaced;
    another thread must not call a model meanwhile.

    Args:
        model: A built model: functional, Sequential or subclassed.
        loss: A `keras.losses.Loss`, or a function of (y, y_pred) that returns a scalar; the model's regularization
            losses are added. None for `model.compute_loss`, that is what `model.compile` was given.
        example: ``(x, y)`` as for `model.fit`: arrays, or lists or dicts of arrays. Only their shapes and types
            matter.
        dynamic_batch: Whether the first dimension of the data is symbolic.

    Returns:
        The forward model. Its data inputs are ``x`` and ``y``, or those of lists and dicts ``x_0``, ``y_name``;
        its outputs are ``y_pred``, or ``y_pred_0``, and ``loss``.

    Raises:
        InputError: A package is missing, Keras does not run on TensorFlow, or an argument is invalid.
        ModelError: The model cannot be exported, or changes variables other than moving statistics.
        UnsupportedNodeError: tf2onnx does not convert an op.
    """
    keras, tf, tf2onnx = import_exporter()
    trainable, others = _variables(keras, model)
    data = DataInputs(keras, example, dynamic_batch=dynamic_batch)
    given = [*trainable, *others]
    marks = Marks()

    def traced(*tensors: Any) -> dict[str, Any]:  # noqa: ANN401
        marks.clear()
        values, arrays = tensors[: len(given)], tensors[len(given) :]
        x, y = data.structured(arrays)
        with keras.StatelessScope(state_mapping=list(zip(given, values, strict=True))) as scope, marking(marks):
            y_pred = model(x, training=True)
            total = _loss(keras, tf, model, loss, x, y, y_pred)
        _refuse_changes(given, values, scope)
        named = data.named("y_pred", y_pred)
        return {**{name: tf.identity(value) for name, value in named.items()}, LOSS: total}

    def forward(*tensors: Any) -> dict[str, Any]:  # noqa: ANN401
        with marks.noting_refusals():
            return traced(*tensors)

    specs = [
        *(tf.TensorSpec(v.shape, v.dtype, f"state_{number}") for number, v in enumerate(given)),
        *(tf.TensorSpec(shape, dtype, f"data_{number}") for number, (shape, dtype) in enumerate(data.specs)),
    ]
    function = tf.function(forward)
    try:
        concrete = function.get_concrete_function(*specs)
    except Exception as error:
        if marks.refusals:
            raise marks.refusals[0] from None
        reason = " ".join(str(error).split())
        raise ModelError(
            f"the model {model.name!r} or its loss cannot be called on the example: {reason}"
        ) from error
    with _quiet():
        proto, _ = tf2onnx.convert.from_function(function, specs, opset=OPSET)
    result = ir.from_proto(proto)
    _fix_captured(result, concrete)
    _convert_erfc(result)
    _refuse_unconverted(result)
    marks.resolve(result)
    data_names = {f"data_{number}": name for number, name in enumerate(data.names)}
    _name_inputs(result, data_names, dynamic_batch=dynamic_batch)
    _name_state(result, given, {variable.path for variable in trainable})
    result.producer_name, result.producer_version = "bngrad.keras", None
    record_framework(result, "tensorflow")
    return to_proto(result)


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


def _loss(keras: Any, tf: Any, model: Any, loss: Any, x: Any, y: Any, y_pred: Any) -> Any:  # noqa: ANN401
    if loss is None:
        return model.compute_loss(x=x, y=y, y_pred=y_pred, training=True)
    if not callable(loss):
        raise InputError(
            f"loss is {loss!r}; expected a keras.losses.Loss, a function of (y, y_pred), or None for the loss "
            "that model.compile was given"
        )
    total = tf.convert_to_tensor(loss(y, y_pred))
    if total.shape.rank != 0:
        raise InputError(f"the loss has {total.shape.rank} dimensions; expected a scalar, such as their mean")
    return keras.ops.sum([total, *model.losses], axis=0) if model.losses else total


def _refuse_changes(variables: Sequence[Any], values: Sequence[Any], scope: Any) -> None:  # noqa: ANN401
    changed = [
        v.path for v, value in zip(variables, values, strict=True) if scope.get_current_value(v) is not value
    ]
    if changed:
        raise ModelError(
            f"the forward pass changes {listed(changed)}; expected it to change the moving statistics of "
            "BatchNormalization alone"
        )


def _fix_captured(model: ir.Model, function: Any) -> None:  # noqa: ANN401
    """Makes initializers of the tensors that a function reads and that are none of its arguments.

    tf2onnx makes them inputs. They are constants of layers, such as the factor of a regularizer.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    captured = [(inner, outer) for outer, inner in function.graph.captures if outer.dtype.name != "resource"]
    for inner, outer in captured:
        if (value := inputs.get(inner.name)) is not None:
            value.const_value = ir.tensor(outer.numpy(), name=inner.name)
            model.graph.inputs.remove(value)
            model.graph.register_initializer(value)


def _convert_erfc(model: ir.Model) -> None:
    """Erfc(x) -> 1 - Erf(x): of the activation gelu, and unknown to tf2onnx."""
    for node in [node for node in all_nodes(model) if node.op_type == "Erfc"]:
        make = NodesBefore(node, Names(model), node.name or "Erfc")
        one = make.constant(1.0, node.outputs[0].dtype or ir.DataType.FLOAT)
        result = make.op("Sub", one, make.op("Erf", node.inputs[0]))
        ir.convenience.replace_nodes_and_values(owner(node), node, [node], [], node.outputs, [result])


def _refuse_unconverted(model: ir.Model) -> None:
    for node in all_nodes(model):
        if node.domain == "" and not onnx.defs.has(node.op_type):
            raise UnsupportedNodeError(f"tf2onnx does not convert TensorFlow's {node.op_type} ({node.name!r})")


def _name_inputs(model: ir.Model, names: dict[str, str], *, dynamic_batch: bool) -> None:
    for value in model.graph.inputs:
        name = names.get(str(value.name))
        if name is None:
            continue
        value.name = name
        if dynamic_batch and value.shape is not None:
            value.shape = ir.Shape(["batch", *list(value.shape)[1:]])


def _name_state(model: ir.Model, variables: Sequence[Any], trainable: set[str]) -> None:
    """Gives the weights their paths and values; those that no step changes are no inputs."""
    graph = model.graph
    inputs = {str(value.name): value for value in graph.inputs}
    moving = {
        value
        for node in graph
        if node.op_type == "BatchNormalization" and "training_mode" in node.attributes
        for value in node.inputs[3:5]
    }
    for number, variable in enumerate(variables):
        value = inputs.get(f"state_{number}")
        if value is None:
            continue
        value.name = variable.path
        value.const_value = ir.tensor(np.asarray(variable), name=variable.path)
        if variable.path not in trainable and value not in moving:
            graph.inputs.remove(value)
        if value.uses():
            graph.register_initializer(value)
        elif value in graph.inputs:
            graph.inputs.remove(value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences tf2onnx, which logs as an error what `_refuse_unconverted` raises."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
