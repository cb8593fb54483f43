"""The public functions that take a model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`.

The overload for ModelProto comes first: without protobuf's type stubs the base class of ModelProto is Any, and a
type checker then picks the first overload.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack, get_args, overload

import numpy as np
import onnx_ir as ir

from bngrad.arguments import require_choice
from bngrad.errors import warn
from bngrad.io.external_data import ExternalData
from bngrad.io.files import as_ir, to_proto
from bngrad.io.files import save as save_ir
from bngrad.io.writing import check_output
from bngrad.option_fields import takes_keywords
from bngrad.options import RewriteOptions
from bngrad.training.batch_norm_options import BatchNormOptions, RestoreOptions
from bngrad.training.options import DifferentiateOptions, StepOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx
    from numpy.typing import ArrayLike, NDArray

    from bngrad.inspection.inspect import Inspection
    from bngrad.options import RewriteKeywords
    from bngrad.training.batch_norm_options import BatchNormKeywords, RestoreKeywords
    from bngrad.training.options import DifferentiateKeywords, StepKeywords
    from bngrad.training.training_step import TrainingStep


@overload
def rewrite(
    model: str | os.PathLike[str] | onnx.ModelProto, **options: Unpack[RewriteKeywords]
) -> onnx.ModelProto: ...
@overload
def rewrite(model: ir.Model, **options: Unpack[RewriteKeywords]) -> ir.Model: ...


@takes_keywords(RewriteOptions)
def rewrite(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, **options: Unpack[RewriteKeywords]
) -> onnx.ModelProto | ir.Model:
    """Converts a training graph: batch norms to ops of ``bngrad``, other training ops to standard ONNX.

    Gradient nodes of ``ai.onnx.preview.training`` are replaced by the nodes of the gradients.

    Args:
        model: A training graph: a path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        target: ``stock``: the result runs on any ONNX Runtime. ``training``: only batch norms are rewritten; the
            other training ops are kept and need a training build.
        functions: Whether to embed the definitions of the ops as model-local functions, so that the result runs
            without the native library.
        fuse: Whether to fuse a ReLU gradient with the batch-norm gradient that follows it. Used by ``stock`` only.
        conv_grad: Whether to write the gradients of each Conv as an op, ConvGrad, for systems that have a kernel
            of it. The result needs ONNX Runtime 1.27, and the functions. Used by ``stock`` only.
        channels_last: Whether to lay out the data of convolutions and batch norms with channels last, which is
            faster on NVIDIA GPUs; implies ``conv_grad``. Used by ``stock`` only.
        memory: ``lean`` computes the results of batch norms and activations again in the backward pass, instead of
            keeping them; the results are the same. ``full`` keeps them. Used by ``stock`` only. A number of bytes
            (int), or a string such as ``"2GB"`` or ``"700MiB"``, computes only as many again as it takes to run in
            them, on a CPU with the native library; it requires ``stock`` and inputs of known sizes.
        recognize: Whether to replace batch norms that are spelled in primitives, forward and backward.
        sync: Whether training batch norms use the statistics of the whole batch of a distributed run. The loss and
            the gradients stay those of one rank: with batches of equal size, average the gradients over the ranks.
            So does what the graph itself computes of the size of the batch, such as M / (M - 1) of a running
            variance in primitives. Requires ``stock``.

    Returns:
        The rewritten model, of the same type as ``model``; an `onnx.ModelProto` if ``model`` is a path.

    Raises:
        InputError: The model cannot be read, ``target`` is unknown, ``memory`` is malformed or too little, or
            ``sync`` is combined with another target than ``stock``.
        ModelError: The model is invalid or has no batch norm to rewrite, or the result does not pass onnx's
            checker.
        UnsupportedNodeError: A node cannot be rewritten.
    """
    from bngrad.autodiff.gradient_nodes import rewrite as rewrite_ir  # noqa: PLC0415 - rarely needed

    rewritten = rewrite_ir(as_ir(model), **options)
    return rewritten.model if isinstance(model, ir.Model) else to_proto(rewritten.model)


@overload
def differentiate(
    model: str | os.PathLike[str] | onnx.ModelProto, **options: Unpack[DifferentiateKeywords]
) -> onnx.ModelProto: ...
@overload
def differentiate(model: ir.Model, **options: Unpack[DifferentiateKeywords]) -> ir.Model: ...


@takes_keywords(DifferentiateOptions)
def differentiate(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, **options: Unpack[DifferentiateKeywords]
) -> onnx.ModelProto | ir.Model:
    """Builds the training graph of a forward model.

    The gradient with respect to ``name`` is the output ``name_grad``. Weights and running statistics become inputs
    with their current values as defaults; the updated running statistics become outputs. The model's metadata
    records the role of each input and output; `read_training_graph` reads it.

    Args:
        model: A forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        loss: The name of the float scalar to differentiate. By default, the only float scalar among the outputs.
        loss_fn: A loss function to append to a model without a loss: its name, such as ``cross_entropy``, or one
            with options, such as ``bngrad.CrossEntropy(label_smoothing=0.1)``. It adds the input ``labels`` or
            ``target`` and the output ``loss``.
        prediction: The value that the loss function is computed of. By default, the only float output.
        wrt: Names of inputs and initializers to differentiate with respect to. By default, the weights.
        stop_gradient: Names of inputs, initializers and computed values that no gradient flows through. They are
            constants for the gradients, and keep their values.
        straight_through: Whether DequantizeLinear after QuantizeLinear or DynamicQuantizeLinear has the gradient
            of the identity where the integers are within their range, as fake quantization has in PyTorch. If
            not, its gradient is 0.
        frozen: Names of batch-norm nodes, or patterns such as ``layer1.*``, that use their running statistics.
            Batch norms that neither ``frozen`` nor ``training`` matches follow their attribute training_mode, or,
            in a file of ``torch.onnx.export(dynamo=True)``, the mode that they had in PyTorch.
        training: Names or patterns of batch-norm nodes that use the statistics of the batch. If both ``frozen``
            and ``training`` match a node, the more specific one wins: a name over a pattern, and a pattern that
            matches fewer nodes over one that matches more. ``"auto"`` refuses a model that does not record the
            mode that a batch norm in inference mode had in PyTorch.
        running_variance: The batch variance that updates the running variance: ``biased``, as ONNX specifies, or
            ``unbiased``, which is M / max(M - 1, 1) times as large for M elements per channel, as in PyTorch and
            TensorFlow. The default is ``unbiased`` for models exported from PyTorch and ``biased`` for all others.
            Batch norms of other frameworks' dialects always keep the rule of their framework.
        shared_statistics: How batch norms that read the same running statistic update it. ``separate``: each has
            its own copy, the input ``<node>/running_mean`` or ``<node>/running_var``. ``chain``: they update one
            statistic in sequence, as PyTorch does for a module that is called several times. By default,
            ``chain`` for batch norms that the file records as calls of one PyTorch module, else ``separate``.
        builder: ``bngrad``: the gradient rules of this package. ``ort``: ONNX Runtime's gradient builder.
        target: ``stock``: the result runs on any ONNX Runtime. ``training``: it needs a training build, and its
            batch norms are ops of ``bngrad``. ``ort``: it has only the ops of ORT's training build.
        functions: Whether to embed the definitions of the ops as model-local functions, so that the result runs
            without the native library.
        fuse: Whether to fuse a ReLU gradient with the batch-norm gradient that follows it. Used by ``stock`` only.
        conv_grad: Whether to write the gradients of each Conv as an op, ConvGrad, for systems that have a kernel
            of it. The result needs ONNX Runtime 1.27, and the functions. Used by ``stock`` only.
        channels_last: Whether to lay out the data of convolutions and batch norms with channels last, which is
            faster on NVIDIA GPUs; implies ``conv_grad``. Used by ``stock`` only.
        memory: ``lean`` computes the results of batch norms and activations again in the backward pass, instead of
            keeping them; the results are the same. ``full`` keeps them. Used by ``stock`` only. A number of bytes
            (int), or a string such as ``"2GB"`` or ``"700MiB"``, computes only as many again as it takes to run in
            them, on a CPU with the native library; it requires ``stock`` and inputs of known sizes.
        defaults: Whether weights and running statistics keep their current values as defaults. Without defaults
            they have to be fed, which bindings of languages other than Python need.
        sync: Whether to make the graph of one rank of a distributed run. Each rank feeds its rows of the batch,
            and every rank gets the loss, the gradients and the running statistics of the whole batch. Other
            outputs are those of its rows. The same graph runs on any number of ranks, also on a single one.
            Requires ``bngrad`` and ``stock``.

    Returns:
        The training graph, of the same type as ``model``; an `onnx.ModelProto` if ``model`` is a path.

    Raises:
        InputError: The model cannot be read; an option has an unknown value; ``memory`` is too little; a string is
            given instead of a sequence of names; the target ``ort`` is combined with the unbiased running
            variance; ``loss`` is combined with ``loss_fn``; ``prediction`` is given without it; or ``sync`` is
            combined with another builder than ``bngrad`` or another target than ``stock``.
        ModelError: A name is not in the model, or the model cannot be differentiated.
        UnsupportedNodeError: Nodes between the loss and a weight have no gradient.
        OracleError: ORT's gradient builder cannot be installed, or failed.

    Warns:
        BngradWarning: The model is probably not suitable for training: the exporter folded, froze or tied weights
            that should be trained.
    """
    from bngrad.training.differentiate import differentiate as differentiate_ir  # noqa: PLC0415 - rarely needed

    result = differentiate_ir(as_ir(model), **options)
    warn(result.warnings)
    return result.model if isinstance(model, ir.Model) else to_proto(result.model)


@takes_keywords(StepOptions)
def training_step(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, **options: Unpack[StepKeywords]
) -> TrainingStep:
    """Builds the training step of a forward model: forward pass, backward pass and optimizer in one graph.

    Its inputs are the data, the learning rate and the state: weights, running statistics, what the optimizer
    keeps, and the number of updates. Its outputs are the loss and the new state. The model's metadata records
    which output belongs to which input. It runs on any ONNX Runtime from 1.17 on. The options that are not
    described here are those of `differentiate`.

    Args:
        model: A forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        optimizer: An optimizer such as `AdamW`, or its name, such as ``"adamw"``, for the defaults. The
            formulas are those of `torch.optim`. Weights of 16-bit types are float32 in the state, and the graph
            casts them.
        layout: ``named``: each tensor of the state is an input and an output. ``flat``: the state is one vector.
        groups: Weights with a weight decay or a learning rate of their own.
        clip_norm: Gradients with a larger global norm are scaled to this norm, as
            `torch.nn.utils.clip_grad_norm_` does; the step then has the output ``gradient_norm``. None for none.
        accumulate: The number of calls that make one update of the weights, with the mean of their gradients.
            Running statistics are updated by each call.
        ema: The decay, such as 0.999, of moving averages of weights and running statistics, which the state has
            beside these, as `torch.optim.swa_utils.AveragedModel` with buffers. Evaluation and the inference model
            use them. None for none.
        swa: The update from which on equal averages are kept in place of moving ones, as by `AveragedModel` with
            buffers in each update; the averages before are the weights themselves. None for none.
        swa_every: The number of updates from one that is averaged to the next; None for 1.
        freeze_statistics: The number of updates after which batch norms use their running statistics, which stay
            then; None for never.
        group_updates: Whether to write the updates of weights with equal options as one op, for systems that have
            a kernel of it. The result needs ONNX Runtime 1.27, and the functions.
        precision: ``mixed`` computes in float16 where that is safe, with a scale of the loss that follows the
            gradients; ``mixed-bfloat16`` in bfloat16. The state, the evaluation graph and the inference model have
            the types of the model. ``model`` computes in them, too.
        init_scale: The first scale of the loss for ``mixed``; None for 65536.
        growth_interval: The number of calls with finite gradients after which it doubles; None for 2000.
        outputs: Further outputs: names of outputs of the forward model, and gradients, ``<weight>_grad``.
        values: Initial values by the names of weights and running statistics; by default those of the model.
        defaults: Whether the inputs of the state have the initial state as defaults.
        wrt: The weights to train. By default, all.
        sync: Whether to make the step of one rank of a distributed run, see `differentiate`. The gradients of the
            whole batch are clipped and accumulated, and every rank gets the same new state.
        quantize: The type, ``uint8`` or ``int8``, that activations are rounded to where the inference model has
            integers; weights are rounded to int8, with a scale for each output channel. Batch norms are folded
            into their layers in the inference model. The state has the range of each tensor. None for no rounding.
        symmetric: Whether the zero point of activations is the middle of the integers; for ``quantize``.
        learned_scales: Whether the scales of activations are trained, with the gradient of learned step sizes
            (LSQ) and without the weight decay of the optimizer; for ``quantize``. They begin as the scales of the
            ranges after ``freeze_ranges`` updates. Zero points stay those of the ranges.
        freeze_ranges: The number of updates after which the ranges of activations stay, for ``quantize``; the
            first batch sets them in any case. None for never; for 0 with ``learned_scales``.
        batch_statistics: Whether the evaluation graph and the inference model may use the statistics of the batch,
            as batch norms in primitives do; else such a model is refused.

    Raises:
        InputError: The model cannot be read, an option is invalid, or a weight has no initial value.
        ModelError: A name is not in the model, or the model cannot be differentiated or evaluated.
        UnsupportedNodeError: Nodes between the loss and a weight have no gradient.

    Warns:
        BngradWarning: The model is probably not suitable for training; see `differentiate`.
    """
    from bngrad.training.step import build_step  # noqa: PLC0415 - rarely needed
    from bngrad.training.training_step import training_step_of  # noqa: PLC0415

    step = build_step(as_ir(model), **options)
    warn(step.warnings)
    return training_step_of(step)


@overload
def finalize(
    model: str | os.PathLike[str] | onnx.ModelProto,
    weights: Mapping[str, NDArray[np.generic]],
    *,
    outputs: Sequence[str] | None = ...,
    batch_statistics: bool = ...,
) -> onnx.ModelProto: ...
@overload
def finalize(
    model: ir.Model,
    weights: Mapping[str, NDArray[np.generic]],
    *,
    outputs: Sequence[str] | None = ...,
    batch_statistics: bool = ...,
) -> ir.Model: ...


def finalize(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    weights: Mapping[str, NDArray[np.generic]],
    *,
    outputs: Sequence[str] | None = None,
    batch_statistics: bool = False,
) -> onnx.ModelProto | ir.Model:
    """Writes trained weights and running statistics into a forward model, for inference.

    Args:
        model: The forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        weights: New values by the names of the training graph's inputs: those of initializers, inputs and
            constants, and ``<node>/running_mean`` where batch norms share a running statistic. A running statistic
            can also be given by the name of the batch norm's output that holds its updated value.
        outputs: Names of the outputs to keep. By default, all except running statistics and losses.
        batch_statistics: Whether batch norms in primitives may use the statistics of the batch in inference, too;
            else a model with one is refused.

    Returns:
        The inference model, of the same type as ``model``; an `onnx.ModelProto` if ``model`` is a path.

    Raises:
        InputError: A name is unknown, or is ambiguous because training keeps several statistics of that name; the
            shape or type of a value is wrong; or ``outputs`` is a string.
        ModelError: The model is a training graph, no output is left, or an output depends on a random node or on
            the statistics of the batch.
    """
    from bngrad.training.finalize import finalize as finalize_ir  # noqa: PLC0415 - rarely needed

    if isinstance(model, ir.Model):
        # The result shares memory with its arguments, and a training loop may update its arrays in place.
        copies = {name: np.array(array) for name, array in weights.items()}
        return finalize_ir(model, copies, outputs=outputs, batch_statistics=batch_statistics).model
    result = finalize_ir(as_ir(model), weights, outputs=outputs, batch_statistics=batch_statistics)
    return to_proto(result.model)


@overload
def edit_batch_norms(
    model: str | os.PathLike[str] | onnx.ModelProto, **options: Unpack[BatchNormKeywords]
) -> onnx.ModelProto: ...
@overload
def edit_batch_norms(model: ir.Model, **options: Unpack[BatchNormKeywords]) -> ir.Model: ...


@takes_keywords(BatchNormOptions)
def edit_batch_norms(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, **options: Unpack[BatchNormKeywords]
) -> onnx.ModelProto | ir.Model:
    """Edits the batch norms of a forward model.

    Args:
        model: A forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        batch_norms: Names of BatchNormalization nodes, or patterns such as ``layer1.*``. By default, all.
        mode: ``frozen``: a training step uses the running statistics. ``training``: it uses those of the batch,
            and the model is in training mode. By default, the mode stays.
        momentum: The weight of the old value in a new running statistic, from 0 to 1, as in ONNX: 1 minus
            PyTorch's.
        epsilon: The epsilon; another one changes the function.
        ghost: The number of samples that get statistics of their own in a training step, which updates a running
            statistic with the mean of theirs. 0 for the whole batch.
        fold: Whether to fold batch norms into the Conv, ConvTranspose, Gemm or MatMul before them, or the Conv,
            Gemm or MatMul after them, for inference. Those that `batch_norms` does not name may stay.

    Returns:
        The edited model, without functions, of the same type as ``model``; an `onnx.ModelProto` if ``model`` is a
        path.

    Raises:
        InputError: The model cannot be read, there is no edit, a value is out of its range, or ``fold`` is
            combined with an edit of training.
        ModelError: A name is unknown, a batch norm cannot be edited so, or the model is not a forward model.

    Warns:
        BngradWarning: A batch norm that `batch_norms` does not name cannot be folded.
    """
    from bngrad.training.edit_batch_norms import edit_batch_norms as edit  # noqa: PLC0415 - rarely needed

    result = edit(as_ir(model), BatchNormOptions(**options))
    warn([f"batch norm {name!r} is not folded: {reason}" for name, reason in result.kept.items()])
    return result.model if isinstance(model, ir.Model) else to_proto(result.model)


@overload
def restore_batch_norms(
    model: str | os.PathLike[str] | onnx.ModelProto,
    batches: Iterable[Mapping[str, ArrayLike]],
    **options: Unpack[RestoreKeywords],
) -> onnx.ModelProto: ...
@overload
def restore_batch_norms(
    model: ir.Model, batches: Iterable[Mapping[str, ArrayLike]], **options: Unpack[RestoreKeywords]
) -> ir.Model: ...


@takes_keywords(RestoreOptions)
def restore_batch_norms(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    batches: Iterable[Mapping[str, ArrayLike]],
    **options: Unpack[RestoreKeywords],
) -> onnx.ModelProto | ir.Model:
    """Gives layers of a forward model batch norms with the statistics of data, and the same function.

    The batch norm of a layer has the mean and the biased variance of the layer's output over all batches, in
    inference mode, and the scale and bias with which it changes nothing, up to rounding. The layer loses its bias.
    The new batch norms are in inference mode; ``training`` of `training_step` trains them.

    Args:
        model: A forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        batches: Batches of any sizes: an array for each input that the layers depend on, by name, of the input's
            type and shape. Other inputs, such as labels, may be left out.
        layers: Names of Conv, ConvTranspose and Gemm nodes, or patterns such as ``layer1.*``; a pattern leaves out
            those that have a batch norm. By default, those that the file records as folded.
        epsilon: The epsilon of the new batch norms.

    Returns:
        The model with batch norms, without functions, of the same type as ``model``; an `onnx.ModelProto` if
        ``model`` is a path.

    Raises:
        InputError: The model cannot be read; an array is missing, unknown, or of another type or shape; there is
            no batch; a layer's output is not finite, or has one value for each channel in all batches; or
            ``epsilon`` is not a finite number above 0.
        ModelError: There is no such layer, a layer has a batch norm, or the model is not a forward model.
    """
    from bngrad.training.restore_batch_norms import Restoration  # noqa: PLC0415 - rarely needed

    restored = Restoration(as_ir(model), RestoreOptions(**options)).run(batches).model
    return restored if isinstance(model, ir.Model) else to_proto(restored)


def inspect(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> Inspection:
    """Lists a model's batch norms, the ops that stock ONNX Runtime cannot run, and whether it can be trained.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.

    Raises:
        InputError: The model cannot be read.
        ModelError: The model is invalid.

    Warns:
        BngradWarning: The model is probably not suitable for training; see `differentiate`.
    """
    from bngrad.inspection.inspect import inspect as inspect_ir  # noqa: PLC0415 - rarely needed
    from bngrad.training.dry_run import trainability  # noqa: PLC0415 - as it

    source = as_ir(model)
    path = str(model) if isinstance(model, str | os.PathLike) else "model.onnx"
    inspection = replace(inspect_ir(source), training=trainability(source, path))
    warn(inspection.warnings)
    return inspection


def save(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: ExternalData | None = None,
) -> None:
    """Writes a model to a file, atomically: if it fails, ``path`` is left unchanged.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        path: The file to write. An existing file is replaced.
        external_data: ``copied``: the weights go to ``<path>.data``. ``shared``: weights that already are external
            data stay in their files, which must be in the folder of ``path`` or below it. By default, the weights
            go into the model file itself, or are copied if it would exceed protobuf's limit of 2 GB.

    Raises:
        InputError: The model or its external data cannot be read or shared, ``path`` cannot be written or is the
            model's own file, or ``external_data`` has an unknown value.
        ModelError: The model is invalid, or does not fit in one file.
    """
    if external_data is not None:
        require_choice("external data", external_data, get_args(ExternalData))
    source = as_ir(model)
    destination = check_output(path, model if isinstance(model, str | os.PathLike) else None, source)
    save_ir(source.clone() if source is model else source, destination, external_data)
