"""Indices beyond the end in files of jax2onnx, as JAX has them.

JAX moves a slice or an update that reaches beyond an array into it, and `jax.nn.one_hot` of a number beyond the
classes is 0. jax2onnx takes negative starts and classes from the end, and cuts slices off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnx import helper

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableSequence, Sequence

    import onnx


def limit_indices(model: onnx.ModelProto) -> None:
    """Changes the slices, updates and one-hot vectors of a model of jax2onnx to those of JAX.

    Args:
        model: The model, with the names that jax2onnx gives values.
    """
    for graph in (model.graph, *model.functions):
        for nodes in _bodies(graph.node):
            ends = {node.output[0]: node for node in nodes if "dyn_slice_ends" in node.output[0]}
            for index, node in reversed(list(enumerate(nodes))):
                if node.op_type == "Slice" and node.input[2] in ends:
                    _insert(nodes, index, _moved_slice(node, *ends[node.input[2]].input))
                elif node.op_type == "OneHot":
                    _insert(nodes, index, _classes_from_0(node))
                elif "dus_start_norm" in node.output[0]:  # negative starts are counted from the end already
                    node.input[1] = node.input[2]


def _bodies(nodes: MutableSequence[onnx.NodeProto]) -> Iterator[MutableSequence[onnx.NodeProto]]:
    """Yields the nodes of a graph, and those of the bodies in it."""
    yield nodes
    for node in nodes:
        for attribute in node.attribute:
            if attribute.g.node:
                yield from _bodies(attribute.g.node)


def _insert(nodes: MutableSequence[onnx.NodeProto], index: int, steps: Sequence[onnx.NodeProto]) -> None:
    for step in reversed(steps):
        nodes.insert(index, step)


def _moved_slice(node: onnx.NodeProto, starts: str, sizes: str) -> list[onnx.NodeProto]:
    """Lets a slice of all axes start where it ends within the array, and returns the new nodes."""
    name = node.output[0]
    shape, last, zero, start, moved, end = (
        f"{name}_{part}" for part in ("shape", "last", "0", "raised", "start", "end")
    )
    steps = [
        helper.make_node("Shape", node.input[:1], [shape]),
        helper.make_node("Sub", [shape, sizes], [last]),
        helper.make_node("Sub", [sizes, sizes], [zero]),
        helper.make_node("Max", [starts, zero], [start]),
        helper.make_node("Min", [start, last], [moved]),
        helper.make_node("Add", [moved, sizes], [end]),
    ]
    node.input[1], node.input[2] = moved, end
    return steps


def _classes_from_0(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Replaces negative classes of a OneHot by one beyond the last, and returns the new nodes."""
    (classes, depth, _), name = node.input, node.output[0]
    zero, negative, limited = f"{name}_0", f"{name}_negative", f"{name}_classes"
    node.input[0] = limited
    return [
        helper.make_node("Sub", [depth, depth], [zero]),
        helper.make_node("Less", [classes, zero], [negative]),
        helper.make_node("Where", [negative, depth, classes], [limited]),
    ]
