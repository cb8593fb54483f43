"""A hash of the computation of a graph, independent of the names of its values and the order of its nodes.

It covers the names and types of the inputs, the ops with their attributes and opsets, and the contents of
constants, including those in external data. It does not cover metadata, values that are not used, and the
functions of ``bngrad``, which are an implementation of its ops.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_OWN = "bngrad"
"""The domain whose functions and opset do not count."""

STANDS_FOR = "bngrad.stands_for"
"""The key in the ``meta`` of a node for the op, attributes and inputs of the node of ONNX that it replaced, which
count instead."""


def graph_digest(model: ir.Model, outputs: Mapping[str, ir.Value]) -> str:
    """Returns the SHA-256 of the computation of some values of a model.

    Args:
        model: The model; its nodes are sorted topologically.
        outputs: The values, under names that do not depend on the names of the model's outputs.
    """
    return _Digest(model).of_outputs(outputs)


class _Digest:
    def __init__(self, model: ir.Model) -> None:
        self._model = model
        self._known: dict[ir.Value, bytes] = {}
        for value in model.graph.inputs:
            self._known[value] = _hash("input", value.name, None if value.dtype is None else value.dtype.name)

    def of_outputs(self, outputs: Mapping[str, ir.Value]) -> str:
        model = self._model
        self._add_nodes(model.graph)
        parts: list[Any] = [(name, self._value(value)) for name, value in sorted(outputs.items())]
        for key, function in sorted(model.functions.items()):
            if function.domain != _OWN:
                parts.append((key, self._body(function), sorted(function.opset_imports.items())))
        opsets = sorted(item for item in model.opset_imports.items() if item[0] != _OWN)
        return _hash("graph", opsets, *parts).hex()

    def _value(self, value: ir.Value | None) -> bytes:
        if value is None:
            return b""
        if value not in self._known:  # an initializer
            tensor = value.const_value
            self._known[value] = _hash("unknown", value.name) if tensor is None else _tensor_hash(tensor)
        return self._known[value]

    def _add_nodes(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            own = (node.domain, node.op_type, node.overload), node.attributes, node.inputs
            op, named, values = node.meta.get(STANDS_FOR, own)
            attributes = sorted((name, self._attribute(attribute)) for name, attribute in named.items())
            digest = _hash("node", *op, attributes, [self._value(value) for value in values])
            for index, value in enumerate(node.outputs):
                self._known[value] = _hash(digest, index)

    def _body(self, graph: ir.Graph | ir.Function) -> bytes:
        """The hash of a subgraph or a function, whose inputs have numbers."""
        for index, value in enumerate(graph.inputs):
            self._known[value] = _hash("argument", index)
        self._add_nodes(graph)
        return _hash("body", [self._value(value) for value in graph.outputs])

    def _attribute(self, attribute: ir.Attr) -> bytes:
        if attribute.is_ref():
            return _hash("reference", attribute.ref_attr_name)
        value: Any = attribute.value
        match attribute.type:
            case ir.AttributeType.GRAPH:
                value = self._body(value)
            case ir.AttributeType.GRAPHS:
                value = [self._body(graph) for graph in value]
            case ir.AttributeType.TENSOR:
                value = _tensor_hash(value)
            case ir.AttributeType.TENSORS:
                value = [_tensor_hash(tensor) for tensor in value]
            # As in a file: an enumeration is an integer, and a float has 32 bits.
            case ir.AttributeType.INT | ir.AttributeType.INTS:
                value = np.asarray(value, np.int64).tolist()
            case ir.AttributeType.FLOAT | ir.AttributeType.FLOATS:
                value = np.asarray(value, np.float32).tolist()
            case ir.AttributeType.STRINGS:
                value = list(value)
        return _hash(attribute.type.name, value)


def _tensor_hash(tensor: ir.TensorProtocol) -> bytes:
    if tensor.dtype == ir.DataType.STRING:
        content: Any = [str(text) for text in tensor.numpy().ravel().tolist()]
    else:
        content = hashlib.sha256(tensor.tobytes()).digest()
    return _hash("tensor", tensor.dtype.name, list(tensor.shape.numpy()), content)


def _hash(*parts: Any) -> bytes:  # noqa: ANN401 - numbers, texts, bytes and lists of them
    return hashlib.sha256(repr(parts).encode()).digest()
