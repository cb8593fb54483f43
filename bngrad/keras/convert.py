"""Converts a call of a Keras model, with its loss, to ONNX by tf2onnx: variables and data are inputs."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnx_ir as ir

from bngrad.autodiff import stop_gradient
from bngrad.errors import UnsupportedNodeError
from bngrad.graph.framework import record_framework
from bngrad.graph.nodes import all_nodes
from bngrad.keras.conversions import Conversions
from bngrad.keras.custom_gradients import taking_over_gradients
from bngrad.keras.loss import cannot_be_called, loss_of
from bngrad.keras.marks import Marks, marking
from bngrad.keras.packages import import_exporter
from bngrad.keras.places import Places
from bngrad.keras.refusals import refuse_ops, refusing_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bngrad.keras.data import DataInputs

OPSET = 17
LOSS = "loss"
"""The name of the output with the loss."""


class Converted(NamedTuple):
    """A converted call."""

    model: ir.Model
    """Its inputs are the data by name, and ``state_0``, ``state_1``, ... for the variables that it reads."""
    places: Places
    marks: Marks


def convert_call(
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    data: DataInputs,
    variables: Sequence[Any],
    *,
    training: bool,
    with_loss: bool = True,
) -> Converted:
    """Converts a call of a model.

    Args:
        model: The Keras model.
        loss: See `bngrad.keras.export`.
        data: The data.
        variables: The variables that become inputs.
        training: Whether the model is called with ``training=True``; else batch norms that use the statistics of
            the batch are in primitives, and dropouts are Identity.
        with_loss: Whether the loss is an output.

    Raises:
        ModelError: The model or the loss cannot be called, or changes a variable.
        UnsupportedNodeError: tf2onnx does not convert an op, or loses its gradient.
    """
    keras, tf, tf2onnx = import_exporter()
    marks, places = Marks(training=training), Places(tf)

    def traced(*tensors: Any) -> dict[str, Any]:  # noqa: ANN401
        marks.clear()
        places.clear()
        values, arrays = tensors[: len(variables)], tensors[len(variables) :]
        x, y = data.structured(arrays)
        mapping = list(zip(variables, values, strict=True))
        with (
            refusing_changes(keras, model, mapping, marks, places),
            marking(marks),
            taking_over_gradients(tf, marks, values),
            places.watching(keras),
            _inlining(tf),
        ):
            y_pred = model(x, training=training)
            outputs = {name: tf.identity(value) for name, value in data.named("y_pred", y_pred).items()}
            if with_loss:
                with places.within("the loss"):
                    outputs[LOSS] = loss_of(keras, tf, model, loss, x, y, y_pred, training=training)
        return outputs

    def forward(*tensors: Any) -> dict[str, Any]:  # noqa: ANN401
        with marks.noting_refusals():
            return traced(*tensors)

    specs = [
        *(tf.TensorSpec(v.shape, v.dtype, f"state_{number}") for number, v in enumerate(variables)),
        *(tf.TensorSpec(shape, dtype, f"data_{number}") for number, (shape, dtype) in enumerate(data.specs)),
    ]
    function = tf.function(forward, autograph=False)  # as in Keras
    try:
        concrete = function.get_concrete_function(*specs)
    except Exception as error:
        if marks.refusals:
            raise marks.refusals[0] from None
        raise cannot_be_called(model, error) from error
    refuse_ops(concrete, places, variables)
    conversions = Conversions()
    with _quiet():
        proto, _ = tf2onnx.convert.from_function(
            function,
            specs,
            opset=OPSET,
            custom_rewriter=conversions.rewriters,
            extra_opset=[tf2onnx.utils.make_opsetid(stop_gradient.DOMAIN, 1)],
        )
    conversions.finish()
    result = ir.from_proto(proto)
    _fix_captured(result, concrete)
    _fix_stops(result)
    _refuse_unconverted(result, places)
    marks.resolve(result)
    _name_inputs(result, data)
    result.producer_name, result.producer_version = "bngrad.keras", None
    record_framework(result, "tensorflow")
    return Converted(result, places, marks)


def _fix_captured(model: ir.Model, function: Any) -> None:  # noqa: ANN401
    """Converts the tensors that a function reads besides its arguments to initializers.

    tf2onnx makes them inputs. They are constants of layers, such as the factor of a regularizer.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    captured = [(inner, outer) for outer, inner in function.graph.captures if outer.dtype.name != "resource"]
    for inner, outer in captured:
        if (value := inputs.get(inner.name)) is not None:
            value.const_value = ir.tensor(outer.numpy(), name=inner.name)
            model.graph.inputs.remove(value)
            model.graph.register_initializer(value)


def _fix_stops(model: ir.Model) -> None:
    """Gives every StopGradient its domain, which tf2onnx leaves out in subgraphs, and the model its definition."""
    for node in all_nodes(model):
        if node.op_type == stop_gradient.NAME:
            node.domain = stop_gradient.DOMAIN
    model.opset_imports.pop(stop_gradient.DOMAIN, None)
    stop_gradient.define(model)


def _refuse_unconverted(model: ir.Model, places: Places) -> None:
    for node in all_nodes(model):
        if node.domain == "" and not onnx.defs.has(node.op_type):
            raise UnsupportedNodeError(
                f"{places.of(str(node.name))} has TensorFlow's {node.op_type} ({node.name!r}), which tf2onnx does "
                "not convert"
            )


def _name_inputs(model: ir.Model, data: DataInputs) -> None:
    names = {f"data_{number}": name for number, name in enumerate(data.names)}
    for value in model.graph.inputs:
        name = names.get(str(value.name))
        if name is None:
            continue
        value.name = name
        if data.dynamic_batch and value.shape is not None:
            value.shape = ir.Shape(["batch", *list(value.shape)[1:]])


@contextmanager
def _inlining(tf: Any) -> Iterator[None]:  # noqa: ANN401
    """Disables `tf.function` as a decorator within the block, as of Keras's grouped convolution."""
    function = tf.function

    def plain(called: Any = None, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        return called if called is not None else lambda decorated: decorated

    tf.function = plain
    try:
        yield
    finally:
        tf.function = function


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences tf2onnx, which logs the errors that `_refuse_unconverted` raises."""
    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
