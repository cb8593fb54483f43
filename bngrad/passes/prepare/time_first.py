"""Puts LSTM, GRU and RNN with ``layout = 1`` between transposes: stock ONNX Runtime runs no layout but 0.

::

    y, h = RNN <layout = 1> (x, ..., h0)    ->    y, h = T(RNN(T x, ..., T h0)), each with a T of its own
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.node_makers import NodesAfter, NodesBefore
from bngrad.graph.node_reader import read_attribute
from bngrad.graph.subgraphs import nodes_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.graph.fresh_names import Names

_RECURRENT = ("GRU", "LSTM", "RNN")
_WITH_BATCH = (0, 5, 6)
"""The inputs that have a batch: X, and the first states."""


def put_time_first(graph: ir.Graph, names: Names) -> None:
    """Transposes what such nodes of a graph and its bodies read and return.

    Args:
        graph: The main graph of a model; it is changed, and the types of the new values are not inferred.
        names: The source of new names.
    """
    for node in list(nodes_of(graph)):
        if node.domain == "" and node.op_type in _RECURRENT and read_attribute(node, "layout", 0):
            _put_time_first(node, names)


def _put_time_first(node: ir.Node, names: Names) -> None:
    before = NodesBefore(node, names, str(node.name))
    for index in _WITH_BATCH:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None:
            node.replace_input_with(index, before.op("Transpose", value, perm=[1, 0, 2]))
    after = NodesAfter(node, names, str(node.name))
    for index, value in enumerate(node.outputs):
        if value.name:
            name, value.name = value.name, names.fresh(f"{value.name}_time_first")
            turned = after.op("Transpose", None, perm=[1, 0, 2] if index else [2, 0, 1, 3])
            turned.name, turned.type, turned.shape, value.shape = name, value.type, value.shape, None
            turned.metadata_props.update(value.metadata_props)
            value.replace_all_uses_with(turned, replace_graph_outputs=True)
            transpose = turned.producer()
            assert transpose is not None, "it was just made"  # noqa: S101
            transpose.replace_input_with(0, value)
    del node.attributes["layout"]
