"""MIOpen's batch-norm forward, for training and inference -> BatchNormalizationTraining, or arithmetic ops.

The result is blended: y = alpha * bn + beta * the input y. In training, expAvgFactor is the weight of the *new*
value, and the running variance has Bessel's correction. If a running statistic is missing, the scale is passed as
both, and their new values are discarded. In inference::

        bn = (x - estimatedMean) * (bnScale / sqrt(estimatedVariance + epsilon)) + bnBias
        or, if an estimate is missing, BatchNormalizationTraining's Y, with the statistics of the batch
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bngrad.graph.batch_norm_terms import is_momentum
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import NUMBER, ForeignOp
from bngrad.passes.imports.miopen.form import (
    MODES,
    MiopenNode,
    blend_reasons,
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

_RUNNING = ("running_mean", "running_var")
_SAVED = ("saved_mean", "saved_inv_std")
_FACTORS = ("expAvgFactor", "exponentialAverageFactor")
"""The names in MIOpen and in cuDNN; converters use either."""


def _reasons(node: MiopenNode) -> Iterator[str]:
    yield from same_type_reasons(node, "Y", like="X")
    yield from blend_reasons(node, "beta", "Y")
    yield from missing_reasons(node, "epsilon")


def _running_reasons(node: MiopenNode) -> Iterator[str]:
    factors = [name for name in _FACTORS if name in node.node.attributes]
    if len(factors) > 1:
        yield f"it has both {factors[0]} and {factors[1]}; expected one of them"
    for name in factors:
        if not 0 <= node.number(name) <= 1:
            yield f"it has {name} {node.number(name):g}; expected 0 to 1, the weight of the new value"
    both = " and ".join(map(node.label, _RUNNING))
    for quantity in _RUNNING:
        if not node.used(f"new_{quantity}"):
            continue
        if not node.has(*_RUNNING):
            yield f"its output {node.label(quantity)} is used; expected both inputs {both} to update"
        if not factors:
            yield from missing_reasons(node, "expAvgFactor")


def _estimate_reasons(node: MiopenNode) -> Iterator[str]:
    if node.has(*_RUNNING):
        yield from unknown_type_reasons(node)


def _rewrite_with_batch_statistics(node: MiopenNode, context: Context) -> None:
    weights = node.number("alpha"), node.number("beta")
    x_dtype = node.present("X").dtype
    operands = MiopenOperands(node, context, x_dtype if weights == (1, 0) else compute_dtype(x_dtype))
    scale_dtype = operands.parameter_dtype(node.present("scale").dtype, node.present("bias").dtype)
    running = {q: node.present(q).dtype for q in _RUNNING} if node.has(*_RUNNING) else {}
    # A saved statistic has its declared type, else that of the running statistics or of X.
    saved = {q: _declared_dtype(node, q, wider(*running.values()) or compute_dtype(x_dtype)) for q in _SAVED}
    statistics_dtype = operands.parameter_dtype(*running.values(), *saved.values())
    factor = next((node.number(name) for name in _FACTORS if name in node.node.attributes), 0.0)
    spelled_out = not is_momentum(factor, statistics_dtype)
    old = {q: operands.parameter(q if running else "scale", statistics_dtype) for q in _RUNNING}
    outputs = operands.apply(
        "BatchNormalizationTraining",
        {**{q: operands.parameter(q, scale_dtype) for q in ("scale", "bias")}, **old},
        epsilon=node.number("epsilon"),
        momentum=0.0 if spelled_out else 1 - factor,
        unbiased_running_var=1,
    )
    results = {"Y": operands.data_result(outputs["Y"], "X", weights, "Y")} if "Y" in node.outputs else {}
    for quantity, dtype in running.items():
        name = f"new_{quantity}"
        if node.used(name):
            new = typed(outputs[name], statistics_dtype)
            new = operands.average(new, old[quantity], factor) if spelled_out else new
            results[name] = operands.parameter_result(new, quantity, _declared_dtype(node, name, dtype))
    for quantity, dtype in saved.items():
        if node.used(quantity):
            statistic = typed(outputs[quantity], statistics_dtype)
            results[quantity] = operands.parameter_result(statistic, "scale", dtype)
    operands.replace(results)


def _declared_dtype(node: MiopenNode, quantity: str, default: ir.DataType | None) -> ir.DataType | None:
    """Returns the type of an output in the model, or the default if it has none."""
    value = node.outputs.get(quantity)
    return default if value is None or value.dtype is None else value.dtype


def _rewrite_inference(node: MiopenNode, context: Context) -> None:
    if not node.has(*_RUNNING):
        _rewrite_with_batch_statistics(node, context)
        return
    dtype = compute_dtype(node.present("X").dtype)
    assert dtype is not None, "a node with x of unknown type is refused"  # noqa: S101
    operands = MiopenOperands(node, context, dtype)
    weights = node.number("alpha"), node.number("beta")
    y = operands.data_result(operands.normalize(node.number("epsilon"), dtype), "X", weights, "Y")
    operands.replace({"Y": y})
    operands.emit.take_over(y.producer())


_BLENDED = {"alpha": NUMBER._replace(default=1.0), "beta": NUMBER}
_TRAINING = ForeignOp(
    "x: X, bnScale: scale, bnBias: bias, "
    "resultRunningMean?: running_mean, resultRunningVariance?: running_var, y?: Y "
    "-> y: Y, resultRunningMean: new_running_mean, resultRunningVariance: new_running_var, "
    "resultSaveMean: saved_mean, resultSaveInvVariance: saved_inv_std",
    attributes={**MODES, "epsilon": NUMBER, **dict.fromkeys(_FACTORS, NUMBER), **_BLENDED},
    layout="layout",
    checks=[form_reasons, _reasons, _running_reasons],
    rewrite=_rewrite_with_batch_statistics,
)
_INFERENCE = replace(
    _TRAINING,
    signature="x: X, bnScale: scale, bnBias: bias, estimatedMean?: running_mean, estimatedVariance?: running_var, "
    "y?: Y -> y: Y",
    attributes={**MODES, "epsilon": NUMBER, **_BLENDED},
    checks=[form_reasons, _reasons, _estimate_reasons],
    rewrite=_rewrite_inference,
)


class ImportMiopenForwardPass(DialectPass):
    """Rewrites every miopenBatchNormalizationForwardTraining and ...ForwardInference, and their _V2.

    Matches: x of rank 4 or 5 or of unknown rank, channels first or last, parameters of shapes such as C, 1C11 and
    1CHW.
    Refuses: nodes of another form, a nonzero beta without old contents, a missing epsilon, and new running
    statistics that are used although the old ones are missing.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {
        f"miopenBatchNormalizationForward{mode}{version}": op
        for mode, op in (("Training", _TRAINING), ("Inference", _INFERENCE))
        for version in ("", "_V2")
    }
    NODE = MiopenNode
