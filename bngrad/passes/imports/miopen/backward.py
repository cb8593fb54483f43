"""MIOpen's batch-norm backward -> BatchNormalizationGrad.

::

    grad, dscale, dbias = bngrad.BatchNormalizationGrad(dy, x, bnScale, mean, inv_std, axes)    {training_mode=1}
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

from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import NUMBER, ForeignOp
from bngrad.passes.imports.miopen.form import (
    MODES,
    MiopenNode,
    blend_reasons,
    form_reasons,
    missing_reasons,
    same_type_reasons,
)
from bngrad.passes.imports.miopen.operands import MiopenOperands, compute_dtype, wider
from bngrad.passes.imports.operands import typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir

    from bngrad.passes.base import Context

OUTPUTS = "dx: dX, resultBnScaleDiff: dscale, resultBnBiasDiff: dbias"
_SAVED = ("mean", "inv_std")
_UNWEIGHTED = (1.0, 0.0)
"""The weights of a result and of its old contents, by default."""


def _reasons(node: MiopenNode) -> Iterator[str]:
    yield from same_type_reasons(node, "dX", like="dY")
    yield from blend_reasons(node, "betaDataDiff", "dX")
    for quantity in ("dscale", "dbias"):
        # An unused gradient needs no old contents.
        if node.used(quantity):
            yield from blend_reasons(node, "betaParamDiff", quantity)
    if not node.has(*_SAVED):
        yield from missing_reasons(node, "epsilon")


def _rewrite(node: MiopenNode, context: Context) -> None:
    of_data = node.number("alphaDataDiff"), node.number("betaDataDiff")
    of_parameters = node.number("alphaParamDiff"), node.number("betaParamDiff")
    dtype = wider(node.present("X").dtype, node.present("dY").dtype)
    operands = MiopenOperands(node, context, dtype if of_data == _UNWEIGHTED else compute_dtype(dtype))
    replace_gradients(operands, "BatchNormalizationGrad", {}, of_data, of_parameters)


def replace_gradients(
    operands: MiopenOperands,
    op_type: str,
    computed: Mapping[str, ir.Value],
    of_data: tuple[float, float] = _UNWEIGHTED,
    of_parameters: tuple[float, float] = _UNWEIGHTED,
) -> None:
    """Replaces a node by a gradient op of ``bngrad``.

    Args:
        operands: The operands of the node.
        op_type: The gradient op.
        computed: Its data inputs that are not those of the node, by quantity.
        of_data: The weights of dX and of its old contents.
        of_parameters: Those of dscale and dbias.
    """
    node = operands.node
    dtypes = {quantity: _gradient_dtype(node, quantity) for quantity in ("dscale", "dbias")}
    scale_dtype = operands.parameter_dtype(node.present("scale").dtype, *dtypes.values())
    if of_parameters != _UNWEIGHTED:
        scale_dtype = compute_dtype(scale_dtype)
    parameters = {"scale": operands.parameter("scale", scale_dtype), **_statistics(operands)}
    gradients = operands.apply(op_type, {**computed, **parameters}, training_mode=1)
    results = {"dX": operands.data_result(gradients["dX"], "dY", of_data, "dX")} if "dX" in node.outputs else {}
    for quantity, dtype in dtypes.items():
        if not node.used(quantity):
            continue
        old = operands.parameter(quantity, scale_dtype) if of_parameters[1] and node.has(quantity) else None
        blended = operands.blend(typed(gradients[quantity], scale_dtype), old, of_parameters)
        results[quantity] = operands.parameter_result(blended, "scale", dtype)
    operands.replace(results)


def _gradient_dtype(node: MiopenNode, quantity: str) -> ir.DataType | None:
    """Returns the type of a parameter's gradient: the declared one, else that of the old contents or of scale."""
    values = (node.outputs.get(quantity), node.inputs.get(quantity))
    return next((v.dtype for v in values if v is not None and v.dtype is not None), node.present("scale").dtype)


def _statistics(operands: MiopenOperands) -> dict[str, ir.Value]:
    """Returns the saved mean and inverse standard deviation of a node, or computes those of X."""
    node = operands.node
    if node.has(*_SAVED):
        dtype = operands.parameter_dtype(*(node.present(quantity).dtype for quantity in _SAVED))
        return {quantity: operands.parameter(quantity, dtype) for quantity in _SAVED}
    return operands.apply("BatchNormalizationStatistics", epsilon=node.number("epsilon"))


_WEIGHT = NUMBER._replace(default=1.0)
_BACKWARD = ForeignOp(
    # The last three inputs are old contents.
    "x: X, dy: dY, bnScale: scale, savedMean?: mean, savedInvVariance?: inv_std, "
    "dx?: dX, resultBnScaleDiff?: dscale, resultBnBiasDiff?: dbias -> " + OUTPUTS,
    attributes={
        **MODES,
        "epsilon": NUMBER,
        "alphaDataDiff": _WEIGHT,
        "betaDataDiff": NUMBER,
        "alphaParamDiff": _WEIGHT,
        "betaParamDiff": NUMBER,
    },
    layout="layout",
    checks=[form_reasons, _reasons],
    rewrite=_rewrite,
)


class ImportMiopenBackwardPass(DialectPass):
    """Rewrites every miopenBatchNormalizationBackward and miopenBatchNormalizationBackward_V2.

    Matches: x of rank 4 or 5 or of unknown rank, channels first or last, parameters of shapes such as C, 1C11 and
    1CHW. The types of x, dy and parameters may differ. A saved statistic without the other is ignored.
    Refuses: nodes of another form, a nonzero beta without old contents, and a missing epsilon if statistics have
    to be computed.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = dict.fromkeys(
        ("miopenBatchNormalizationBackward", "miopenBatchNormalizationBackward_V2"), _BACKWARD
    )
    NODE = MiopenNode
