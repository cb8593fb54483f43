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

from bngrad.graph.batch_norms import type_refusal
from bngrad.graph.nodes import is_read
from bngrad.opset.known_shapes import known_shape, may_be_equal, shape_text
from bngrad.passes.imports.aten.nodes import SCHEMAS, AtenNode, call_reasons, operator_of
from bngrad.passes.imports.dialect import DialectPass
from bngrad.passes.imports.foreign_node import ForeignOp
from bngrad.passes.imports.operands import Operands

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bngrad.passes.base import Context

_SIGNATURE = "-> grad_input: dX, grad_weight: dscale, grad_bias: dbias"
"""The outputs; `SCHEMAS` has the inputs."""


# ---- reasons for a refusal ----


def _synchronized_reasons(_: AtenNode) -> Iterator[str]:
    yield "it is part of SyncBatchNorm, which sums across devices; expected BatchNorm"


def _mode_reasons(node: AtenNode) -> Iterator[str]:
    """Checks that the statistics that a node uses are known and present."""
    if "train" in node.given and node.constant("train") is None:
        yield node.unknown("train")
    training = _is_training(node)
    for name in () if training else ("running_mean", "running_var"):
        if not node.has(name):
            yield f"it has no {name} and is not training; expected one"
    if not (training and node.has("mean", "inv_std")) and node.constant("eps") is None:
        yield node.unknown("eps")


def _mask_reasons(node: AtenNode) -> Iterator[str]:
    outputs = node.node.outputs
    if len(outputs) > len(node.op.outputs):
        yield f"it has {len(outputs)} outputs; expected at most {len(node.op.outputs)}"
    for index, (value, masked) in enumerate(zip(outputs, node.masked, strict=False)):
        if masked and is_read(value):
            yield f"its output {value.name!r} is used but undefined; expected output_mask[{index}] to be true"


def _tensor_reasons(node: AtenNode) -> Iterator[str]:
    """Checks that the types and shapes of the tensor arguments are consistent."""
    statistics = ("mean", "inv_std") if _is_training(node) else ("running_mean", "running_var")
    data = [node.present("dY"), node.present("X")]
    parameters = [v for quantity in ("scale", *statistics) if (v := node.inputs[quantity]) is not None]
    if reason := type_refusal(data, parameters):
        yield reason
    shapes = [value.shape for value in data if value.shape is not None]
    for rank in map(len, shapes):
        if rank < 2:
            yield f"its input has rank {rank}; expected 2 or more ([N, C, ...])"
    dy, x = map(known_shape, data)
    if dy is not None and x is not None and not may_be_equal(dy, x):
        yield f"its input has shape {shape_text(x)}; expected {shape_text(dy)} like grad_out"
    channels = next((shape[1] for shape in shapes if isinstance(shape[1], int)), None)
    for value in parameters:
        size = _size(value)
        if None not in (size, channels) and size != channels:
            yield f"its input {value.name!r} has {size} elements; expected {channels}, one per channel"
    saved = [node.inputs[quantity] for quantity in statistics]
    types = {v.dtype.name.lower() for v in saved if v is not None and v.dtype is not None}
    if len(types) > 1:
        yield f"its statistics are {' and '.join(sorted(types))}; expected one type"


def _is_training(node: AtenNode) -> bool:
    """Tests whether the statistics are those of the batch; ``train`` must be known."""
    if "train" not in node.given:
        return True
    train = node.constant("train")
    return train is not None and bool(train[0])


def _size(value: ir.Value) -> int | None:
    """Returns the number of elements of a value; None if unknown."""
    if value.shape is None:
        return None
    sizes = [size for size in value.shape if isinstance(size, int)]
    return math.prod(sizes) if len(sizes) == len(value.shape) else None


# ---- the rewrite ----


class _Operands(Operands):
    """Operands whose parameters have any shape with C elements, as cuDNN and MIOpen accept them."""

    def parameter(self, quantity: str, dtype: ir.DataType | None = None) -> ir.Value:
        value = super().parameter(quantity, dtype)
        return value if _is_vector(value) else self.reshape(value, self.emit.int64([-1]))


def _is_vector(parameter: ir.Value) -> bool:
    return parameter.shape is None or len(parameter.shape) == 1


def _rewrite(node: AtenNode, context: Context) -> None:
    operands = _Operands(node, context)
    computed = _statistics(operands, node)
    if not node.has("scale"):
        statistic = "mean" if _is_training(node) else "running_mean"
        computed["scale"] = _ones(
            operands, operands.parameter(statistic) if node.has(statistic) else computed["mean"]
        )
    results = operands.apply("BatchNormalizationGrad", computed, training_mode=int(_is_training(node)))
    scale = node.inputs["scale"]
    if scale is not None and not _is_vector(scale):
        shape = operands.emit.op("Shape", scale)
        results |= {q: operands.reshape(results[q], shape) for q in ("dscale", "dbias")}
    operands.replace(results)
    _drop_constants(node.scalars)


def _statistics(operands: Operands, node: AtenNode) -> dict[str, ir.Value]:
    """Returns the mean and inv_std of the forward pass, unless the node has them."""
    if _is_training(node):
        if node.has("mean", "inv_std"):
            return {}
        return operands.apply("BatchNormalizationStatistics", epsilon=_epsilon(node))
    dtype = next((value.dtype for value in node.data() if value.dtype is not None), None)
    if dtype not in (None, ir.DataType.DOUBLE):
        dtype = ir.DataType.FLOAT
    return operands.frozen_statistics("running_mean", "running_var", _epsilon(node), dtype)


def _epsilon(node: AtenNode) -> float:
    epsilon = node.constant("eps")
    assert epsilon is not None, "a node with a needed but unknown epsilon is refused"  # noqa: S101
    return float(epsilon[0])


def _ones(operands: Operands, statistic: ir.Value) -> ir.Value:
    """Returns a scale of ones, in the type of its gradient or else of a statistic."""
    emit = operands.emit
    ones = emit.op("ConstantOfShape", emit.op("Shape", statistic), value=ir.tensor(np.ones(1, np.float32)))
    values = (*operands.node.node.outputs[1:], statistic)
    dtype = next((value.dtype for value in values if value.dtype is not None), None)
    return emit.op("CastLike", ones, statistic) if dtype is None else emit.cast(ones, dtype)


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


_CHECKS = [call_reasons, _mode_reasons, _mask_reasons, _tensor_reasons]


class ImportAtenPass(DialectPass):
    """Rewrites every batch-norm gradient of ATen.

    Matches: X of rank 2 or higher, or of unknown rank. X of unknown rank or of a rank above 8 is reshaped to
    [N, C, S].
    Refuses: calls that ATen's schema does not allow; other ranks and types; a train that is not constant; an eps
    that is needed and not constant; uses of an output that the mask marks as undefined; and the gradient of
    SyncBatchNorm, which is two ops with a sum across devices between them.
    """

    ops: Mapping[str | tuple[str, str], ForeignOp] = {
        **dict.fromkeys(SCHEMAS, ForeignOp(_SIGNATURE, checks=_CHECKS, rewrite=_rewrite)),
        **dict.fromkeys(
            ("batch_norm_backward_reduce", "batch_norm_backward_elemt"),
            ForeignOp(_SIGNATURE, checks=[_synchronized_reasons], rewrite=_rewrite),
        ),
    }
    NODE = AtenNode

    def op_of(self, node: ir.Node) -> ForeignOp | None:  # noqa: D102
        return self.ops.get(operator_of(node) or "")
