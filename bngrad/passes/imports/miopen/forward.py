"""MIOpen's batch-norm forward, for training and inference -> BatchNormalizationTraining, or arithmetic ops.

::

    miopenBatchNormalizationForwardTraining(_V2)                                                     any domain
        (x, bnScale, bnBias, resultRunningMean?, resultRunningVariance?, y?)
        {bn_mode, layout, epsilon, expAvgFactor, alpha, beta}
        -> (y, resultRunningMean, resultRunningVariance, resultSaveMean, resultSaveInvVariance)

    =>  bn, resultRunningMean, resultRunningVariance, resultSaveMean, resultSaveInvVariance =
            bngrad.BatchNormalizationTraining(x, bnScale, bnBias, resultRunningMean, resultRunningVariance, axes)
            {epsilon, momentum = 1 - expAvgFactor, unbiased_running_var = 1}
        y = alpha * bn + beta * the input y

expAvgFactor is the weight of the *new* value, and the running variance has Bessel's correction. If a running
statistic is missing, the scale is passed as both, and their new values are discarded.

::

    miopenBatchNormalizationForwardInference(_V2)                                                    any domain
        (x, bnScale, bnBias, estimatedMean?, estimatedVariance?, y?)    {bn_mode, layout, epsilon, alpha, beta}
        -> (y)

    =>  bn = (x - estimatedMean) / sqrt(estimatedVariance + epsilon) * bnScale + bnBias
        or, if an estimate is missing, BatchNormalizationTraining's Y, with the statistics of the batch

ONNX's BatchNormalization is not used for inference: it has neither a per-activation mode nor channels-last data,
and ONNX Runtime computes it as x * a + b, which loses precision if the mean is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norm_terms import inverse_std, is_momentum
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.miopen.form import Form, MiopenNode
from bngrad.passes.imports.miopen.operands import Operands, compute_dtype, typed, wider

if TYPE_CHECKING:
    from collections.abc import Iterator

    import onnx_ir as ir

_RUNNING = ("resultRunningMean", "resultRunningVariance")
_SAVED = ("resultSaveMean", "resultSaveInvVariance")
_ESTIMATED = ("estimatedMean", "estimatedVariance")
_FACTORS = ("expAvgFactor", "exponentialAverageFactor")
"""The names in MIOpen and in cuDNN; converters use either."""

TRAINING = Form(
    inputs={
        "x": "data",
        "bnScale": "parameter",
        "bnBias": "parameter",
        "resultRunningMean": "parameter",
        "resultRunningVariance": "parameter",
        "y": "data",
    },
    required=("x", "bnScale", "bnBias"),
    outputs={"y": "data", **dict.fromkeys((*_RUNNING, *_SAVED), "parameter")},
    numbers=("epsilon", *_FACTORS, "alpha", "beta"),
)
INFERENCE = Form(
    inputs={
        "x": "data",
        "bnScale": "parameter",
        "bnBias": "parameter",
        "estimatedMean": "parameter",
        "estimatedVariance": "parameter",
        "y": "data",
    },
    required=("x", "bnScale", "bnBias"),
    outputs={"y": "data"},
    numbers=("epsilon", "alpha", "beta"),
)
_FORMS = {
    f"miopenBatchNormalizationForward{mode}{version}": form
    for mode, form in (("Training", TRAINING), ("Inference", INFERENCE))
    for version in ("", "_V2")
}


class ImportMiopenForwardPass(RewritePass):
    """Rewrites every miopenBatchNormalizationForwardTraining and ...ForwardInference, and their _V2.

    Matches: x of rank 4 or 5 or of unknown rank, channels first or last, parameters of shapes such as C, 1C11 and
    1CHW.
    Refuses: nodes of another form, a nonzero beta without old contents, a missing epsilon, and new running
    statistics that are used although the old ones are missing.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return node.op_type in _FORMS

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        return next(_reasons(MiopenNode(node, _FORMS[node.op_type])), None)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        read = MiopenNode(node, _FORMS[node.op_type])
        if read.form is INFERENCE and read.has(*_ESTIMATED):
            _rewrite_with_estimates(read, context)
        else:
            _rewrite_with_batch_statistics(read, context)


def _reasons(node: MiopenNode) -> Iterator[str]:
    yield from node.reasons()
    yield from node.same_type_reasons("y", like="x")
    yield from node.blend_reasons(beta="y")
    yield from node.missing_reasons("epsilon")
    if node.form is TRAINING:
        yield from _running_reasons(node)
    elif node.has(*_ESTIMATED):
        yield from node.unknown_type_reasons()


def _running_reasons(node: MiopenNode) -> Iterator[str]:
    given = [name for name in _FACTORS if name in node.node.attributes]
    if len(given) > 1:
        yield f"it has both {given[0]} and {given[1]}; expected one of them"
    for name in given:
        if not 0 <= node.number(name) <= 1:
            yield f"it has {name} {node.number(name):g}; expected 0 to 1, the weight of the new value"
    for name in filter(node.used, _RUNNING):
        if not node.has(*_RUNNING):
            yield f"its output {name} is used; expected both inputs {' and '.join(_RUNNING)} to update"
        if not given:
            yield from node.missing_reasons("expAvgFactor")


def _rewrite_with_batch_statistics(node: MiopenNode, context: Context) -> None:
    weights, dtype = _blend_weights(node)
    operands = Operands(node, context, dtype)
    scale_dtype = operands.parameter_dtype(node.present("bnScale").dtype, node.present("bnBias").dtype)
    training = node.form is TRAINING
    running = _RUNNING if training and node.has(*_RUNNING) else ()
    saved = {name: _saved_dtype(node, name) for name in _SAVED} if training else {}
    statistics_dtype = operands.parameter_dtype(*(node.present(name).dtype for name in running), *saved.values())

    factor = next((node.number(name) for name in _FACTORS if name in node.node.attributes), 0.0)
    spelled_out = not is_momentum(factor, statistics_dtype)
    old = [operands.parameter(name, statistics_dtype) for name in running or ("bnScale", "bnScale")]
    y, *statistics = operands.emit.bngrad(
        "BatchNormalizationTraining",
        operands.data("x"),
        operands.parameter("bnScale", scale_dtype),
        operands.parameter("bnBias", scale_dtype),
        *old,
        axes=operands.axes,
        epsilon=node.number("epsilon"),
        momentum=0.0 if spelled_out else 1 - factor,
        unbiased_running_var=1,
    )
    results = {"y": operands.data_result(y, "x", *weights, "y")}
    for name, statistic, before in zip(running, statistics, old, strict=False):
        if node.used(name):
            new = typed(statistic, statistics_dtype)
            new = operands.average(new, before, factor) if spelled_out else new
            declared = _declared_dtype(node, name, node.present(name).dtype)
            results[name] = operands.parameter_result(new, name, declared)
    for name, statistic in zip(saved, statistics[2:], strict=False):
        if node.used(name):
            results[name] = operands.parameter_result(typed(statistic, statistics_dtype), "bnScale", saved[name])
    operands.replace(**results)


def _rewrite_with_estimates(node: MiopenNode, context: Context) -> None:
    weights, _ = _blend_weights(node)
    dtype = compute_dtype(node.present("x").dtype)
    assert dtype is not None, "a node with x of unknown type is refused"  # noqa: S101
    operands = Operands(node, context, dtype)
    emit = operands.emit
    variance = operands.parameter("estimatedVariance", dtype)
    inv_std = inverse_std(emit, variance, node.number("epsilon"), dtype)
    centered = emit.op("Sub", operands.data("x"), operands.broadcast("estimatedMean", dtype))
    xhat = emit.op("Mul", centered, emit.op("Unsqueeze", inv_std, operands.axes))
    scaled = emit.op("Mul", xhat, operands.broadcast("bnScale", dtype))
    y = operands.data_result(emit.op("Add", scaled, operands.broadcast("bnBias", dtype)), "x", *weights, "y")
    operands.replace(y=y)
    emit.take_over(y.producer())


def _blend_weights(node: MiopenNode) -> tuple[tuple[float, float], ir.DataType | None]:
    """Returns the weights of y and of its old contents, and the type to cast data to."""
    weights = node.number("alpha", 1), node.number("beta", 0)
    dtype = node.present("x").dtype
    return weights, dtype if weights == (1, 0) else compute_dtype(dtype)


def _saved_dtype(node: MiopenNode, name: str) -> ir.DataType | None:
    """Returns the type of a saved statistic: the declared one, else that of the running statistics or of x."""
    running = [node.present(its).dtype for its in _RUNNING] if node.has(*_RUNNING) else []
    return _declared_dtype(node, name, wider(*running) or compute_dtype(node.present("x").dtype))


def _declared_dtype(node: MiopenNode, name: str, default: ir.DataType | None) -> ir.DataType | None:
    """Returns the type of an output in the model, or the default if it has none."""
    value = node.output(name)
    return default if value is None or value.dtype is None else value.dtype
