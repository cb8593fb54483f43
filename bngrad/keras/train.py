"""The training graph and the training step of a Keras model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bngrad import api
from bngrad.keras.export import LOSS, export

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnx

    from bngrad.training.optimizers import Optimizer
    from bngrad.training.training_step import TrainingStep


def differentiate(
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    example: Sequence[Any],
    *,
    dynamic_batch: bool = True,
    **options: Any,  # noqa: ANN401
) -> onnx.ModelProto:
    """Makes a training graph of a Keras model: the loss, the gradients, and the new moving statistics.

    Args:
        model: See `bngrad.keras.export`; so are ``loss``, ``example`` and ``dynamic_batch``.
        loss: See `bngrad.keras.export`.
        example: See `bngrad.keras.export`.
        dynamic_batch: See `bngrad.keras.export`.
        options: See `bngrad.differentiate`: ``target`` and others.

    Raises:
        BngradError: See `bngrad.keras.export` and `bngrad.differentiate`.
    """
    forward = export(model, loss, example, dynamic_batch=dynamic_batch)
    made: onnx.ModelProto = api.differentiate(forward, **_of_keras(model, forward), **options)
    return made


def training_step(
    model: Any,  # noqa: ANN401
    loss: Any,  # noqa: ANN401
    example: Sequence[Any],
    *,
    optimizer: str | Optimizer = "sgd",
    dynamic_batch: bool = True,
    **options: Any,  # noqa: ANN401
) -> TrainingStep:
    """Builds the training step of a Keras model.

    Args:
        model: See `bngrad.keras.export`; so are ``loss``, ``example`` and ``dynamic_batch``.
        loss: See `bngrad.keras.export`.
        example: See `bngrad.keras.export`.
        optimizer: See `bngrad.training_step`. The formulas are those of `torch.optim`: SGD without momentum is
            Keras's, Adam is not.
        dynamic_batch: See `bngrad.keras.export`.
        options: See `bngrad.training_step`: ``clip_norm`` and others.

    Raises:
        BngradError: See `bngrad.keras.export` and `bngrad.training_step`.
    """
    forward = export(model, loss, example, dynamic_batch=dynamic_batch)
    return api.training_step(forward, optimizer=optimizer, **_of_keras(model, forward), **options)


def _of_keras(model: Any, forward: onnx.ModelProto) -> dict[str, Any]:  # noqa: ANN401
    """The options that the conventions of Keras determine."""
    inputs = {value.name for value in forward.graph.input}
    return {
        "loss": LOSS,
        "wrt": [v.path for v in model.trainable_variables if v.path in inputs],
        "running_variance": "biased",
        # A layer that is called twice updates its statistics twice, one after the other.
        "shared_statistics": "chain",
    }
