"""Shapes that a file states for intermediate values, against those that onnx infers.

jax2onnx writes convolutions and batch norms in NCHW between two Transposes and removes the Transposes that cancel,
but still states [N, H, W, C] for the values between them. ONNX Runtime drops such a shape with a warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from bngrad.graph.subgraphs import proto_subgraphs

if TYPE_CHECKING:
    from collections.abc import Iterator

STATES_WRONG_SHAPES = ("jax2onnx",)
"""Producers of such files. With symbolic sizes onnx does not see the contradiction and merges both shapes."""


def infer_without_wrong_shapes(model: onnx.ModelProto, *, data_prop: bool) -> onnx.ModelProto:
    """Infers shapes, without the stated ones that contradict those that onnx infers from only the inputs.

    Raises:
        onnx.shape_inference.InferenceError: The model contradicts itself in another way as well.
    """
    bare = _copy(model)
    for graph in _graphs(bare.graph):
        del graph.value_info[:]
    bare = onnx.shape_inference.infer_shapes(bare, data_prop=data_prop)
    result = _copy(model)
    for graph, inferred in zip(_graphs(result.graph), _graphs(bare.graph), strict=True):
        inferred_types = {info.name: info.type for info in inferred.value_info}
        kept = [
            info
            for info in graph.value_info
            if info.name not in inferred_types or _agree(info.type, inferred_types[info.name])
        ]
        del graph.value_info[:]
        graph.value_info.extend(kept)
    return onnx.shape_inference.infer_shapes(result, strict_mode=True, data_prop=data_prop)


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yields a graph and all its subgraphs."""
    yield graph
    for node in graph.node:
        for subgraph in proto_subgraphs(node):
            yield from _graphs(subgraph)


def _agree(stated: onnx.TypeProto, inferred: onnx.TypeProto) -> bool:
    """Tests whether a stated shape agrees with the inferred one. A symbol does not agree with a size."""
    a, b = stated.tensor_type, inferred.tensor_type
    if not (a.HasField("shape") and b.HasField("shape")):
        return True
    if len(a.shape.dim) != len(b.shape.dim):
        return False
    pairs = zip(a.shape.dim, b.shape.dim, strict=True)
    return not any(
        new.HasField("dim_value") and (old.dim_param or old.HasField("dim_value")) and old != new
        for old, new in pairs
    )
