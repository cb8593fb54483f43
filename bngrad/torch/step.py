"""`export`, `differentiate`, `training_step` and `compare`: the public functions of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from bngrad.arguments import is_count
from bngrad.errors import InputError, warn
from bngrad.io.files import to_proto
from bngrad.option_fields import takes_keywords, values_of
from bngrad.torch.compare import compare_steps
from bngrad.torch.export import export_inference
from bngrad.torch.forward import Forward
from bngrad.torch.optimizer_groups import kinds_text
from bngrad.torch.optimizers import from_torch, into_step
from bngrad.torch.options import CheckedOptions, ExportOptions, GraphOptions, StepOptions
from bngrad.torch.source import check_source, loss_function, read_source
from bngrad.training.differentiate import differentiate as differentiate_model
from bngrad.training.options import StepOptions as StepOfModel
from bngrad.training.options import UpdateOptions
from bngrad.training.step import build_step
from bngrad.training.training_step import training_step_of
from bngrad.validation.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Unpack

    import onnx

    from bngrad.torch.options import CheckedKeywords, ExportKeywords, GraphKeywords, StepKeywords
    from bngrad.torch.source import ExportResult
    from bngrad.training.optimizers import Optimizer
    from bngrad.training.training_step import TrainingStep

    Loss = Callable[..., torch.Tensor]


@takes_keywords(CheckedOptions)
def export(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401 - any structure of tensors
    **options: Unpack[CheckedKeywords],
) -> onnx.ModelProto:
    """Exports a module with its loss as a forward model in training mode.

    Every batch norm is in the mode that it has in the module. Parameters and buffers keep the names of
    `named_parameters` and `named_buffers`; those of the loss function have the prefix ``loss_fn.``. The parameters
    that require a gradient, and the buffers that the forward pass changes, are inputs with their values as
    defaults; the new value of the buffer ``name`` is the output ``name_new``. The metadata records these names, so
    that `bngrad.differentiate` and ``bngrad step`` need no others. The module, its buffers and the random state
    are not changed.

    Args:
        module: The module, usually after ``module.train()``.
        loss_fn: A function or module that computes the loss, a float scalar, from the module's output and the
            targets; None if the module returns its loss: a scalar, the first of a tuple, ``"loss"`` of a dict, or
            ``.loss``.
        example: The tensors of one batch: ``(inputs, *targets)`` with a loss function, else the inputs. The inputs
            are a tensor, a tuple of positional arguments, or a dict of keyword arguments of the module's forward.
        dynamic_batch: Whether the size of the batch stays symbolic: the first dimension of the first tensor, and
            of all tensors with the same size there.
        dynamic_shapes: The dimensions that stay symbolic, as `torch.export.export` takes them: for each tensor of
            the example a dict such as ``{0: "N", 1: "T"}`` of names, `torch.export.Dim`, ``Dim.AUTO`` or
            ``Dim.DYNAMIC``, or None; in the structure of the example, in a list, or in a dict by the names of the
            inputs. By default the size of the batch.
        input_names: Names for the tensors of the example, in its order. By default, the names of the parameters of
            forward and of the loss function that take them.
        check: Whether to compare a step with PyTorch, and refuse the model if it is wrong. Dropout and draws are
            not random in it; a model that draws from a multinomial distribution is not compared.

    Raises:
        InputError: The example or an argument is invalid, or the loss is not a float scalar.
        ModelError: PyTorch cannot trace the module, or the exported model does not compute the same.
        UnsupportedNodeError: An op cannot be written as ONNX or has no gradient, or the module defines a gradient
            of its own.

    Warns:
        BngradWarning: The module is in evaluation mode, or a symbolic size is fixed.
    """
    source = _source(module, loss_fn, example, CheckedOptions(**options))
    warn(source.exported.warnings)
    return to_proto(source.exported.model)


@takes_keywords(GraphOptions)
def differentiate(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401 - any structure of tensors
    **options: Unpack[GraphKeywords],
) -> onnx.ModelProto:
    """Builds the training graph of a module and its loss: forward and backward pass, without an optimizer.

    The gradient with respect to the parameter ``name`` is the output ``name_grad``; `bngrad.read_training_graph`
    lists all inputs and outputs.

    Args:
        module: See `export`, also for its options.
        loss_fn: See `export`.
        example: See `export`.
        defaults: Whether parameters and buffers keep their current values as defaults of their inputs.
        functions: Whether to embed the definitions of the ops as model-local functions.
        sync: Whether to build the graph of one rank of a distributed run; see `bngrad.differentiate`.

    Raises:
        InputError: See `export`, also for the following errors.
        ModelError: See `export`.
        UnsupportedNodeError: See `export`.

    Warns:
        BngradWarning: See `export`.
    """
    chosen = GraphOptions(**options)
    source = _source(module, loss_fn, example, chosen, sync=chosen.sync)
    graph = differentiate_model(
        source.exported.model, defaults=chosen.defaults, functions=chosen.functions, sync=chosen.sync
    )
    warn(source.exported.warnings + graph.warnings)
    return to_proto(graph.model)


@takes_keywords(StepOptions)
def training_step(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401 - any structure of tensors
    *,
    optimizer: str | Optimizer | torch.optim.Optimizer = "sgd",
    **options: Unpack[StepKeywords],
) -> TrainingStep:
    """Builds the training step of a module: forward pass, backward pass and optimizer in one graph.

    The initial state is the module's: parameters that require a gradient, and buffers that the forward pass
    changes. The evaluation graph is exported from the module in evaluation mode. `load_into` writes a state back.

    Args:
        module: See `export`, also for its options.
        loss_fn: See `export`.
        example: See `export`.
        optimizer: See `bngrad.training_step`; or an optimizer of `torch.optim`, whose parameters, groups,
            hyperparameters and state are copied. Its learning rate is not: pass it to `bngrad.Trainer`.
        layout: See `bngrad.training_step`, also for the following arguments.
        groups: Parameters with a weight decay or a learning rate of their own.
        clip_norm: The largest global norm of the gradients.
        accumulate: The number of calls of one update.
        group_updates: Whether to write the updates of weights with equal options as one op.
        precision: The types to compute in; the comparison with PyTorch is in those of the module.
        init_scale: The first scale of the loss for ``mixed``.
        growth_interval: The number of calls after which it doubles.
        outputs: Further outputs.
        defaults: Whether the initial state is the default of the inputs.
        conv_grad: See `bngrad.training_step`, also for the following argument.
        channels_last: Whether to lay out data with channels last.
        memory: ``lean`` computes batch norms and activations again in the backward pass; a number of bytes as many
            as it takes to run in them, with ``dynamic_batch=False``.
        functions: Whether to embed the definitions of the ops as model-local functions.
        sync: Whether to build the step of one rank of a distributed run; see `bngrad.training_step`.

    Raises:
        InputError: See `export`; also, the optimizer is unknown or has an option that a step does not support.
        ModelError: See `export`; also in evaluation mode.
        UnsupportedNodeError: See `export`.

    Warns:
        BngradWarning: See `export`.
    """
    chosen, torch_optimizer = StepOptions(**options), None
    if isinstance(optimizer, type | tuple | list):
        what = (
            f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
        )
        raise InputError(
            f"optimizer is {what}; expected an instance of torch.optim's {kinds_text()}, or of bngrad's"
        )
    if isinstance(optimizer, torch.optim.Optimizer):
        if chosen.groups:
            raise InputError("groups are given along with an optimizer of torch.optim, which has its own; use one")
        torch_optimizer = from_torch(optimizer, Forward(module, loss_function(loss_fn)).tensors())
    weights = None if torch_optimizer is None else torch_optimizer.weights
    arguments, exported = _source(module, loss_fn, example, chosen, weights=weights, sync=chosen.sync)
    evaluation = export_inference(arguments.forward, arguments.example, exported.sizes)
    update = values_of(UpdateOptions, chosen)
    if torch_optimizer is not None:
        groups = torch_optimizer.groups_of(exported.info.weights or ())
        update |= {"optimizer": torch_optimizer.optimizer, "groups": groups}
    step = build_step(
        exported.model,
        StepOfModel(
            **{"optimizer": optimizer, **update},
            conv_grad=chosen.conv_grad,
            channels_last=chosen.channels_last,
            memory=chosen.memory,
            functions=chosen.functions,
            sync=chosen.sync,
        ),
        evaluation=evaluation.model,
        evaluation_conditions=evaluation.sizes.conditions,
    )
    warn(exported.warnings + step.warnings)
    result = training_step_of(step)
    return result if torch_optimizer is None else into_step(torch_optimizer, result)


@takes_keywords(ExportOptions)
def compare(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401 - any structure of tensors
    *,
    steps: int = 3,
    **options: Unpack[ExportKeywords],
) -> Report:
    """Compares the training graph of a module with PyTorch: the loss, every gradient and every buffer.

    Each is computed by the training graph, by PyTorch, and by PyTorch in float64, from the same state; a step of
    gradient descent leads to the next state. The measure of a tensor is the distance of the training graph from
    float64 in units of PyTorch's own; up to 10 passes. During the comparison, Dropout and draws are deterministic.
    See `bngrad.validation.float32_error`.

    Args:
        module: See `export`, also for its options, except ``check``.
        loss_fn: See `export`.
        example: See `export`.
        steps: The number of steps.

    Raises:
        InputError: See `export`; also, ``steps`` is not positive.
        ModelError: PyTorch cannot trace the module, or cannot run it in float64.
        UnsupportedNodeError: See `export`.

    Warns:
        BngradWarning: See `export`.
    """
    if not is_count(steps, 1):
        raise InputError(f"steps is {steps!r}; expected a number of steps (int), at least 1")
    (forward, batch, trained, *_), exported = read_source(module, loss_fn, example, ExportOptions(**options))
    model = exported.model
    check = compare_steps(forward, batch, model, trained, steps=steps)
    warn(exported.warnings)
    shapes = {name: list(tensor.shape) for name, tensor in zip(batch.names, batch.flat, strict=True)}
    batch_norms = sum(node.op_type == "BatchNormalization" for node in model.graph)
    return Report(
        type(module).__name__,
        {"BatchNormalization": batch_norms} if batch_norms else {},
        f"PyTorch {torch.__version__}",
        ["native"],
        0,
        shapes,
        [check],
        [],
        exported.warnings,
    )


def _source(
    module: torch.nn.Module,
    loss_fn: Loss | None,
    example: Any,  # noqa: ANN401
    options: CheckedOptions,
    *,
    weights: Collection[str] | None = None,
    sync: bool = False,
) -> ExportResult:
    """The exported module, compared with PyTorch unless ``check`` is False."""
    source = read_source(module, loss_fn, example, options, weights=weights, sync=sync)
    if options.check:
        check_source(source)
    return source
