"""MIOpen's batch-norm backward -> BatchNormalizationGrad.

::

    miopenBatchNormalizationBackward(_V2)                                                            any domain
        (x, dy, bnScale, savedMean?, savedInvVariance?, dx?, resultBnScaleDiff?, resultBnBiasDiff?)
        {bn_mode, layout, epsilon, alphaDataDiff, betaDataDiff, alphaParamDiff, betaParamDiff}
        -> (dx, resultBnScaleDiff, resultBnBiasDiff)

    =>  grad, dscale, dbias = bngrad.BatchNormalizationGrad(dy, x, bnScale, mean, inv_std, axes)  {training_mode=1}
        dx                  = alphaDataDiff * grad    + betaDataDiff * the input dx
        resultBnScaleDiff   = alphaParamDiff * dscale + betaParamDiff * the input resultBnScaleDiff
        resultBnBiasDiff    = alphaParamDiff * dbias  + betaParamDiff * the input resultBnBiasDiff

mean and inv_std are savedMean and savedInvVariance if both are given (savedInvVariance *is*
1 / sqrt(variance + epsilon)); otherwise they are the outputs of
bngrad.BatchNormalizationStatistics(x, axes) {epsilon}. The last three inputs are the old contents of the buffers
that the C function writes, and are read if their beta is not 0. The defaults are alpha = 1 and beta = 0.

axes is 0 for bn_mode per_activation, and all dimensions except the channels for spatial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.miopen.form import Form, MiopenNode
from bngrad.passes.imports.miopen.operands import Operands, compute_dtype, typed, wider

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

GRADIENTS = ("resultBnScaleDiff", "resultBnBiasDiff")
"""The outputs with the shape of scale."""

BACKWARD = Form(
    inputs={
        "x": "data",
        "dy": "data",
        "bnScale": "parameter",
        "savedMean": "parameter",
        "savedInvVariance": "parameter",
        "dx": "data",
        "resultBnScaleDiff": "parameter",
        "resultBnBiasDiff": "parameter",
    },
    required=("x", "dy", "bnScale"),
    outputs={"dx": "data", "resultBnScaleDiff": "parameter", "resultBnBiasDiff": "parameter"},
    numbers=("epsilon", "alphaDataDiff", "betaDataDiff", "alphaParamDiff", "betaParamDiff"),
)


class ImportMiopenBackwardPass(RewritePass):
    """Rewrites every miopenBatchNormalizationBackward and miopenBatchNormalizationBackward_V2.

    Matches: x of rank 4 or 5 or of unknown rank, channels first or last, parameters of shapes such as C, 1C11 and
    1CHW. The types of x, dy and parameters may differ. A saved statistic without the other is ignored.
    Refuses: nodes of another form, a nonzero beta without old contents, and a missing epsilon if statistics have
    to be computed.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return node.op_type in ("miopenBatchNormalizationBackward", "miopenBatchNormalizationBackward_V2")

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        return next(_reasons(MiopenNode(node, BACKWARD)), None)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        _rewrite(MiopenNode(node, BACKWARD), context)


def _reasons(node: MiopenNode) -> Iterator[str]:
    yield from node.reasons()
    yield from node.same_type_reasons("dx", like="dy")
    yield from node.blend_reasons(betaDataDiff="dx")
    for name in GRADIENTS:
        # An unused gradient needs no old contents.
        if node.used(name):
            yield from node.blend_reasons(betaParamDiff=name)
    if not node.has("savedMean", "savedInvVariance"):
        yield from node.missing_reasons("epsilon")


def _rewrite(node: MiopenNode, context: Context) -> None:
    data_weights = node.number("alphaDataDiff", 1), node.number("betaDataDiff", 0)
    parameter_weights = node.number("alphaParamDiff", 1), node.number("betaParamDiff", 0)

    dtype = wider(node.present("x").dtype, node.present("dy").dtype)
    operands = Operands(node, context, compute_dtype(dtype) if data_weights != (1, 0) else dtype)
    dtypes = [gradient_dtype(node, name) for name in GRADIENTS]
    scale_dtype = operands.parameter_dtype(node.present("bnScale").dtype, *dtypes)
    if parameter_weights != (1, 0):
        scale_dtype = compute_dtype(scale_dtype)

    x, dy = operands.data("x"), operands.data("dy")
    scale = operands.parameter("bnScale", scale_dtype)
    mean, inv_std = statistics(operands, x)
    grad, *gradients = operands.emit.bngrad(
        "BatchNormalizationGrad", dy, x, scale, mean, inv_std, axes=operands.axes, training_mode=1
    )
    results = {"dx": operands.data_result(grad, "dy", *data_weights, "dx")}
    for name, gradient, result_dtype in zip(GRADIENTS, gradients, dtypes, strict=True):
        if not node.used(name):
            continue
        old = operands.parameter(name, scale_dtype) if parameter_weights[1] and node.has(name) else None
        blended = operands.blend(typed(gradient, scale_dtype), old, *parameter_weights)
        results[name] = operands.parameter_result(blended, "bnScale", result_dtype)
    operands.replace(**results)


def gradient_dtype(node: MiopenNode, name: str, scale: str = "bnScale") -> ir.DataType | None:
    """Returns the type of a parameter's gradient: the declared one, else that of the old contents or of scale."""
    old = node.input(name) if name in node.form.inputs else None
    known = (value.dtype for value in (node.output(name), old) if value is not None and value.dtype is not None)
    return next(known, node.present(scale).dtype)


def statistics(operands: Operands, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Returns the saved mean and inverse standard deviation of a node, or computes those of x."""
    node = operands.node
    if node.has("savedMean", "savedInvVariance"):
        saved = ("savedMean", "savedInvVariance")
        dtype = operands.parameter_dtype(*(node.present(name).dtype for name in saved))
        mean, inv_std = (operands.parameter(name, dtype) for name in saved)
    else:
        mean, inv_std = operands.emit.bngrad(
            "BatchNormalizationStatistics", x, axes=operands.axes, epsilon=node.number("epsilon")
        )
    return mean, inv_std
