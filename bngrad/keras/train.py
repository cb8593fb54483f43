"""`export`, `differentiate` and `training_step`: the functions for a Keras model."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bngrad import api
from bngrad.errors import InputError, ModelError, warn
from bngrad.graph.name_messages import phrase
from bngrad.io.files import to_proto
from bngrad.keras.compare import compare_inference, compare_step, require_equal
from bngrad.keras.export import Exported, export_inference, export_model
from bngrad.keras.packages import import_keras
from bngrad.keras.refusals import refuse_constraints
from bngrad.training.optimizers import OPTIMIZERS
from bngrad.training.step import build_step
from bngrad.training.training_step import training_step_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx

    from bngrad.training.optimizers import Optimizer
    from bngrad.training.training_step import TrainingStep
    from bngrad.validation.report import Check


def export(
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    example: Sequence[Any],
    *,
    dynamic_batch: bool = True,
    check: bool = True,
) -> onnx.ModelProto:
    """Exports the forward pass of a Keras model and its loss, in training mode.

    Batch norms are BatchNormalization in training mode, with the momentum, epsilon and biased variance of Keras;
    those with trainable=False are in inference mode. Dropouts are Dropout in training mode. Trainable weights and
    moving statistics are inputs under their `variable.path`, with their values as defaults; other variables, and
    weights that the loss does not depend on, are initializers.

    The model is called with symbolic data, while `BatchNormalization.call`, Keras's dropout and the calls of
    layers, losses and functions with gradients of their own are replaced; another thread must not call a model
    meanwhile. The comparison assigns to the model's variables, and restores them.

    Args:
        model: A built model: functional, Sequential or subclassed.
        loss: A `keras.losses.Loss`, or a function of (y, y_pred) that returns a scalar; the losses of
            `add_loss` and regularizers are added. None for `model.compute_loss`, that is the loss of
            `model.compile`.
        example: ``(x, y)`` as for `model.fit`: arrays, or lists or dicts of arrays.
        dynamic_batch: Whether the first dimension of the data is symbolic.
        check: Whether to compare a step on the example with TensorFlow, and refuse the model if it is wrong.
            Dropouts drop nothing in it.

    Returns:
        The forward model. Its data inputs are ``x`` and ``y``, or those of lists and dicts ``x_0``, ``y_name``;
        its outputs are ``y_pred``, or ``y_pred_0``, and ``loss``.

    Raises:
        InputError: A package is missing, Keras does not run on TensorFlow, or an argument is invalid.
        ModelError: The model cannot be exported, changes variables other than moving statistics, or does not
            compute the same as TensorFlow.
        UnsupportedNodeError: tf2onnx does not convert an op, or loses its gradient.

    Warns:
        BngradWarning: The model overrides a method that is not called, or could not be compared.
    """
    exported = _exported(model, loss, example, dynamic_batch=dynamic_batch, check=check)
    warn(exported.warnings)
    return to_proto(exported.model)


def differentiate(
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    example: Sequence[Any],
    *,
    dynamic_batch: bool = True,
    check: bool = True,
    **options: Any,  # noqa: ANN401
) -> onnx.ModelProto:
    """Builds a training graph from a Keras model: the loss, the gradients, and the new moving statistics.

    Args:
        model: See `export`; so are ``loss``, ``example``, ``dynamic_batch`` and ``check``.
        loss: See `export`.
        example: See `export`.
        dynamic_batch: See `export`.
        check: See `export`.
        options: See `bngrad.differentiate`: ``target`` and others.

    Raises:
        BngradError: See `export` and `bngrad.differentiate`.
    """
    exported = _exported(model, loss, example, dynamic_batch=dynamic_batch, check=check)
    warn(exported.warnings)
    with _naming_layers(exported):
        return to_proto(api.differentiate(exported.model, **exported.options, **options))


def training_step(
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    example: Sequence[Any],
    *,
    optimizer: str | Optimizer = "sgd",
    dynamic_batch: bool = True,
    check: bool = True,
    **options: Any,  # noqa: ANN401
) -> TrainingStep:
    """Builds the training step for a Keras model.

    The evaluation graph, and so the inference model, is the model as Keras calls it with ``training=False``. With
    ``check=True`` it is compared with that on the example, with other moving statistics.

    Args:
        model: See `export`; so are ``loss``, ``example``, ``dynamic_batch`` and ``check``.
        loss: See `export`.
        example: See `export`.
        optimizer: See `bngrad.training_step`. The formulas are those of `torch.optim`: SGD without momentum is
            Keras's, Adam is not. The optimizer of `model.compile` is not read.
        dynamic_batch: See `export`.
        check: See `export`.
        options: See `bngrad.training_step`: ``clip_norm`` and others.

    Raises:
        InputError: See `export`; also, a weight has a constraint.
        BngradError: See `export` and `bngrad.training_step`.
    """
    _require_optimizer(optimizer)
    exported = _exported(model, loss, example, dynamic_batch=dynamic_batch, check=check)
    refuse_constraints([variable for variable in model.trainable_variables if variable.path in exported.weights])
    evaluation = export_inference(model, loss, exported)
    if check:
        _require_equal(compare_inference(model, loss, exported.data, evaluation), "the inference model", exported)
    warn(exported.warnings)
    with _naming_layers(exported):
        step = build_step(
            exported.model, optimizer=optimizer, evaluation=evaluation, **exported.options, **options
        )
    warn(step.warnings)
    return training_step_of(step)


def _exported(model: Any, loss: Any, example: Sequence[Any], *, dynamic_batch: bool, check: bool) -> Exported:  # noqa: ANN401
    exported = export_model(model, loss, example, dynamic_batch=dynamic_batch)
    if check:
        with _naming_layers(exported):
            result = compare_step(model, loss, exported.data, exported.model, exported.options)
        _require_equal(result, "the step", exported)
    return exported


def _require_equal(result: Check, what: str, exported: Exported) -> None:
    require_equal(result, what)
    if result.skipped:
        exported.warnings.append(f"{what} was not compared with TensorFlow: {result.skipped}")


def _require_optimizer(optimizer: Any) -> None:  # noqa: ANN401
    if isinstance(optimizer, import_keras().optimizers.Optimizer):
        classes = phrase([f"bngrad.{kind.__name__}" for kind in OPTIMIZERS.values() if kind.torch], "or")
        raise InputError(
            f"optimizer is Keras's {type(optimizer).__name__}; expected {classes}, whose options are those of "
            "torch.optim, and clip_norm= and accumulate= of the step"
        )


@contextmanager
def _naming_layers(exported: Exported) -> Iterator[None]:
    """Names the layer of a node that an error names."""
    try:
        yield
    except ModelError as error:
        raise type(error)(exported.places.explain(error)) from error
