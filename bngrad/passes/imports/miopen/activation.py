"""MIOpen's fused backward of a batch norm followed by an activation -> the gradient ops of ``bngrad``.

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
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import ENUMERATOR, NUMBER, ForeignOp
from bngrad.passes.imports.miopen.activation_gradients import ACTIVATIONS, ActivationInputs, activation_name
from bngrad.passes.imports.miopen.backward import OUTPUTS, replace_gradients
from bngrad.passes.imports.miopen.form import (
    MODES,
    MiopenNode,
    form_reasons,
    missing_reasons,
    same_type_reasons,
    unknown_type_reasons,
)
from bngrad.passes.imports.miopen.operands import MiopenOperands, compute_dtype, wider
from bngrad.passes.imports.operands import typed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import onnx_ir as ir

    from bngrad.passes.base import Context


def _reasons(node: MiopenNode) -> Iterator[str]:
    yield from same_type_reasons(node, "dX", like="dY")
    yield from missing_reasons(node, "activ_mode")
    try:
        activation = _activation(node)
    except InputError as error:
        yield f"its activ_{error}"
        return
    yield from missing_reasons(node, *ACTIVATIONS[activation].coefficients)
    if activation != "PASTHRU" and not _is_fused(node):
        yield from unknown_type_reasons(node)


def _activation(node: MiopenNode) -> str:
    return activation_name(node.attribute("activ_mode"))


def _is_fused(node: MiopenNode) -> bool:
    """Tests whether BatchNormalizationReluGrad computes the whole gradient."""
    return _activation(node) == "RELU" and node.has("Z")


def _rewrite(node: MiopenNode, context: Context) -> None:
    activation, fused = _activation(node), _is_fused(node)
    dtype = wider(*(node.present(quantity).dtype for quantity in ("X", "dY", *(("Z",) if fused else ()))))
    if fused:
        operands = MiopenOperands(node, context, dtype)
        replace_gradients(operands, "BatchNormalizationReluGrad", {"dZ": operands.data("dY")})
    elif activation == "PASTHRU":
        replace_gradients(MiopenOperands(node, context, dtype), "BatchNormalizationGrad", {})
    else:
        # 16 bits are not precise enough for the gradient with respect to u.
        operands = MiopenOperands(node, context, compute_dtype(dtype))
        replace_gradients(operands, "BatchNormalizationGrad", {"dY": _activation_gradient(operands, activation)})


def _activation_gradient(operands: MiopenOperands, activation: str) -> ir.Value:
    """Returns the gradient with respect to u, the activation's input."""
    node, emit, dtype = operands.node, operands.emit, operands.dtype
    assert dtype is not None, "a node with x of unknown type is refused"  # noqa: S101
    mean, inv_std, scale, bias = (
        operands.broadcast(operands.parameter(quantity, dtype))
        for quantity in ("mean", "inv_std", "scale", "bias")
    )
    xhat = emit.op("Mul", emit.op("Sub", operands.data("X"), mean), inv_std)
    u = emit.op("Add", emit.op("Mul", xhat, scale), bias)
    y = operands.data("Z") if node.has("Z") else None
    coefficients = (node.number(f"activ_{which}") for which in ("alpha", "beta", "gamma"))
    inputs = ActivationInputs(emit, dtype, operands.data("dY"), u, y, *coefficients)
    return typed(ACTIVATIONS[activation].gradient(inputs), dtype)


class ImportMiopenActivationPass(DialectPass):
    """Rewrites every miopenFusionBatchNormActivBackward.

    Matches: the ten activations; otherwise as `ImportMiopenBackwardPass`.
    Refuses: nodes of another form, an activation without its coefficients, and x of unknown type if the activation
    has to be computed.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {
        "miopenFusionBatchNormActivBackward": ForeignOp(
            "dy: dY, x: X, y?: Z, bnScale: scale, bnBias: bias, savedMean: mean, savedInvVariance: inv_std -> "
            + OUTPUTS,
            attributes={
                **MODES,
                "activ_mode": ENUMERATOR,
                **dict.fromkeys(("activ_alpha", "activ_beta", "activ_gamma"), NUMBER),
            },
            layout="layout",
            checks=[form_reasons, _reasons],
            rewrite=_rewrite,
        )
    }
    NODE = MiopenNode
