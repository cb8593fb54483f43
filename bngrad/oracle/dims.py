"""Symbolic dimensions, which some of the oracle's kernels cannot live with.

`MaxPoolGrad` and `AveragePoolGrad` are not given the shape of the result that they make: the kernels take it from
the *static* type of their output. A dimension without a number counts as 0 there (measured on 1.19.2: a gradient
of batch size 0, which the next kernel reads out of bounds, or a crash). So a model that has them is run with
numbers.
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
    """Give the named dimensions of a graph's values numbers."""
    for dim in _dims(graph):
        if dim.dim_param in sizes:
            dim.dim_value = sizes[dim.dim_param]


def names(graph: onnx.GraphProto) -> set[str]:
    """The named dimensions of a graph's inputs."""
    return {dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim if dim.dim_param}


def sizes(graph: onnx.GraphProto, feeds: Mapping[str, NDArray[Any]]) -> dict[str, int]:
    """The numbers that feeds give to the named dimensions of a graph's inputs."""
    return {
        dim.dim_param: size
        for value in graph.input
        if value.name in feeds
        for dim, size in zip(value.type.tensor_type.shape.dim, np.shape(feeds[value.name]), strict=False)
        if dim.dim_param
    }


def unbound(graph: onnx.GraphProto) -> list[str]:
    """The values that a kernel makes by their static shape, and whose static shape is not all numbers."""
    wanted = {node.output[0] for node in graph.node if node.op_type in _BOUND_TO_STATIC_SHAPE}
    if not wanted:
        return []
    static = {
        value.name
        for value in (*graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)
    }
    return sorted(wanted - static)


def _dims(graph: onnx.GraphProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """The dimensions of all values whose types are stated."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield from value.type.tensor_type.shape.dim
