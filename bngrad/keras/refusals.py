"""Refuses parts of a Keras model that a training step would lose, in its layers and in the graph of its trace.

Messages name the layer.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.graph.name_messages import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bngrad.keras.marks import Marks
    from bngrad.keras.places import Places

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_OWN_GRADIENTS = re.compile("PreventGradient|FakeQuant.*|QuantizeAndDequantize.*|PlaceholderWithDefault")
"""Ops whose gradient is not that of the ONNX ops that tf2onnx writes."""
_CHANGES = re.compile("Assign.*|ResourceScatter.*|ResourceApply.*|ResourceSparseApply.*")
_DRAWS = re.compile(
    ".*Random.*|.*Multinomial.*|.*TruncatedNormal.*|RngSkip|RngReadAndSkip|ParameterizedTruncated.*"
)
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "NumpyFunction")
_BFLOAT16 = 14
"""The number of TensorFlow's type."""


def refuse_layers(model: Any) -> None:  # noqa: ANN401
    """Refuses layers with a form that no step has.

    Raises:
        InputError: A layer is quantized, or computes in bfloat16.
    """
    for layer in model._flatten_layers():  # noqa: SLF001 - no public name lists nested layers
        if mode := getattr(layer, "quantization_mode", None):
            raise InputError(
                f"the layer {layer.path!r} is quantized (quantization_mode={mode!r}), with gradients of its own; "
                "expected layers that are not"
            )
        types = (getattr(layer, "compute_dtype", None), getattr(layer, "variable_dtype", None))
        if "bfloat16" in types:
            raise InputError(
                f"the layer {layer.path!r} computes in bfloat16 (dtype policy {layer.dtype_policy.name!r}), which "
                "tf2onnx writes as float16; expected float32, or mixed_float16"
            )


def refuse_constraints(variables: Sequence[Any]) -> None:
    """Refuses weights that Keras changes after each update.

    Raises:
        InputError: A weight has a constraint, or is set by its gradient.
    """
    for variable in variables:
        if variable.constraint is not None:
            raise InputError(
                f"the weight {variable.path!r} has the constraint {type(variable.constraint).__name__}, which "
                "Keras applies after each update; a step has no constraints: expected kernel_constraint=None and "
                "the like"
            )
        if getattr(variable, "overwrite_with_gradient", False):
            raise InputError(f"the weight {variable.path!r} is set to its gradient; expected one that is trained")


@contextmanager
def refusing_changes(
    keras: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    mapping: Sequence[tuple[Any, Any]],
    marks: Marks,
    places: Places,
) -> Iterator[None]:
    """Gives variables other values, and refuses layers that change one, except metrics.

    Args:
        keras: The module.
        model: The model.
        mapping: Variables, and their values in the block.
        marks: The record of refusals.
        places: The record of layers.

    Raises:
        ModelError: A variable is changed. The moving statistics of marked batch norms are not.
        UnsupportedNodeError: The variable is the state of a generator of random numbers.
    """

    class Scope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
        def add_update(self, update: tuple[Any, Any]) -> None:
            variable = update[0]
            if id(variable) not in {id(metric) for metric in model.metrics_variables}:
                with marks.noting_refusals():
                    raise _of_change(variable, places.here())
            super().add_update(update)

    with Scope(state_mapping=mapping, collect_losses=True):
        yield


def _of_change(variable: Any, where: str) -> ModelError:  # noqa: ANN401
    if variable.name == "seed_generator_state":
        return UnsupportedNodeError(
            f"{where} draws random numbers; only Dropout layers may: remove it, or make the numbers an input of "
            "the model"
        )
    return ModelError(
        f"{where} changes {variable.path!r}; expected the forward pass to change only the moving statistics "
        "of BatchNormalization"
    )


def refuse_ops(function: Any, places: Places, variables: Sequence[Any]) -> None:  # noqa: ANN401
    """Refuses ops of a traced function whose effect a conversion loses.

    Raises:
        ModelError: The function changes or reads a variable by an op, or calls Python.
        UnsupportedNodeError: A gradient is defined by the model, numbers are drawn, or the type is bfloat16.
    """
    for node, name in _nodes(function):
        where = places.of(name)
        if "_gradient_op_type" in node.attr and node.op not in _CALLS:
            raise UnsupportedNodeError(
                f"{where} has a gradient of its own ({node.op} {node.name!r}), which a conversion loses: write it "
                "with ops that have this gradient, and with stop_gradient"
            )
        if _OWN_GRADIENTS.fullmatch(node.op):
            raise UnsupportedNodeError(
                f"{where} has TensorFlow's {node.op} ({node.name!r}), whose gradient a conversion loses: write it "
                "with ops that have this gradient, and with stop_gradient"
            )
        if _DRAWS.fullmatch(node.op):
            raise UnsupportedNodeError(
                f"{where} draws random numbers (TensorFlow's {node.op}, {node.name!r}); only Dropout layers may: "
                "remove it, or make the numbers an input of the model"
            )
        if _CHANGES.fullmatch(node.op):
            raise ModelError(
                f"{where} changes a variable by TensorFlow's {node.op} ({node.name!r}); expected only the "
                "moving statistics of BatchNormalization to change"
            )
        if node.op in _PYTHON:
            raise ModelError(f"{where} calls Python ({node.op} {node.name!r}); expected ops of TensorFlow")
        if any(_BFLOAT16 in (attr.type, *attr.list.type) for attr in node.attr.values()):
            raise UnsupportedNodeError(
                f"{where} computes in bfloat16 ({node.op} {node.name!r}), which tf2onnx writes as float16; "
                "expected float32, or mixed_float16"
            )
    _refuse_captured(function, variables)


def _nodes(function: Any) -> Iterator[tuple[Any, str]]:  # noqa: ANN401
    """Yields the nodes of a traced function and of all that it calls, with the op of the function of each."""
    graph = function.graph.as_graph_def()
    bodies = {definition.signature.name: definition.node_def for definition in graph.library.function}
    waiting = [(node, node.name) for node in graph.node]
    while waiting:
        node, name = waiting.pop()
        yield node, name
        for attribute in node.attr.values():
            for called in (attribute.func.name, *(func.name for func in attribute.list.func)):
                waiting += [(inner, name) for inner in bodies.pop(called, ())]


def _refuse_captured(function: Any, variables: Sequence[Any]) -> None:  # noqa: ANN401
    """Refuses a variable that is read past Keras, whose value would be a constant."""
    captured = [outer for outer, _ in function.graph.captures]
    paths = [variable.path for variable in variables if any(outer is variable.value.handle for outer in captured)]
    if paths:
        raise ModelError(
            f"the model reads {listed(paths)} in a tf.function of its own, which was traced before; expected "
            "layers whose call is not a tf.function"
        )


def methods_not_called(keras: Any, model: Any, loss: Any) -> list[str]:  # noqa: ANN401
    """Returns warnings of methods that `model.fit` calls, the model overrides, and a step does not call.

    Raises:
        InputError: The model overrides `train_step`, and no loss is given.
    """
    overridden = [
        name
        for name in ("train_step", "compute_loss")
        if getattr(type(model), name, None) is not getattr(keras.Model, name)
    ]
    if loss is None and "train_step" in overridden:
        raise InputError(
            f"the model {model.name!r} overrides train_step, which a training step does not call; pass the loss "
            "that it computes, as a function of (y, y_pred)"
        )
    return [
        f"the model {model.name!r} overrides {name}, which is not called: the step has the given loss"
        for name in overridden
        if loss is not None
    ]
