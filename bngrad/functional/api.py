"""The public functions of `bngrad.functional`: each takes a model, and returns one in which nothing is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import onnx_ir as ir

from bngrad.arguments import require_names
from bngrad.functional import jacobian as jacobian_ir
from bngrad.functional import products
from bngrad.io.files import as_ir, to_proto
from bngrad.passes.check import check
from bngrad.training.options import DifferentiateOptions

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import onnx

    Source = str | os.PathLike[str] | onnx.ModelProto | ir.Model
    Training = Sequence[str] | Literal["auto"]


def vjp(
    model: Source,
    *,
    outputs: Sequence[str] | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Training = (),
    functions: bool = True,
) -> onnx.ModelProto | ir.Model:
    """Builds a model with the product of a vector and the Jacobian: the gradient without a loss.

    It has an input ``<output>_seed`` for each output, of its type and shape, and an output ``<name>_grad`` for
    each name in ``wrt``, of its type and shape: the sum over the outputs y of J^T y_seed. The model's outputs
    stay.

    Args:
        model: A forward model: a path, an `onnx.ModelProto` or an `onnx_ir.Model`. It is not modified.
        outputs: The outputs to differentiate. By default, all floats that are not running statistics.
        wrt: Inputs and initializers to differentiate with respect to. By default, the float inputs without a
            default value that the outputs depend on.
        frozen: Batch norms that use their running statistics; see `differentiate`.
        training: Batch norms that use the statistics of the batch; see `differentiate`.
        functions: Whether to embed the definitions of the ops of ``bngrad``.

    Returns:
        The model, of the same type as ``model``; an `onnx.ModelProto` if ``model`` is a path. It can be
        differentiated again.

    Raises:
        InputError: The model cannot be read, or a string is given instead of a sequence of names.
        ModelError: A name is not in the model, or the name of a new input or output is taken; or nothing that the
            outputs depend on is left.
        UnsupportedNodeError: Nodes between the outputs and ``wrt`` have no gradient.
    """
    require_names(outputs=outputs, wrt=wrt)
    result, _, _ = products.vjp(as_ir(model), outputs, wrt, _options(frozen, training, functions=functions))
    return _of_type(result, model)


def jvp(
    model: Source,
    *,
    outputs: Sequence[str] | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Training = (),
    functions: bool = True,
) -> onnx.ModelProto | ir.Model:
    """Builds a model with the product of the Jacobian and a vector: the derivative in a direction.

    It has an input ``<name>_tangent`` of the type and shape of each name in ``wrt``, and an output
    ``<output>_tangent`` for each output: the sum over x in ``wrt`` of J x_tangent. The outputs of the model stay.

    Args:
        model: See `vjp`; so are the other arguments.
        outputs: The outputs to differentiate.
        wrt: Inputs and initializers to differentiate with respect to.
        frozen: Batch norms that use their running statistics.
        training: Batch norms that use the statistics of the batch.
        functions: Whether to embed the definitions of the ops of ``bngrad``.

    Raises:
        InputError: As `vjp`.
        ModelError: As `vjp`.
        UnsupportedNodeError: As `vjp`; or a node of the backward pass has no gradient.
    """
    require_names(outputs=outputs, wrt=wrt)
    result = products.jvp(as_ir(model), outputs, wrt, _options(frozen, training, functions=functions))
    return _of_type(result, model)


def hvp(
    model: Source,
    *,
    loss: str | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Training = (),
    functions: bool = True,
) -> onnx.ModelProto | ir.Model:
    """Builds a model with the product of the Hessian of a loss and a vector.

    It has an input ``<name>_vector`` and the outputs ``<name>_grad`` and ``<name>_hvp`` for each name in ``wrt``,
    of its type and shape. Where the loss has a kink, as at a ReLU of 0, the product is that of one side.

    Args:
        model: A forward model with a loss; see `vjp`.
        loss: The name of the float scalar to differentiate. By default, the only float scalar among the outputs.
        wrt: Inputs and initializers to differentiate with respect to. By default, the weights.
        frozen: Batch norms that use their running statistics; see `differentiate`.
        training: Batch norms that use the statistics of the batch; see `differentiate`.
        functions: Whether to embed the definitions of the ops of ``bngrad``.

    Raises:
        InputError: As `vjp`.
        ModelError: As `vjp`.
        UnsupportedNodeError: As `jvp`.
    """
    require_names(wrt=wrt)
    result = products.hvp(as_ir(model), loss, wrt, _options(frozen, training, functions=functions))
    return _of_type(result, model)


def jacobian(
    model: Source,
    *,
    output: str | None = None,
    wrt: Sequence[str] | None = None,
    frozen: Sequence[str] = (),
    training: Training = (),
    functions: bool = True,
) -> onnx.ModelProto | ir.Model:
    """Builds a model with the Jacobian of an output, one backward pass for each of its elements.

    It has an output ``<name>_jacobian`` for each name in ``wrt``: the dimensions of the output, then those of the
    value. The passes are the steps of a Scan, so the model is as large as that of `vjp`.

    Args:
        model: See `vjp`; so are the other arguments.
        output: The output to differentiate. By default, the only float that is not a running statistic.
        wrt: Inputs and initializers to differentiate with respect to.
        frozen: Batch norms that use their running statistics.
        training: Batch norms that use the statistics of the batch.
        functions: Whether to embed the definitions of the ops of ``bngrad``.

    Raises:
        InputError: As `vjp`.
        ModelError: As `vjp`; or the model has several float outputs and none is named.
        UnsupportedNodeError: As `vjp`.
    """
    require_names(wrt=wrt)
    result = jacobian_ir.jacobian(as_ir(model), output, wrt, _options(frozen, training, functions=functions))
    return _of_type(result, model)


def _options(frozen: Sequence[str], training: Training, *, functions: bool) -> DifferentiateOptions:
    return DifferentiateOptions(frozen=frozen, training=training, functions=functions)


def _of_type(result: ir.Model, source: Source) -> onnx.ModelProto | ir.Model:
    """Checks a result, and returns it in the type of the model that it was made of."""
    if isinstance(source, ir.Model):
        check(result, source)
        return result
    check(result, as_ir(source))
    return to_proto(result)
