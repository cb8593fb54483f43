"""Errors of ONNX Runtime about missing CPU kernels, as one line that names the node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import onnxruntime

from bngrad.errors import UnsupportedNodeError
from bngrad.graph.nodes import all_nodes, describe

if TYPE_CHECKING:
    import onnx_ir as ir

_MISSING = re.compile(r"Could not find an implementation for (?P<op>\w+)\(\d+\) node with name '(?P<node>.*)'")
_INVALID = re.compile(
    r"Type 'tensor\((?P<type>\w+)\)' of (?:input|output) parameter \((?P<value>.*)\) of operator \((?P<op>\w+)\) "
    r"in node \((?P<node>.*)\) is invalid"
)
_OF_FUNCTION = re.compile(r"_inlfunc_(?P<function>[A-Za-z]+)_")
"""The names that ONNX Runtime gives to values of an op that it replaces by its definition."""


def no_kernel(model: ir.Model, error: Exception) -> UnsupportedNodeError | None:
    """Returns the error to raise if ONNX Runtime has no kernel for a node of a session; else None.

    Args:
        model: The model of the session.
        error: The error of ONNX Runtime.
    """
    text = " ".join(str(error).split())
    match = _MISSING.search(text) or _INVALID.search(text)
    if match is None:
        return None
    parts, op = match.groupdict(), match["op"]
    node = next((node for node in all_nodes(model) if node.name and node.name == match["node"]), None)
    types = [parts["type"]] if "type" in parts else [] if node is None else _types(node)
    if node is not None:
        where = f", which {describe(node)} needs"
    elif function := _OF_FUNCTION.search(" ".join(map(str, parts.values()))):
        where = f", which is part of {function['function']}"
    else:
        where = f", which node {match['node']!r} needs"
    of_types = f" for {' and '.join(types)}" if types else ""
    return UnsupportedNodeError(
        f"ONNX Runtime {onnxruntime.__version__} has no CPU kernel of {op}{of_types}{where}; export the model, or "
        "the part with this node, in float32"
    )


def _types(node: ir.Node) -> list[str]:
    """Returns the types of the inputs of a node, each once."""
    return list(dict.fromkeys(v.dtype.name.lower() for v in node.inputs if v is not None and v.dtype is not None))
