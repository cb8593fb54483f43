"""`rewrite`, `differentiate`, `finalize`, `inspect` and `save` for every kind of model that a caller may have.

The overload of ModelProto comes first: without protobuf's type stubs its base class is Any, and a type checker
takes the first overload for it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, get_args, overload

import numpy as np
import onnx_ir as ir

from bngrad.arguments import require_choice
from bngrad.errors import warn
from bngrad.io.external_data import ExternalData
from bngrad.io.files import as_ir, check_output, to_proto
from bngrad.io.files import save as save_ir
from bngrad.passes import pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from bngrad.autodiff.running_statistics import SharedStatistics
    from bngrad.inspection.inspect import Inspection
    from bngrad.passes.pipeline import Target
    from bngrad.training.differentiate import Builder, DifferentiationTarget, RunningVariance


@overload
def rewrite(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    target: Target = ...,
    functions: bool = ...,
    fuse: bool = ...,
) -> onnx.ModelProto: ...
@overload
def rewrite(model: ir.Model, *, target: Target = ..., functions: bool = ..., fuse: bool = ...) -> ir.Model: ...


def rewrite(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    target: Target = "stock",
    functions: bool = True,
    fuse: bool = True,
) -> onnx.ModelProto | ir.Model:
    """Makes every batch norm of a training graph an op of ``bngrad``, and its other training ops standard ONNX.

    Args:
        model: A training graph: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not changed.
        target: ``stock``: everything in the result runs on any ONNX Runtime. ``training``: only batch norm is
            rewritten, the other training ops stay for a training build.
        functions: Whether to embed the ops' definitions, so that the result runs where nothing is registered.
        fuse: Whether, for ``stock``, to make one op of a ReLU's gradient and the batch norm's behind it.

    Returns:
        The rewritten model, of the kind that came in; for a path an `onnx.ModelProto`.

    Raises:
        InputError: The model cannot be read, or there is no such target.
        ModelError: It is no model, there is no batch norm to rewrite, or the result does not pass onnx's checker.
        UnsupportedNodeError: A node cannot be rewritten.
    """
    result = pipeline.rewrite(as_ir(model), target=target, functions=functions, fuse=fuse).model
    return result if isinstance(model, ir.Model) else to_proto(result)


@overload
def differentiate(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    loss: str | None = ...,
    wrt: Sequence[str] | None = ...,
    frozen: Sequence[str] = ...,
    training: Sequence[str] = ...,
    running_variance: RunningVariance | None = ...,
    shared_statistics: SharedStatistics = ...,
    builder: Builder = ...,
    target: DifferentiationTarget = ...,
    functions: bool = ...,
    fuse: bool = ...,
) -> onnx.ModelProto: ...
@overload
def differentiate(
    model: ir.Model,
    *,
    loss: str | None = ...,
    wrt: Sequence[str] | None = ...,
    frozen: Sequence[str] = ...,
    training: Sequence[str] = ...,
    running_variance: RunningVariance | None = ...,
    shared_statistics: SharedStatistics = ...,
    builder: Builder = ...,
    target: DifferentiationTarget = ...,
    functions: bool = ...,
    fuse: bool = ...,
) -> ir.Model: ...


def differentiate(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    *,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Sequence[str] = (),
    running_variance: RunningVariance | None = None,
    shared_statistics: SharedStatistics = "separate",
    builder: Builder = "bngrad",
    target: DifferentiationTarget = "stock",
    functions: bool = True,
    fuse: bool = True,
) -> onnx.ModelProto | ir.Model:
    """Makes a training graph of a forward model.

    The gradient with respect to ``name`` is the output ``name_grad``. Weights and running statistics become inputs
    whose values in the model are their defaults; the new running statistics become outputs. The model's metadata
    says which output is what: `read_training_graph`.

    Args:
        model: A forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not changed.
        loss: The name of a float scalar; by default the only one among the outputs.
        wrt: Names of inputs and initializers; by default the weights.
        frozen: Names of batch-norm nodes, or patterns such as ``layer1.*``, that are to use their running
            statistics; the others do what their attribute training_mode says.
        training: The same for those that are to use the batch's statistics. Where both match one, the narrower
            decides: a name before a pattern, and a pattern before one that matches more.
        running_variance: Which variance of the batch, of M elements a channel, the running variance takes in:
            ``biased``, ONNX's rule, or ``unbiased``, that times M / max(M - 1, 1), as PyTorch and TensorFlow do.
            By default ``unbiased`` for a model whose producer is PyTorch, else ``biased``. Batch norms of other
            systems than ONNX keep their system's.
        shared_statistics: What batch norms get that read the same running statistic. ``separate``: each its own,
            the input ``<node>/running_mean`` or ``<node>/running_var``. ``chain``: one, which each updates in
            turn, as in PyTorch where a module is called several times.
        builder: ``bngrad``: the rules of this package. ``ort``: ONNX Runtime's own gradient builder.
        target: ``stock``: any ONNX Runtime. ``training``: a training build, with the batch norms as ops of
            ``bngrad``. ``ort``: nothing but the dialect of ORT's training build.
        functions: Whether to embed the definitions of our ops, so that it runs where nothing is registered.
        fuse: Whether, for ``stock``, to make one op of a ReLU's gradient and the batch norm's behind it.

    Returns:
        The training graph, of the kind that came in; for a path an `onnx.ModelProto`.

    Raises:
        InputError: The model cannot be read, there is no such running variance, way to share statistics, builder
            or target, a string is given where a sequence of names is expected, or the target ``ort`` is to have
            the unbiased running variance.
        ModelError: A name is wrong, or the model cannot be differentiated.
        UnsupportedNodeError: Nodes on the way have no gradient.
        OracleError: ORT's builder cannot be installed, or fails.

    Warns:
        BngradWarning: The model is probably not what is to be trained: an exporter folded, froze or tied what
            should be trained.
    """
    from bngrad.training.differentiate import differentiate as differentiate_ir  # noqa: PLC0415 - rarely needed

    result = differentiate_ir(
        as_ir(model),
        loss=loss,
        wrt=wrt,
        frozen=frozen,
        training=training,
        running_variance=running_variance,
        shared_statistics=shared_statistics,
        builder=builder,
        target=target,
        functions=functions,
        fuse=fuse,
    )
    warn(result.warnings)
    return result.model if isinstance(model, ir.Model) else to_proto(result.model)


@overload
def finalize(
    model: str | os.PathLike[str] | onnx.ModelProto,
    weights: Mapping[str, NDArray[np.generic]],
    *,
    outputs: Sequence[str] | None = ...,
) -> onnx.ModelProto: ...
@overload
def finalize(
    model: ir.Model, weights: Mapping[str, NDArray[np.generic]], *, outputs: Sequence[str] | None = ...
) -> ir.Model: ...


def finalize(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    weights: Mapping[str, NDArray[np.generic]],
    *,
    outputs: Sequence[str] | None = None,
) -> onnx.ModelProto | ir.Model:
    """Puts trained weights and running statistics into a forward model, for inference.

    Args:
        model: The forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not changed.
        weights: New values by the names of the training graph's inputs: those of initializers, inputs and
            constants, and ``<node>/running_mean`` where batch norms share a running statistic. A running statistic
            may also go by the name of the output that its batch norm gives the new one.
        outputs: Names of the outputs to keep; by default all but running statistics and losses.

    Returns:
        The inference model, of the kind that came in; for a path an `onnx.ModelProto`.

    Raises:
        InputError: A name is unknown or means several things that training keeps apart, a value has another
            shape or type than what it is for, or ``outputs`` is a string.
        ModelError: It is a training graph, no output is left, or one depends on a random node.
    """
    from bngrad.training.finalize import finalize as finalize_ir  # noqa: PLC0415 - rarely needed

    if isinstance(model, ir.Model):
        # The result shares memory with what it is given; a training loop may go on in place.
        copies = {name: np.array(array) for name, array in weights.items()}
        return finalize_ir(model, copies, outputs=outputs).model
    return to_proto(finalize_ir(as_ir(model), weights, outputs=outputs).model)


def inspect(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> Inspection:
    """Lists the batch norms of any model, and what stock ONNX Runtime cannot run of it.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not changed.

    Raises:
        InputError: The model cannot be read.
        ModelError: It is no model.

    Warns:
        BngradWarning: The model is probably not what is to be trained, see `differentiate`.
    """
    from bngrad.inspection.inspect import inspect as inspect_ir  # noqa: PLC0415 - rarely needed

    found = inspect_ir(as_ir(model))
    warn(found.warnings)
    return found


def save(
    model: str | os.PathLike[str] | onnx.ModelProto | ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: ExternalData | None = None,
) -> None:
    """Writes a model to a file, atomically: after an error ``path`` is what it was before.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`; it is not changed.
        path: Where it goes; a file there is replaced.
        external_data: Whether weights are ``copied`` to ``<path>.data``, or those in files ``shared``, which must
            be in the folder of ``path`` or below; by default they are in the model's own file, or copied where
            that would exceed protobuf's 2 GB.

    Raises:
        InputError: The model cannot be read, ``path`` cannot be written or is the model's own file, there is no
            such way of external data, or it cannot be read or shared.
        ModelError: It is no model, or does not fit in one file.
    """
    if external_data is not None:
        require_choice("external data", external_data, get_args(ExternalData))
    destination = check_output(path, source=model if isinstance(model, str | os.PathLike) else None)
    source = as_ir(model)
    save_ir(source.clone() if source is model else source, destination, external_data)
