"""The loss of a Keras model as `model.fit` has it."""

from __future__ import annotations

from typing import Any

from bngrad.errors import InputError, ModelError


def loss_of(
    keras: Any,  # noqa: ANN401
    tf: Any,  # noqa: ANN401
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    x: Any,  # noqa: ANN401
    y: Any,  # noqa: ANN401
    y_pred: Any,  # noqa: ANN401
    *,
    training: bool,
) -> Any:  # noqa: ANN401
    """Returns the loss of predictions, with the losses that the model adds.

    Raises:
        InputError: The loss is not a function, or its result is not a scalar.
    """
    if loss is None:
        return model.compute_loss(x=x, y=y, y_pred=y_pred, training=training)
    if not callable(loss):
        raise InputError(
            f"loss is {loss!r}; expected a keras.losses.Loss, a function of (y, y_pred), or None for the loss "
            "that model.compile was given"
        )
    total = tf.convert_to_tensor(loss(y, y_pred))
    if total.shape.rank != 0:
        raise InputError(f"the loss has {total.shape.rank} dimensions; expected a scalar, such as their mean")
    added = [keras.ops.sum(keras.ops.cast(term, keras.config.floatx())) for term in model.losses]
    return keras.ops.sum([total, *added], axis=0) if added else total


def cannot_be_called(model: Any, error: Exception) -> ModelError:  # noqa: ANN401
    """Returns the error to raise for one of Keras or TensorFlow in the model or the loss."""
    reason = " ".join(str(error).split())
    number = "None values not supported" in reason or "NoneType" in reason
    advice = "; if it computes with the size of the batch as a number, pass dynamic_batch=False" if number else ""
    return ModelError(f"the model {model.name!r} or its loss cannot be called on the example: {reason}{advice}")
