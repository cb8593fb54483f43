"""Random choices for mutations, and access to the parts of a model."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx

NAMES = ("", "x", "y", "loss", "w", "a\nb", "[red]x[/red]", "é\u0000ß", "../x", "x" * 5000, "%s%n", "-o", "x_grad")
"""Names for values, nodes, attributes and domains."""

SIZES = (0, 1, 2, 3, 7, -1, -3, 1 << 31, (1 << 31) - 1, 1 << 40, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))
"""Integers for dimensions and counts, all valid in protobuf."""

FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))


class Draw(random.Random):
    """A random generator that is determined by its key, such as a seed and an index, on every machine."""

    def __init__(self, *key: object) -> None:
        super().__init__(":".join(map(str, key)))

    def chance(self, probability: float) -> bool:
        """Returns True with the given probability."""
        return self.random() < probability

    def some(self, items: Sequence[Any]) -> Any:
        """Returns a random item; None if there are none."""
        return self.choice(items) if len(items) else None


Graph = "onnx.GraphProto | onnx.FunctionProto"


def graphs(model: onnx.ModelProto) -> Iterator[Any]:
    """Yields the main graph, all subgraphs and all functions."""
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Returns all nodes, including those of subgraphs and functions."""
    return [node for graph in graphs(model) for node in graph.node]


def value_names(model: onnx.ModelProto) -> list[str]:
    """Returns the names of all values that a node may read."""
    graph = model.graph
    names = [value.name for value in (*graph.input, *graph.initializer)]
    return names + [name for node in nodes(model) for name in node.output if name]


def value_infos(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns all graph inputs, graph outputs and value_info entries."""
    infos = []
    for graph in graphs(model):
        infos += graph.value_info
        if hasattr(graph, "initializer"):
            infos += [*graph.input, *graph.output]
    return infos


def tensors(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Returns all initializers and all tensors in attributes."""
    result = []
    for graph in graphs(model):
        result += getattr(graph, "initializer", [])
        result += [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    return result
