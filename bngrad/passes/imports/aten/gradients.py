"""PyTorch's batch-norm gradients (ATen ops) -> BatchNormalizationGrad.

::

    native_batch_norm_backward(grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?,
                               train, eps, output_mask) -> (grad_input, grad_weight, grad_bias)
    batch_norm_backward, cudnn_batch_norm_backward, miopen_batch_norm_backward, _batch_norm_impl_index_backward:
                               the same arguments in other orders, see `aten.nodes`
    =>  bngrad.BatchNormalizationGrad(grad_out, input, weight, mean, inv_std, axes)     axes: all but dimension 1

    train:          mean, inv_std = save_mean, save_invstd                              training_mode=1
                    or, if either is omitted, BatchNormalizationStatistics(input)
    not train:      mean, inv_std = running_mean, 1 / sqrt(running_var + eps)           training_mode=0

The ops of cuDNN and MIOpen have no ``train`` because they always train. Despite its name, ``save_var`` is an
inverse standard deviation. An omitted weight is 1; its gradient then has the type of the statistics, as ATen's CPU
kernel does. Outputs that ``output_mask`` marks as undefined must be unused; they are removed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.batch_norm_terms import inverse_std
from bngrad.graph.batch_norms import type_refusal
from bngrad.graph.nodes import known_rank
from bngrad.opset.axes import MAX_RANK
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.aten.nodes import SCHEMAS, Call, call_of, operator_of
from bngrad.passes.imports.unknown_rank import COLLAPSED_AXES, collapse_spatial
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Sequence

_SYNC_BATCH_NORM_OPS = ("batch_norm_backward_reduce", "batch_norm_backward_elemt")
_MAX_OUTPUTS = 3
"""The gradients with respect to input, weight and bias."""


class ImportAtenPass(RewritePass):
    """Rewrites every batch-norm gradient of ATen.

    Matches: X of rank 2 or higher, or of unknown rank. X of unknown rank or of a rank above 8 is reshaped to
    [N, C, S].
    Refuses: calls that ATen's schema does not allow; other ranks and types; a train that is not constant; an eps
    that is needed and not constant; uses of an output that the mask marks as undefined; and the gradient of
    SyncBatchNorm, which is two ops with a sum across devices between them.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `RewritePass`."""
        return operator_of(node) in (*SCHEMAS, *_SYNC_BATCH_NORM_OPS)

    def refusal(self, node: ir.Node) -> str | None:
        """See `RewritePass`."""
        if operator_of(node) in _SYNC_BATCH_NORM_OPS:
            return "it is part of SyncBatchNorm, which sums across devices; expected BatchNorm"
        call = call_of(node)
        return call.refusal() or _mode_refusal(call) or _mask_refusal(node, call) or _tensor_refusal(call)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `RewritePass`."""
        call, emit = call_of(node), Emitter(node, context)
        dy, x = call.required("dY"), call.required("X")
        scalars = call.scalars()
        data = (x, dy, *node.outputs[:1])
        rank = known_rank(data)
        axes = COLLAPSED_AXES if rank is None or rank > MAX_RANK else (0, *range(2, rank))
        dtype = next((v.dtype for v in data if v.dtype is not None), None)
        mean, inv_std = _statistics(emit, call, dtype, axes)
        scale, shape = _scale(emit, node, call, mean if _is_training(call) else call.required("running_mean"))
        dx, dscale, dbias = emit.bngrad(
            "BatchNormalizationGrad",
            *(dy, x, scale, mean, inv_std),
            axes=emit.axes(axes),
            training_mode=int(_is_training(call)),
        )
        if shape is not None:
            dscale, dbias = (emit.op("Reshape", gradient, shape) for gradient in (dscale, dbias))
        defined = {i: v for i, v in enumerate((dx, dscale, dbias)[: len(node.outputs)]) if not _is_masked(call, i)}
        emit.replace(defined)
        _drop_constants(scalars)
        if rank is None or rank > MAX_RANK:
            if _is_training(call) and not _has_saved_statistics(call):
                _collapse(mean, [0], [], context)
            _collapse(dx, [0, 1], [0] if 0 in defined else [], context)


def _drop_constants(values: Sequence[ir.Value]) -> None:
    """Removes constants that are no longer used."""
    for value in values:
        producer, graph = value.producer(), value.graph
        if value.uses() or value.is_graph_output() or value.is_graph_input() or graph is None:
            continue
        if value.is_initializer():
            graph.initializers.pop(str(value.name))
        elif producer is not None and producer.op_type == "Constant":
            graph.remove(producer, safe=True)


def _collapse(output: ir.Value, inputs: Sequence[int], outputs: Sequence[int], context: Context) -> None:
    """Reshapes the data of the node that makes an output to rank 3."""
    node = output.producer()
    assert node is not None, "the rewrite has just made it"  # noqa: S101
    collapse_spatial(node, inputs, outputs, context.names)


def _is_training(call: Call) -> bool:
    """Whether the statistics are those of the batch; ``train`` must be known."""
    if "train" not in call.given:
        return True
    train = call.constant("train")
    return train is not None and bool(train[0])


def _is_masked(call: Call, output: int) -> bool:
    """Whether the mask marks an output as undefined; an unknown mask marks none."""
    mask = call.constant("output_mask")
    return mask is not None and not mask[output]


def _has_saved_statistics(call: Call) -> bool:
    return call.tensor("mean") is not None and call.tensor("inv_std") is not None


def _statistics(emit: Emitter, call: Call, dtype: ir.DataType | None, axes: Sequence[int]) -> Sequence[ir.Value]:
    """Returns the mean and inv_std of the forward pass; ``dtype`` is the type of X, or None if unknown."""
    if _is_training(call):
        if _has_saved_statistics(call):
            return [_vector(emit, call.required(role)) for role in ("mean", "inv_std")]
        x, epsilon = call.required("X"), _epsilon(call)
        return emit.bngrad("BatchNormalizationStatistics", x, axes=emit.axes(axes), epsilon=epsilon)
    mean, variance = (_vector(emit, call.required(role)) for role in ("running_mean", "running_var"))
    if dtype is None:
        # Computing in double is exact enough for both; the result in their own type suits every type of X.
        inv_std = inverse_std(emit, variance, _epsilon(call), ir.DataType.DOUBLE)
        return [mean, emit.op("CastLike", inv_std, mean)]
    computed = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    return [emit.cast(mean, computed), inverse_std(emit, variance, _epsilon(call), computed)]


def _epsilon(call: Call) -> float:
    epsilon = call.constant("eps")
    assert epsilon is not None, "a node with a needed but unknown epsilon is refused"  # noqa: S101
    return float(epsilon[0])


def _scale(emit: Emitter, node: ir.Node, call: Call, statistic: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Returns the scale as [C], and the shape of the parameters' gradients if it is not [C]."""
    scale = call.tensor("scale")
    if scale is not None:
        return _vector(emit, scale), None if _is_vector(scale) else emit.op("Shape", scale)
    one = ir.tensor(np.ones(1, np.float32))
    ones = emit.op("ConstantOfShape", emit.op("Shape", _vector(emit, statistic)), value=one)
    dtype = next((v.dtype for v in (*node.outputs[1:], statistic) if v.dtype is not None), None)
    return emit.op("CastLike", ones, statistic) if dtype is None else emit.cast(ones, dtype), None


def _is_vector(parameter: ir.Value) -> bool:
    return parameter.shape is None or len(parameter.shape) == 1


def _vector(emit: Emitter, parameter: ir.Value) -> ir.Value:
    """Returns a parameter as [C]; cuDNN and MIOpen accept any shape with C elements."""
    if _is_vector(parameter):
        return parameter
    result = emit.op("Reshape", parameter, emit.constant([-1], ir.DataType.INT64))
    result.type = parameter.type
    return result


def _mode_refusal(call: Call) -> str | None:
    """Checks that the statistics that a node uses are known and present."""
    if "train" in call.given and call.constant("train") is None:
        return call.unknown("train")
    training = _is_training(call)
    for name in () if training else ("running_mean", "running_var"):
        if call.tensor(name) is None:
            return f"it has no {name} and is not training; expected one"
    if not (training and _has_saved_statistics(call)) and call.constant("eps") is None:
        return call.unknown("eps")
    return None


def _mask_refusal(node: ir.Node, call: Call) -> str | None:
    if len(node.outputs) > _MAX_OUTPUTS:
        return f"it has {len(node.outputs)} outputs; expected at most {_MAX_OUTPUTS}"
    for i, value in enumerate(node.outputs):
        if _is_masked(call, i) and (value.uses() or value.is_graph_output()):
            return f"its output {value.name!r} is used but undefined; expected output_mask[{i}] to be true"
    return None


def _tensor_refusal(call: Call) -> str | None:
    """Checks that the types and shapes of the tensor arguments are consistent."""
    statistics = ("mean", "inv_std") if _is_training(call) else ("running_mean", "running_var")
    data = [call.required("dY"), call.required("X")]
    parameters = [v for role in ("scale", *statistics) if (v := call.tensor(role)) is not None]
    if reason := type_refusal(data, parameters):
        return reason
    shapes = [value.shape for value in data if value.shape is not None]
    for rank in map(len, shapes):
        if rank < 2:
            return f"its input has rank {rank}; expected 2 or more ([N, C, ...])"
    dy, x = map(known_shape, data)
    if dy is not None and x is not None and not may_be_equal(dy, x):
        return f"its input has shape {shape_text(x)}; expected {shape_text(dy)} like grad_out"
    channels = next((shape[1] for shape in shapes if isinstance(shape[1], int)), None)
    for value in parameters:
        size = _size(value)
        if None not in (size, channels) and size != channels:
            return f"its input {value.name!r} has {size} elements; expected {channels}, one per channel"
    saved = [call.tensor(role) for role in statistics]
    types = {v.dtype.name.lower() for v in saved if v is not None and v.dtype is not None}
    if len(types) > 1:
        return f"its statistics are {' and '.join(sorted(types))}; expected one type"
    return None


def _size(value: ir.Value) -> int | None:
    """Returns the number of elements of a value; None if unknown."""
    if value.shape is None:
        return None
    sizes = [size for size in value.shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(value.shape) else None
