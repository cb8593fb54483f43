"""PyTorch's batch norm in training mode, as ONNX.

`torch.onnx.export` writes ``aten._native_batch_norm_legit_functional`` in inference mode and without its new
running statistics. `batch_norm` writes it as BatchNormalization with training_mode = 1. Its running variance is
biased in ONNX and unbiased in PyTorch; `bngrad.differentiate` follows the model's producer, PyTorch.
"""

from __future__ import annotations

from contextlib import contextmanager
from types import MethodType
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from bngrad.autodiff import stop_gradient
from bngrad.graph.batch_norms import is_training_batch_norm
from bngrad.torch.onnx_ops import op

if TYPE_CHECKING:
    from collections.abc import Iterator


def batch_norm(
    input: Any,  # noqa: A002, ANN401 - PyTorch's name; of onnxscript's
    weight: Any = None,  # noqa: ANN401 - PyTorch 2.9 gives None only to parameters with a default
    bias: Any = None,  # noqa: ANN401
    running_mean: Any = None,  # noqa: ANN401
    running_var: Any = None,  # noqa: ANN401
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:  # noqa: ANN401
    """aten._native_batch_norm_legit_functional -> (Y, mean, inverse deviation, new running mean and variance)."""
    if weight is None:
        weight = op.Expand(op.CastLike(op.Constant(value_float=1.0), running_mean), op.Shape(running_mean))
    if bias is None:
        bias = op.Expand(op.CastLike(op.Constant(value_float=0.0), running_mean), op.Shape(running_mean))
    if not training:
        y = op.BatchNormalization(input, weight, bias, running_mean, running_var, epsilon=eps, training_mode=0)
        inverse = op.Reciprocal(
            op.Sqrt(op.Add(running_var, op.CastLike(op.Constant(value_float=eps), running_var)))
        )
        return y, running_mean, inverse, running_mean, running_var
    y, new_mean, new_var = op.BatchNormalization(
        input, weight, bias, running_mean, running_var, epsilon=eps, momentum=1.0 - momentum, training_mode=1
    )
    # Only a backward pass reads the batch's own statistics; where nothing does, these nodes are removed.
    axes = op.Constant(value_ints=[axis for axis in range(len(input.shape)) if axis != 1])
    mean = op.ReduceMean(input, axes, keepdims=1)
    deviation = op.Sub(input, mean)
    variance = op.ReduceMean(op.Mul(deviation, deviation), axes, keepdims=0)
    inverse = op.Reciprocal(op.Sqrt(op.Add(variance, op.CastLike(op.Constant(value_float=eps), variance))))
    return y, op.ReduceMean(input, axes, keepdims=0), inverse, new_mean, new_var


def stop_statistics(graph: ir.Graph) -> None:
    """Stops gradients at new running statistics that anything but a batch norm in training mode reads.

    PyTorch has none there, and ONNX's outputs are functions of the input.
    """
    for node in [node for node in graph if is_training_batch_norm(node)]:
        for value in node.outputs[1:]:
            for reader, index in list(value.uses()):
                if not (is_training_batch_norm(reader) and index in (3, 4)):
                    stop = ir.node(stop_gradient.NAME, [value], domain=stop_gradient.DOMAIN)
                    stop.outputs[0].type, stop.outputs[0].shape = value.type, value.shape
                    graph.insert_after(node, stop)
                    reader.replace_input_with(index, stop.outputs[0])


_FORWARDS: tuple[Any, ...] = (_BatchNorm.forward, torch.nn.SyncBatchNorm.forward)
"""The forward passes that are PyTorch's own; those of subclasses are the user's."""


@contextmanager
def cumulative_averages(module: torch.nn.Module) -> Iterator[None]:
    """Lets `torch.export` trace batch norms with momentum=None, which compute a momentum from their count."""
    patched = [
        layer
        for layer in module.modules()
        if type(layer).forward in _FORWARDS and layer.momentum is None and layer.track_running_stats
    ]
    for layer in patched:
        vars(layer)["forward"] = MethodType(_cumulative_average, layer)
    try:
        yield
    finally:
        for layer in patched:
            vars(layer).pop("forward", None)


def _cumulative_average(self: Any, input: torch.Tensor) -> Any:  # noqa: A002, ANN401 - PyTorch's name
    """The forward pass of a batch norm whose running statistics are means over all batches.

    running += (batch - running) / count, with the unbiased variance.
    """
    if not self.training:
        return type(self).forward(self, input)
    self._check_input_dim(input)
    self.num_batches_tracked.add_(1)
    # In a block that ran without gradients, the exported program could not write to a buffer a second time.
    with torch.enable_grad():
        axes = [axis for axis in range(input.dim()) if axis != 1]
        count = self.num_batches_tracked.to(self.running_mean.dtype)
        variance, mean = torch.var_mean(input.detach(), axes, correction=1)
        self.running_mean.add_((mean - self.running_mean) / count)
        self.running_var.add_((variance - self.running_var) / count)
    return functional.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)
