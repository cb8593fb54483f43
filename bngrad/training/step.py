"""The training step: forward pass, backward pass and optimizer as one ONNX graph.

::

    data, learning_rate, state -> loss, new state

The state is the weights, the running statistics, the optimizer state, and the number of updates. A loop feeds each
new value to the next call; `step_info` has the metadata that maps outputs to inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedOpsetsPass

from bngrad.arguments import is_count, require_number
from bngrad.autodiff.forward_info import read_forward_info
from bngrad.errors import InputError
from bngrad.graph.graph_digest import graph_digest
from bngrad.passes.check import check, infer_and_check
from bngrad.passes.embed_functions import EmbedFunctionsPass
from bngrad.passes.optimize.memory_budget import within
from bngrad.passes.optimize.order_by_depth import OrderByDepthPass
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.passes.workarounds.present_keys import remove_unused_nodes
from bngrad.training.class_labels import find_class_labels
from bngrad.training.differentiate import differentiate
from bngrad.training.evaluation import evaluation_graph, make_state_inputs
from bngrad.training.flat_state import flatten_state
from bngrad.training.loss_scaling import LossScaling
from bngrad.training.losses import append_loss
from bngrad.training.optim.group_updates import require_group_updates
from bngrad.training.optimizers import ParameterGroup, hyperparameters, make_optimizer
from bngrad.training.options import StepOptions
from bngrad.training.quantize import quantization_of, require_initial
from bngrad.training.state_batch_norms import state_batch_norms
from bngrad.training.step_builder import StepBuilder
from bngrad.training.step_info import Fingerprint, StepInfo, write_step_info
from bngrad.training.weight_averages import WeightAverages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from bngrad.autodiff.size_conditions import Condition
    from bngrad.training.options import StepKeywords

    Array = NDArray[Any]


_SIXTEEN_BITS = {"model": None, "mixed": ir.DataType.FLOAT16, "mixed-bfloat16": ir.DataType.BFLOAT16}
"""The type of 16 bits of each precision."""


class Step(NamedTuple):
    """A training step, its evaluation graph and its initial state."""

    model: ir.Model
    """The step."""
    evaluation: ir.Model
    """The forward model in inference mode with the state as inputs."""
    state: dict[str, Array]
    """The initial state, in the named layout."""
    info: StepInfo
    """The metadata of both models."""
    warnings: list[str]
    """Properties of the model that are probably not intended."""
    notes: list[str]
    """Changes that were made to the forward model."""


def build_step(
    model: ir.Model,
    options: StepOptions = StepOptions(),
    *,
    evaluation: ir.Model | None = None,
    evaluation_conditions: Sequence[Condition] = (),
    **changes: Unpack[StepKeywords],
) -> Step:
    """Builds a training step from a forward model.

    Args:
        model: The forward model; it is not changed.
        options: See `bngrad.training_step`.
        evaluation: The forward model in inference mode, with the names of ``model`` for weights and running
            statistics; by default made from ``model``.
        evaluation_conditions: The conditions that the sizes of symbolic dimensions must fulfil in ``evaluation``.
        changes: Changes of the options.

    Raises:
        InputError: An option is wrong, or a weight has no initial value.
        ModelError: The model cannot be differentiated, or its loss cannot be computed in inference mode, or in
            that mode depends on the statistics of the batch, unless that is accepted.
        UnsupportedNodeError: Nodes between the loss and a weight have no gradient.
    """
    options = replace(options, **changes)
    if options.freeze_statistics is not None and options.memory != "full":
        raise InputError(
            f"--freeze-statistics (freeze_statistics=) cannot be combined with memory {options.memory!r}: batch "
            "norms in bodies are not computed again; expected memory full"
        )
    conditions = tuple(evaluation_conditions)
    return within(
        options.memory,
        lambda kept: _build_step(model, replace(options, memory=kept), evaluation, conditions),
        outputs_first=True,
    )


def _build_step(
    model: ir.Model, options: StepOptions, evaluation: ir.Model | None, evaluation_conditions: Sequence[Condition]
) -> Step:
    optimizer, clip_norm, accumulate = make_optimizer(options.optimizer), options.clip_norm, options.accumulate
    averages = WeightAverages.of(options)
    _require_updates(options)
    scaling = LossScaling.of(options)
    clip_norm = None if clip_norm is None else float(clip_norm)
    options.require_one_loss()
    warnings: list[str] = []
    source = model
    if options.loss_fn is not None:
        # Here, and not in `differentiate`: the evaluation graph has the loss, too.
        model, loss, _, warnings = append_loss(model, options.loss_fn, prediction=options.prediction)
        options = replace(options, loss=loss, loss_fn=None, prediction=None)
    elif evaluation is None:
        model = model.clone()
    of_training = evaluation is None
    if of_training:
        InferTypesPass()(model)  # for the training graph and the evaluation graph
    exported = read_forward_info(model)
    quantization, notes = quantization_of(model, options)
    training_graph = differentiate(
        model,
        options.forward(),
        last=False,
        mixed=_SIXTEEN_BITS[options.precision],
        quantization=quantization,
    )
    builder = StepBuilder(training_graph, options.values or {})
    ranges = () if quantization is None else tuple(quantization.ranges.values())
    require_initial(quantization, builder.initial)
    builder.add_optimizer(
        optimizer,
        groups=options.groups,
        clip_norm=clip_norm,
        accumulate=accumulate,
        averages=averages,
        scaling=scaling,
        group_updates=options.group_updates,
        quantization=quantization,
        freeze_ranges=options.freeze_ranges,
    )
    builder.freeze_statistics(options.freeze_statistics, ranges)
    info = builder.finish(
        options.outputs,
        optimizer=hyperparameters(optimizer),
        clip_norm=clip_norm,
        accumulate=accumulate,
        **({} if averages is None else vars(averages)),
        synchronized=options.sync,
        quantization=quantization,
    )
    result = training_graph.model
    if evaluation is None:
        evaluation = evaluation_graph(
            model,
            builder.initial,
            training_graph.loss,
            batch_statistics=options.batch_statistics,
            in_place=True,
            quantization=quantization,
        )
    else:
        evaluation = evaluation.clone()
        make_state_inputs(evaluation, builder.initial)
    infer_and_check(evaluation, source)
    labels = tuple(class_labels.range for class_labels in find_class_labels(evaluation, info.data, info.loss))
    warnings += [label_range.unchecked for label_range in labels if label_range.unchecked is not None]
    if exported is not None:
        info = replace(
            info,
            size_conditions=(*exported.size_conditions, *exported.training_size_conditions),
            evaluation_size_conditions=tuple(exported.size_conditions if of_training else evaluation_conditions),
        )
    info = replace(
        info,
        fingerprint=_fingerprint(info, result, evaluation),
        labels=labels,
        batch_norms=state_batch_norms(evaluation, info),
    )
    if options.layout == "flat":
        info = flatten_state(info, result, evaluation, builder.updates)
        check(evaluation, source)
    remove_unused_nodes(result)
    EmbedFunctionsPass(options.functions)(result)
    OrderByDepthPass()(result)
    RemoveUnusedOpsetsPass(process_functions=False)(result)
    if options.defaults:
        _give_defaults(
            result, builder.state if info.flat is None else {info.flat.input: info.flatten(builder.state)}
        )
    for step_model in (result, evaluation):
        write_step_info(step_model, info)
    infer_and_check(result, source)
    return Step(
        result,
        evaluation,
        builder.state,
        info,
        warnings + training_graph.warnings,
        notes + training_graph.notes,
    )


def _fingerprint(info: StepInfo, step: ir.Model, evaluation: ir.Model) -> Fingerprint:
    """The fingerprint of a step of the named layout."""
    values = {str(value.name): value for value in step.graph.outputs}
    new = {f"new {name}": values[str(entry.new)] for name, entry in info.state.items()}
    losses = [value for value in evaluation.graph.outputs if value.name == info.loss]
    return Fingerprint(
        graph_digest(step, {"loss": values[info.loss], **new}),
        graph_digest(evaluation, {f"loss {index}": value for index, value in enumerate(losses)}),
    )


def _require_updates(options: StepOptions) -> None:
    require_group_updates(options)
    clip_norm, accumulate, freeze, groups = (
        options.clip_norm,
        options.accumulate,
        options.freeze_statistics,
        options.groups,
    )
    if clip_norm is not None and not 0 < require_number("clip_norm", clip_norm) < np.inf:
        raise InputError(f"clip_norm is {clip_norm}; expected a finite number above 0, or None for no clipping")
    if not is_count(accumulate, 1):
        raise InputError(f"accumulate is {accumulate!r}; expected a number of calls (int), at least 1")
    if freeze is not None and not is_count(freeze, 0):
        raise InputError(f"freeze_statistics is {freeze!r}; expected a number of updates (int), at least 0")
    if freeze is not None and options.sync:
        raise InputError(
            "--freeze-statistics (freeze_statistics=) cannot be combined with --sync (sync=); leave one of them "
            "out"
        )
    if not isinstance(groups, Sequence) or not all(isinstance(group, ParameterGroup) for group in groups):
        raise InputError(f"groups is {groups!r}; expected a sequence of ParameterGroup")


def _give_defaults(model: ir.Model, state: Mapping[str, Array]) -> None:
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, array in state.items():
        inputs[name].const_value = ir.tensor(array, name=name)
        model.graph.register_initializer(inputs[name])
