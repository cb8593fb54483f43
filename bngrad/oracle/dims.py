"""Symbolic dimensions, which the pooling gradients of ORT 1.19.2 do not support.

The kernels of `MaxPoolGrad` and `AveragePoolGrad` take the shape of their output from its *static* type, in which
a symbolic dimension counts as 0: the gradient has batch size 0, the next kernel reads out of bounds, or the
process crashes. So a model that has them is run with numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    import onnx
    from numpy.typing import NDArray

_BOUND_TO_STATIC_SHAPE = {"AveragePoolGrad", "MaxPoolGrad"}


def bind(graph: onnx.GraphProto, sizes: Mapping[str, int]) -> None:
    """Gives the named dimensions of a graph's values numbers."""
    for dim in _dims(graph):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


def sizes(graph: onnx.GraphProto, feeds: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The numbers that feeds have for the named dimensions of a graph's inputs."""
    return {
        dim.dim_param: size
        for value in graph.input
        if value.name in feeds
        for dim, size in zip(value.type.tensor_type.shape.dim, np.shape(feeds[value.name]), strict=False)
        if dim.dim_param
    }


def unbound(graph: onnx.GraphProto) -> list[str]:
    """The values whose kernel needs a static shape, and that have none."""
    outputs = {node.output[0] for node in graph.node if node.op_type in _BOUND_TO_STATIC_SHAPE}
    if not outputs:
        return []
    static = {
        value.name
        for value in (*graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
    return sorted(outputs - static)


def _dims(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """The dimensions of all values whose types are stated."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from value.type.tensor_type.shape.dim
