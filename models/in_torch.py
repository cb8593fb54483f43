"""Runs the networks of this folder in PyTorch, node by node, from their ONNX graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx
from onnx import helper, numpy_helper
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    import torch

    Tensors = dict[str, torch.Tensor]


def forward(graph: onnx.GraphProto, values: Tensors) -> Tensors:
    """Runs a forward pass.

    Args:
        graph: A graph with only the ops of the networks in this folder.
        values: The graph's inputs and initializers by name.

    Returns:
        The inputs and all computed values by name. The new running variance is unbiased, as PyTorch defines it.
    """
    values = dict(values)
    for node in graph.node:
        attributes = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
        if node.op_type == "Constant":
            values[node.output[0]] = numpy_helper.to_array(attributes["value"])
            continue
        inputs = [values[name] for name in node.input]
        if node.op_type == "BatchNormalization":
            x, scale, bias, mean, var = inputs
            # PyTorch updates the statistics in place, and its momentum is the weight of the new value.
            mean, var = mean.clone(), var.clone()
            momentum, epsilon = 1 - attributes.get("momentum", 0.9), attributes.get("epsilon", 1e-5)
            y = functional.batch_norm(x, mean, var, scale, bias, training=True, momentum=momentum, eps=epsilon)
            values |= {node.output[1]: mean, node.output[2]: var}
        else:
            y = _OPS[node.op_type](attributes, *inputs)
        values[node.output[0]] = y
    return values


def _conv(
    attributes: dict[str, Any], x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    if (top, left) != (bottom, right):
        x, top, left = functional.pad(x, (left, right, top, bottom)), 0, 0
    return functional.conv2d(
        x,
        weight,
        bias,
        stride=attributes.get("strides", 1),
        padding=(top, left),
        dilation=attributes.get("dilations", 1),
        groups=attributes.get("group", 1),
    )


def _max_pool(attributes: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    x = functional.pad(x, (left, right, top, bottom), value=float("-inf"))
    return functional.max_pool2d(x, attributes["kernel_shape"], attributes["strides"])


def _average_pool(attributes: dict[str, Any], x: torch.Tensor) -> torch.Tensor:
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    kernel, strides = attributes["kernel_shape"], attributes["strides"]
    counted = bool(attributes.get("count_include_pad", 0))
    if (top, left) == (bottom, right):
        return functional.avg_pool2d(x, kernel, strides, padding=(top, left), count_include_pad=counted)
    padding = (left, right, top, bottom)
    sums = functional.avg_pool2d(functional.pad(x, padding), kernel, strides)
    if counted:
        return sums
    ones = functional.pad(x.new_ones(1, 1, *x.shape[2:]), padding)
    return sums / functional.avg_pool2d(ones, kernel, strides)


def _unsqueeze(_attributes: dict[str, Any], x: torch.Tensor, axes: npt.NDArray[Any]) -> torch.Tensor:
    for axis in sorted(int(a) for a in axes):
        x = x.unsqueeze(axis)
    return x


_OPS: dict[str, Callable[..., Any]] = {
    "Add": lambda _, a, b: a + b,
    "AveragePool": _average_pool,
    "Concat": lambda attributes, *x: _cat(x, attributes["axis"]),
    "Conv": _conv,
    "Flatten": lambda _, x: x.flatten(1),
    "Gemm": lambda _, x, weight, bias: functional.linear(x, weight, bias),
    "GlobalAveragePool": lambda _, x: x.mean(dim=(2, 3), keepdim=True),
    "MaxPool": _max_pool,
    "Mul": lambda _, a, b: a * b,
    "Relu": lambda _, x: functional.relu(x),
    "Reshape": lambda _, x, shape: x.reshape(
        [x.shape[i] if int(size) == 0 else int(size) for i, size in enumerate(shape)]
    ),
    "SoftmaxCrossEntropyLoss": lambda _, x, labels: functional.cross_entropy(x, labels),
    "Transpose": lambda attributes, x: x.permute(attributes["perm"]),
    "Unsqueeze": _unsqueeze,
}


def _cat(tensors: tuple[torch.Tensor, ...], axis: int) -> torch.Tensor:
    import torch  # noqa: PLC0415

    return torch.cat(tensors, axis)
