"""The loss of a forward model that is validated: its own, or a loss function that is appended."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.autodiff.loss_and_wrt import find_loss
from bngrad.errors import ModelError
from bngrad.graph.nodes import all_nodes, is_gradient
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.training.losses import append_loss
from bngrad.validation.gradients import described_training_graph

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.training.options import LossOptions


class WithLoss(NamedTuple):
    """A model with a loss, as far as it has one."""

    model: ir.Model
    loss: str | None
    """The name of the loss; None for the only float scalar of the model."""
    notes: list[str]
    """Notes on the loss function."""
    warnings: list[str]
    """Warnings of probable mistakes."""


def with_loss(model: ir.Model, options: LossOptions) -> WithLoss:
    """Appends a loss function to a model that has no loss.

    A training graph, and a model with one float scalar among its outputs, keep their own, so that one command line
    serves several models; unless a prediction is named.

    Args:
        model: The user's model; it is not changed.
        options: The loss, the loss function and the prediction.

    Raises:
        InputError: A loss and a loss function are given, or a prediction without a loss function.
        ModelError: The loss function does not fit the model; see `append_loss`.
    """
    options.require_one_loss()
    if options.loss_fn is None:
        return WithLoss(model, options.loss, [], [])
    if options.prediction is None and (own := _own_loss(model)) is not None:
        return WithLoss(model, options.loss, [f"{own}: no loss function was appended"], [])
    appended = append_loss(model, options.loss_fn, prediction=options.prediction)
    return WithLoss(appended.model, appended.loss, [], appended.warnings)


def _own_loss(model: ir.Model) -> str | None:
    """Returns the reason why a model needs no loss function; None if it needs one."""
    if described_training_graph(model) is not None or any(map(is_gradient, all_nodes(model))):
        return "the model is a training graph"
    typed = model.clone()
    InferTypesPass()(typed)
    try:
        return f"the model has the loss {find_loss(typed, None).name!r}"
    except ModelError:
        return None
