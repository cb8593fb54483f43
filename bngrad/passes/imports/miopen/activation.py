"""MIOpen's fused backward of a batch norm followed by an activation -> the gradient ops of ``bngrad``.

::

    miopenFusionBatchNormActivBackward                                                               any domain
        (dy, x, y?, bnScale, bnBias, savedMean, savedInvVariance)
        {bn_mode, layout, activ_mode, activ_alpha, activ_beta, activ_gamma}
        -> (dx, resultBnScaleDiff, resultBnBiasDiff)

In MIOpen this is a fusion plan, not a function: miopenCreateOpBatchNormBackward and
miopenCreateOpActivationBackward. The node has the arguments of both. dy is the gradient with respect to the
activation's output y, which is computed if it is omitted. The activation's input is
u = bnScale * (x - savedMean) * savedInvVariance + bnBias.

::

    RELU with y  =>  bngrad.BatchNormalizationReluGrad(dy, y, x, bnScale, savedMean, savedInvVariance, axes)
    others       =>  bngrad.BatchNormalizationGrad(g, x, bnScale, savedMean, savedInvVariance, axes)

`miopen.activation_gradients` lists the activations and defines g, the gradient with respect to u.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.errors import InputError
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.miopen.activation_gradients import ACTIVATIONS, ActivationInputs, activation_name
from bngrad.passes.imports.miopen.backward import GRADIENTS, gradient_dtype, statistics
from bngrad.passes.imports.miopen.form import Form, MiopenNode
from bngrad.passes.imports.miopen.operands import Operands, compute_dtype, typed, wider

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

FUSED_BACKWARD = Form(
    inputs={
        "dy": "data",
        "x": "data",
        "y": "data",
        "bnScale": "parameter",
        "bnBias": "parameter",
        "savedMean": "parameter",
        "savedInvVariance": "parameter",
    },
    required=("dy", "x", "bnScale", "bnBias", "savedMean", "savedInvVariance"),
    outputs={"dx": "data", "resultBnScaleDiff": "parameter", "resultBnBiasDiff": "parameter"},
    numbers=("activ_alpha", "activ_beta", "activ_gamma"),
    choices=("bn_mode", "layout", "activ_mode"),
)


class ImportMiopenActivationPass(RewritePass):
    """Rewrites every miopenFusionBatchNormActivBackward.

    Matches: the ten activations; otherwise as `ImportMiopenBackwardPass`.
    Refuses: nodes of another form, an activation without its coefficients, and x of unknown type if the activation
    has to be computed.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return node.op_type == "miopenFusionBatchNormActivBackward"

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        return next(_reasons(MiopenNode(node, FUSED_BACKWARD)), None)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        _rewrite(MiopenNode(node, FUSED_BACKWARD), context)


def _reasons(node: MiopenNode) -> Iterator[str]:
    yield from node.reasons()
    yield from node.same_type_reasons("dx", like="dy")
    yield from node.missing_reasons("activ_mode")
    try:
        activation = _activation(node)
    except InputError as error:
        yield f"its activ_{error}"
        return
    yield from node.missing_reasons(*ACTIVATIONS[activation].coefficients)
    if not _is_single_op(node, activation):
        yield from node.unknown_type_reasons()


def _activation(node: MiopenNode) -> str:
    return activation_name(node.node.attributes["activ_mode"].value)


def _is_single_op(node: MiopenNode, activation: str) -> bool:
    """Whether a single op of ``bngrad`` computes the whole gradient."""
    return activation == "PASTHRU" or (activation == "RELU" and node.has("y"))


def _rewrite(node: MiopenNode, context: Context) -> None:
    activation = _activation(node)
    fused = activation == "RELU" and node.has("y")
    dtype = wider(*(node.present(name).dtype for name in ("x", "dy", *(("y",) if fused else ()))))
    # 16 bits are not precise enough for the gradient with respect to u.
    operands = Operands(node, context, dtype if _is_single_op(node, activation) else compute_dtype(dtype))
    dtypes = [gradient_dtype(node, name) for name in GRADIENTS]
    scale_dtype = operands.parameter_dtype(node.present("bnScale").dtype, *dtypes)

    x, dy = operands.data("x"), operands.data("dy")
    if fused:
        op_type, incoming = "BatchNormalizationReluGrad", [dy, operands.data("y")]
    else:
        op_type = "BatchNormalizationGrad"
        incoming = [dy if activation == "PASTHRU" else _activation_gradient(operands, activation, x, dy)]
    mean, inv_std = statistics(operands, x)
    grad, *gradients = operands.emit.bngrad(
        op_type,
        *incoming,
        x,
        operands.parameter("bnScale", scale_dtype),
        mean,
        inv_std,
        axes=operands.axes,
        training_mode=1,
    )
    results = {"dx": operands.data_result(grad, "dy")}
    for name, gradient, result_dtype in zip(GRADIENTS, gradients, dtypes, strict=True):
        if node.used(name):
            results[name] = operands.parameter_result(typed(gradient, scale_dtype), "bnScale", result_dtype)
    operands.replace(**results)


def _activation_gradient(operands: Operands, activation: str, x: ir.Value, dy: ir.Value) -> ir.Value:
    """Returns the gradient with respect to u, the activation's input."""
    node, emit, dtype = operands.node, operands.emit, operands.dtype
    assert dtype is not None, "a node with x of unknown type is refused"  # noqa: S101
    centered = emit.op("Sub", x, operands.broadcast("savedMean", dtype))
    xhat = emit.op("Mul", centered, operands.broadcast("savedInvVariance", dtype))
    scaled = emit.op("Mul", xhat, operands.broadcast("bnScale", dtype))
    u = emit.op("Add", scaled, operands.broadcast("bnBias", dtype))
    y = operands.data("y") if node.has("y") else None
    a, b, c = (node.number(f"activ_{which}") for which in ("alpha", "beta", "gamma"))
    return typed(ACTIVATIONS[activation].gradient(ActivationInputs(emit, dtype, dy, u, y, a, b, c)), dtype)
