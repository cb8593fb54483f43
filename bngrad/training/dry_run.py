"""A dry run of `step`: whether a model can be trained, with which loss, and by which command."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.forward_info import read_forward_info
from bngrad.autodiff.loss_and_wrt import default_losses
from bngrad.autodiff.metadata import is_built
from bngrad.autodiff.prepare_forward import inlined
from bngrad.autodiff.weights import default_weights
from bngrad.errors import BngradError, ModelError, UnsupportedNodeError
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.same_values import COPIES, origin
from bngrad.inspection.model_warnings import frozen_batch_norms
from bngrad.inspection.trainability import LossChoice, Trainability
from bngrad.opset.known_shapes import known_shape, size_text
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.prepare.raise_opset import RaiseOpsetPass
from bngrad.training.loss.base import typed
from bngrad.training.loss_functions import LOSS_FUNCTIONS
from bngrad.training.losses import find_prediction, predictions
from bngrad.training.step import build_step

if TYPE_CHECKING:
    from bngrad.opset.known_shapes import KnownShape
    from bngrad.training.step import Step

_WITH_CLASSES = (2, 4, 5)
"""The ranks of outputs that commonly have classes in dimension 1: those for samples, pixels and voxels."""

_LARGEST = 1 << 16
"""Elements of a weight that is read."""


def trainability(model: ir.Model, path: str = "model.onnx") -> Trainability | None:
    """Builds the training step of a model with default options, and returns how that went.

    Batch norms that the model alone freezes are put in training mode, if the step can be built so.

    If the model has no loss, the step has the first of the loss functions that its output can take. The gradients
    up to that output do not depend on which.

    Args:
        model: Any model; it is not changed.
        path: The file of the model, for the commands.

    Returns:
        The result; None for a training graph, a training step or its evaluation graph.
    """
    if is_built(model):
        return None
    losses: list[LossChoice] = []
    decided = False
    weights: dict[str, int] = {}
    refusals: list[str] = []
    without_gradient: Counter[str] = Counter()
    model = _with_small_weights(model)
    try:
        forward = RaiseOpsetPass()(inlined(model)).model
        InferTypesPass()(forward)
        weights = {str(value.name): _elements(value) for value in default_weights(forward.graph)}
        losses, decided = _losses(model, forward, path)
        step, losses = _built(model, losses)
        weights = {name: step.state[name].size for name in step.info.names("weight")}
    except BngradError as error:
        refusals = [str(error)]
        if isinstance(error, UnsupportedNodeError):
            refusals = [*error.lines] or refusals
            without_gradient = Counter(error.ops)
    parameters = sum(weights.values())
    return Trainability(losses, decided, len(weights), parameters, refusals, dict(without_gradient))


def _built(model: ir.Model, losses: list[LossChoice]) -> tuple[Step, list[LossChoice]]:
    """Returns the step of a model with the first loss, and the losses with the options that it was built with.

    Raises:
        BngradError: The step cannot be built.
    """
    first = losses[0]
    build = partial(build_step, model, loss=first.loss, loss_fn=first.loss_fn, prediction=first.prediction)
    if frozen_batch_norms(model):
        with suppress(BngradError):
            step = build(training=["*"])
            return step, [replace(choice, command=f"{choice.command} --training '*'") for choice in losses]
    return build(), losses


def _with_small_weights(model: ir.Model) -> ir.Model:
    """Returns a model whose large weights are zeros that need no memory: their values decide nothing."""
    result = model.clone()
    for value in result.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and tensor.size > _LARGEST:
            zeros = np.broadcast_to(np.zeros((), tensor.dtype.numpy()), tensor.shape.numpy())
            value.const_value = ir.Tensor(zeros, dtype=tensor.dtype, name=value.name)
    return result


def _elements(value: ir.Value) -> int:
    shape = known_shape(value) or ()
    return math.prod(size for size in shape if isinstance(size, int))


def _losses(model: ir.Model, forward: ir.Model, path: str) -> tuple[list[LossChoice], bool]:
    """Returns the losses of a model, its own or loss functions of its outputs, and whether the model decides.

    Args:
        model: The user's model.
        forward: Its prepared copy, with types.
        path: The file of the model.

    Raises:
        ModelError: There is none; or the metadata of the model cannot be read.
    """
    file = f"./{path}" if path.startswith("-") else path  # no option
    command = f"bngrad step {shlex.quote(file)} -o step.onnx"
    exported = read_forward_info(model)
    if exported is None:
        own = [str(value.name) for value in default_losses(forward)]
    else:
        own = [] if exported.loss is None else [exported.loss]
    if own:
        options = [f" --loss {shlex.quote(name)}" if len(own) > 1 else "" for name in own]
        losses = [
            LossChoice(name, None, None, "", command + option) for name, option in zip(own, options, strict=True)
        ]
        return losses, len(losses) == 1
    outputs = predictions(forward)
    values = {value.name for node in model.graph for value in node.outputs}
    choices: dict[LossChoice, bool] = {}
    for output in outputs:
        sole = _sole_loss_function(output, values)
        for name, prediction in _loss_functions(output) if sole is None else [sole]:
            if (target := _target(name, prediction)) is not None:
                is_default = len(outputs) == 1 and prediction is output
                option = "" if is_default else f" --prediction {shlex.quote(str(prediction.name))}"
                whole = f"{command} --loss-fn {name}{option}"
                choices.setdefault(LossChoice(None, name, str(prediction.name), target, whole), sole is not None)
    if not choices:
        value = find_prediction(forward, None)
        raise ModelError(
            f"the model has no loss, and no loss function takes its output {typed(value)}; name a loss with "
            "--loss, or a loss function and a value with --loss-fn and --prediction"
        )
    return list(choices), list(choices.values()) == [True]


def _sole_loss_function(output: ir.Value, values: set[str | None]) -> tuple[str, ir.Value] | None:
    """Returns the loss function that the last op of a model implies, and its prediction; None if none does.

    Args:
        output: A float output.
        values: The names of the values of the user's main graph, which ``--prediction`` can name.
    """
    shape, node = known_shape(output), origin(output, COPIES).producer()
    if not shape or node is None or node.domain or not node.inputs or (logits := node.inputs[0]) is None:
        return None
    if node.op_type == "Sigmoid" and logits.name in values:
        return "bce_with_logits", logits
    # The log-softmax of a log-softmax is itself.
    prediction = {"Softmax": logits, "LogSoftmax": output}.get(node.op_type)
    if prediction is None or prediction.name not in values:
        return None
    is_over_classes = int(read_attribute(node, "axis", -1)) in (1, 1 - len(shape))
    return ("cross_entropy", prediction) if is_over_classes else None


def _loss_functions(output: ir.Value) -> list[tuple[str, ir.Value]]:
    """Returns the loss functions that are common for outputs of such a shape, with their prediction."""
    shape, node = known_shape(output) or (None,), origin(output, COPIES).producer()
    names = ["bce_with_logits"] if shape[-1] == 1 else ["cross_entropy"] if len(shape) in _WITH_CLASSES else []
    op = None if node is None else node.op_type
    return [(name, output) for name in (*names, "mse") if op not in LOSS_FUNCTIONS[name].normalizes]


def _target(name: str, prediction: ir.Value) -> str | None:
    """Returns the name, type and shape of a target; None if the loss function does not take the prediction."""
    shape = known_shape(prediction)
    if not shape or prediction.dtype is None:
        return None
    function = LOSS_FUNCTIONS[name]()
    try:
        target: KnownShape = function.target_shape(prediction, shape)
    except ModelError:
        return None
    kind = "labels int64" if function.takes_labels else f"target {prediction.dtype.name.lower()}"
    return f"{kind} {'x'.join(map(size_text, target))}"
