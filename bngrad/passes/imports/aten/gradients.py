"""ATen's batch-norm gradients, PyTorch's own -> BatchNormalizationGrad.

::

    native_batch_norm_backward(grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?,
                               train, eps, output_mask) -> (grad_input, grad_weight, grad_bias)
    batch_norm_backward, cudnn_batch_norm_backward, miopen_batch_norm_backward, _batch_norm_impl_index_backward:
                               the same in other orders (`aten_nodes.py` has them, and how a node spells them)
    =>  bngrad.BatchNormalizationGrad(grad_out, input, weight, mean, inv_std, axes)     axes: all but dimension 1

    train:          mean, inv_std = save_mean, save_invstd                              training_mode=1
                    or, if either is left out, BatchNormalizationStatistics(input)
    not train:      mean, inv_std = running_mean, 1 / sqrt(running_var + eps)           training_mode=0

cuDNN's and MIOpen's have no ``train``: they are for training. ``save_var`` is an inverse standard deviation,
despite its name. A weight that is left out is 1; its gradient then has the type of the statistics, as ATen's has
on the CPU. What ``output_mask`` says is undefined must have no user, and goes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.graph.batch_norm_terms import inverse_std
from bngrad.graph.batch_norms import type_refusal
from bngrad.graph.nodes import known_rank
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.opset.reference import MAX_RANK
from bngrad.passes.base import Context, ImportPass
from bngrad.passes.imports.aten.nodes import SCHEMAS, Call, call_of, operator_of
from bngrad.passes.imports.unknown_rank import COLLAPSED_AXES, collapse_spatial
from bngrad.passes.replace import Emitter

if TYPE_CHECKING:
    from collections.abc import Sequence

_OF_SYNC_BATCH_NORM = ("batch_norm_backward_reduce", "batch_norm_backward_elemt")
_OUTPUTS = 3
"""The gradients by input, weight and bias."""


class ImportAtenPass(ImportPass):
    """Rewrites every batch-norm gradient of ATen.

    Matches: X of rank 2 or higher, or of a rank that is not known (this, and one above 8, becomes [N, C, S]).
    Refuses: what ATen's schema does not allow; other ranks and types; a train that is no constant, and an eps that
    is none where it is needed; a use of an output that the mask says is undefined; and SyncBatchNorm, whose
    gradient is two ops with a sum across devices between them.
    """

    def matches(self, node: ir.Node) -> bool:
        """See `ImportPass`."""
        return operator_of(node) in (*SCHEMAS, *_OF_SYNC_BATCH_NORM)

    def refusal(self, node: ir.Node) -> str | None:
        """See `ImportPass`."""
        if operator_of(node) in _OF_SYNC_BATCH_NORM:
            return "its sums are those of several devices; expected a BatchNorm, not a SyncBatchNorm"
        call = call_of(node)
        return call.refusal() or _mode_refusal(call) or _mask_refusal(node, call) or _tensor_refusal(call)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """See `ImportPass`."""
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
            if _is_training(call) and not _has_saved(call):
                _collapse(mean, [0], [], context)
            _collapse(dx, [0, 1], [0] if 0 in defined else [], context)


def _drop_constants(values: Sequence[ir.Value]) -> None:
    """Takes out constants that nothing reads any more."""
    for value in values:
        producer, graph = value.producer(), value.graph
        if value.uses() or value.is_graph_output() or value.is_graph_input() or graph is None:
            continue
        if value.is_initializer():
            graph.initializers.pop(str(value.name))
        elif producer is not None and producer.op_type == "Constant":
            graph.remove(producer, safe=True)


def _collapse(output: ir.Value, inputs: Sequence[int], outputs: Sequence[int], context: Context) -> None:
    """Has one of our nodes, by an output of it, work on data of rank 3."""
    node = output.producer()
    assert node is not None, "it was just made"  # noqa: S101
    collapse_spatial(node, inputs, outputs, context.names)


def _is_training(call: Call) -> bool:
    """Whether the statistics are those of the batch; its train must be known."""
    if "train" not in call.given:
        return True
    train = call.constant("train")
    return train is not None and bool(train[0])


def _is_masked(call: Call, output: int) -> bool:
    """Whether the mask says that an output is undefined; a mask that nobody knows does not."""
    mask = call.constant("output_mask")
    return mask is not None and not mask[output]


def _has_saved(call: Call) -> bool:
    return call.tensor("mean") is not None and call.tensor("inv_std") is not None


def _statistics(emit: Emitter, call: Call, dtype: ir.DataType | None, axes: Sequence[int]) -> Sequence[ir.Value]:
    """The mean and inv_std of the forward pass; ``dtype`` is X's, if it is known."""
    if _is_training(call):
        if _has_saved(call):
            return [_vector(emit, call.required(role)) for role in ("mean", "inv_std")]
        x, epsilon = call.required("X"), _epsilon(call)
        return emit.bngrad("BatchNormalizationStatistics", x, axes=emit.axes(axes), epsilon=epsilon)
    mean, variance = (_vector(emit, call.required(role)) for role in ("running_mean", "running_var"))
    if dtype is None:
        # Double loses nothing of either, and their own type is right with any type that X may have.
        inv_std = inverse_std(emit, variance, _epsilon(call), ir.DataType.DOUBLE)
        return [mean, emit.op("CastLike", inv_std, mean)]
    computed = ir.DataType.DOUBLE if dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    return [emit.cast(mean, computed), inverse_std(emit, variance, _epsilon(call), computed)]


def _epsilon(call: Call) -> float:
    epsilon = call.constant("eps")
    assert epsilon is not None, "a node whose epsilon is needed and unknown was not refused"  # noqa: S101
    return float(epsilon[0])


def _scale(emit: Emitter, node: ir.Node, call: Call, statistic: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """The scale as [C], and the shape that its gradients have if that is another."""
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
    """A parameter as [C]: cuDNN and MIOpen look only at how many elements it has."""
    if _is_vector(parameter):
        return parameter
    result = emit.op("Reshape", parameter, emit.constant([-1], ir.DataType.INT64))
    result.type = parameter.type
    return result


def _mode_refusal(call: Call) -> str | None:
    """Why nobody can tell which statistics a node takes, or it lacks them."""
    if "train" in call.given and call.constant("train") is None:
        return call.unknown("train")
    training = _is_training(call)
    for name in () if training else ("running_mean", "running_var"):
        if call.tensor(name) is None:
            return f"it has no {name} and is not training; expected one"
    if not (training and _has_saved(call)) and call.constant("eps") is None:
        return call.unknown("eps")
    return None


def _mask_refusal(node: ir.Node, call: Call) -> str | None:
    if len(node.outputs) > _OUTPUTS:
        return f"it has {len(node.outputs)} outputs; expected {_OUTPUTS} at most"
    for i, value in enumerate(node.outputs):
        if _is_masked(call, i) and (value.uses() or value.is_graph_output()):
            return f"its output {value.name!r} is used; expected output_mask[{i}] to be true, or it is undefined"
    return None


def _tensor_refusal(call: Call) -> str | None:
    """Why the tensors that a node takes do not go together."""
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
            return f"its input {value.name!r} has {size} elements; expected {channels}, one a channel"
    saved = [call.tensor(role) for role in statistics]
    types = {v.dtype.name.lower() for v in saved if v is not None and v.dtype is not None}
    if len(types) > 1:
        return f"its statistics are {' and '.join(sorted(types))}; expected one type"
    return None


def _size(value: ir.Value) -> int | None:
    """How many elements a value has, if that is known."""
    if value.shape is None:
        return None
    extents = [extent for extent in value.shape if isinstance(extent, int)]
    return math.prod(extents) if len(extents) == len(value.shape) else None
