"""Makes a forward model of a Keras model and its loss in training mode, by tf2onnx."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from bngrad.autodiff import stop_gradient
from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.graph.framework import record_framework
from bngrad.graph.name_messages import listed
from bngrad.graph.nodes import all_nodes
from bngrad.graph.subgraphs import subgraphs
from bngrad.keras.conversions import Conversions
from bngrad.keras.custom_gradients import taking_over_gradients
from bngrad.keras.data import DataInputs
from bngrad.keras.loss import cannot_be_called, loss_of
from bngrad.keras.marks import Marks, marking
from bngrad.keras.packages import import_exporter
from bngrad.keras.places import Places
from bngrad.keras.refusals import methods_not_called, refuse_layers, refuse_ops, refusing_changes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OPSET = 17
LOSS = "loss"
"""The name of the output with the loss."""


class Exported(NamedTuple):
    """A forward model, and what it was made of."""

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
    """Exports a model and its loss; see `bngrad.keras.export`."""
    keras, tf, tf2onnx = import_exporter()
    warnings = methods_not_called(keras, model, loss)
    trainable, others = _variables(keras, model)
    refuse_layers(model)
    data = DataInputs(keras, example, dynamic_batch=dynamic_batch)
    given = [*trainable, *others]
    marks, places = Marks(), Places(tf)

    def traced(*tensors: Any) -> dict[str, Any]:  # noqa: ANN401
        marks.clear()
        places.clear()
        values, arrays = tensors[: len(given)], tensors[len(given) :]
        x, y = data.structured(arrays)
        mapping = list(zip(given, values, strict=True))
        with (
            refusing_changes(keras, model, mapping, marks, places),
            marking(marks),
            taking_over_gradients(tf, marks, values),
            places.watching(keras),
            _inlining(tf),
        ):
            y_pred = model(x, training=True)
            with places.within("the loss"):
                total = loss_of(keras, tf, model, loss, x, y, y_pred)
        named = data.named("y_pred", y_pred)
        return {**{name: tf.identity(value) for name, value in named.items()}, LOSS: total}

    def forward(*tensors: Any) -> dict[str, Any]:  # noqa: ANN401
        with marks.noting_refusals():
            return traced(*tensors)

    specs = [
        *(tf.TensorSpec(v.shape, v.dtype, f"state_{number}") for number, v in enumerate(given)),
        *(tf.TensorSpec(shape, dtype, f"data_{number}") for number, (shape, dtype) in enumerate(data.specs)),
    ]
    function = tf.function(forward, autograph=False)  # as in Keras
    try:
        concrete = function.get_concrete_function(*specs)
    except Exception as error:
        if marks.refusals:
            raise marks.refusals[0] from None
        raise cannot_be_called(model, error) from error
    refuse_ops(concrete, places, given)
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
    data_names = {f"data_{number}": name for number, name in enumerate(data.names)}
    _name_inputs(result, data_names, dynamic_batch=dynamic_batch)
    weights = _name_state(result, given, {variable.path for variable in trainable})
    result.producer_name, result.producer_version = "bngrad.keras", None
    record_framework(result, "tensorflow")
    return Exported(result, data, places, weights, warnings)


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


def _name_inputs(model: ir.Model, names: dict[str, str], *, dynamic_batch: bool) -> None:
    for value in model.graph.inputs:
        name = names.get(str(value.name))
        if name is None:
            continue
        value.name = name
        if dynamic_batch and value.shape is not None:
            value.shape = ir.Shape(["batch", *list(value.shape)[1:]])


def _name_state(model: ir.Model, variables: Sequence[Any], trainable: set[str]) -> list[str]:
    """Gives the weights their paths and values; those that no step changes are no inputs. Returns the others.

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
    """The values that a loss depends on, but for what is behind a StopGradient."""
    found, waiting = {loss}, [loss]
    while waiting:
        node = waiting.pop().producer()
        if node is None or stop_gradient.is_stop(node):
            continue
        inner = [value for graph in subgraphs(node) for one in graph.all_nodes() for value in one.inputs]
        new = {value for value in (*node.inputs, *inner) if value is not None} - found
        found |= new
        waiting += new
    return found


@contextmanager
def _inlining(tf: Any) -> Iterator[None]:  # noqa: ANN401
    """Calls functions as they are that the block decorates with `tf.function`, as Keras's grouped convolution."""
    function = tf.function

    def plain(called: Any = None, *_: Any, **__: Any) -> Any:  # noqa: ANN401
        return called if called is not None else lambda given: given

    tf.function = plain
    try:
        yield
    finally:
        tf.function = function


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
