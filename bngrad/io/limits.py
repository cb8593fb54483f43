"""Checks of a model file before it is converted: limits, without which a small file would cost minutes.

SECURITY.md lists them. They are far beyond what models have, and within what all passes and onnx can process.
"""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import TYPE_CHECKING, Any

import onnx

from bngrad.graph.nodes import node_text
from bngrad.io.external_files import require_entries

if TYPE_CHECKING:
    from collections.abc import Iterator

    Scope = onnx.GraphProto | onnx.FunctionProto
    _FunctionName = tuple[str, str]

MAX_RANK = 64
"""The rank of a value: NumPy's limit. Passes and onnx take time with its square."""
MAX_NESTING = 16
"""Subgraphs within subgraphs, through function calls, too: protobuf writes 33 levels, and passes add some."""
MAX_CALL_DEPTH = 64
"""Functions that call functions: onnx processes them recursively."""
MAX_INLINED_NODES = 100_000
"""Nodes with all functions inlined, of a model that calls functions: one that doubles has 2^20 in 2 KB."""
MAX_ATTRIBUTES = 1000
"""Attributes of a node."""
MAX_NAME = 10_000
"""Characters of a name."""

_SHAPE_INPUTS = {"Reshape": 1, "Expand": 1, "Unsqueeze": 1, "Squeeze": 1, "ConstantOfShape": 0}
"""The ops whose output has the rank that an input states, and the index of that input."""


def require_limits(proto: onnx.ModelProto) -> None:
    """Checks that a model is within the limits, in time proportional to its size.

    Raises:
        ValueError: It is not, its functions call each other in a cycle, or an entry of external data is wrong.
    """
    scopes: dict[_FunctionName, _Scope] = {}
    main = _Scope(proto.graph)
    for function in proto.functions:
        name = called_function(function.domain, function.name)
        _require_names((function.name, function.domain, *function.input, *function.output), "a function")
        scopes[name] = _Scope(function) if name not in scopes else scopes[name].joined(_Scope(function))
    _require_names((entry.domain for entry in proto.opset_import), "an opset import")
    _require_expansion(main, scopes)


class _Scope:
    """The nodes, subgraphs and sizes of a graph or a function, with its subgraphs.

    Raises:
        ValueError: A part of it is beyond a limit.
    """

    def __init__(self, scope: Scope) -> None:
        self.nodes: Counter[_FunctionName] = Counter()
        """The number of nodes by op."""
        self.levels: dict[_FunctionName, int] = {}
        """The greatest number of subgraphs around a node of each op."""
        self.nesting = 0
        sizes: dict[str, int] = {}  # of constants that may be shapes or axes
        sources: list[str] = []
        waiting: list[tuple[Any, int]] = [(scope, 0)]
        while waiting:
            graph, level = waiting.pop()
            _require_nesting(level)
            self.nesting = max(self.nesting, level)
            if isinstance(graph, onnx.GraphProto):
                _require_graph(graph)
                sizes |= {tensor.name: prod(tensor.dims) for tensor in graph.initializer if len(tensor.dims) == 1}
            else:
                _require_values(graph.value_info)
            for node in graph.node:
                key = called_function(node.domain, node.op_type)
                self.nodes[key] += 1
                self.levels[key] = max(self.levels.get(key, 0), level)
                waiting += ((inner, level + 1) for inner in _require_node(node))
                if node.op_type == "Constant" and node.output:
                    sizes[node.output[0]] = max([0, *(max(prod(a.t.dims), len(a.ints)) for a in node.attribute)])
                index = _SHAPE_INPUTS.get(node.op_type)
                sources += [] if index is None or index >= len(node.input) else [node.input[index]]
        for name in sources:
            _require_rank(sizes.get(name, 0), name, "elements, and is a shape or its axes")

    def joined(self, other: _Scope) -> _Scope:
        """Returns the scope with the parts of another, an overload of the same function."""
        self.nodes |= other.nodes
        self.levels |= {key: max(level, self.levels.get(key, 0)) for key, level in other.levels.items()}
        self.nesting = max(self.nesting, other.nesting)
        return self


def called_function(domain: str, name: str) -> _FunctionName:
    """Returns the function that shape inference uses for a call: it ignores overloads, and "ai.onnx" means ""."""
    return "" if domain == "ai.onnx" else domain, name


def _require_expansion(main: _Scope, scopes: dict[_FunctionName, _Scope]) -> None:
    """Checks the number of nodes and the nesting of a model with its functions inlined."""
    calls = {name: scope.nodes.keys() & scopes.keys() for name, scope in scopes.items()}
    try:
        order = [*TopologicalSorter(calls).static_order()]
    except CycleError as error:
        cycle = " -> ".join(f"{domain}.{name}" if domain else name for domain, name in error.args[1])
        raise ValueError(f"its functions call each other in a cycle: {cycle}") from None
    totals: dict[_FunctionName, tuple[int, int, int]] = {}
    for name in [*order, None]:
        scope = main if name is None else scopes[name]
        nodes, nesting, depth = 0, scope.nesting, 0
        for key, count in scope.nodes.items():
            inner = totals.get(key, (1, 0, -1))
            nodes += count * inner[0]
            nesting = max(nesting, scope.levels[key] + inner[1])
            depth = max(depth, inner[2] + 1)
        if depth > MAX_CALL_DEPTH:
            raise ValueError(f"its functions call each other {depth} deep; expected at most {MAX_CALL_DEPTH}")
        if depth and nodes > MAX_INLINED_NODES:
            raise ValueError(
                f"it has {nodes} nodes after inlining its functions; expected at most {MAX_INLINED_NODES}"
            )
        _require_nesting(nesting)
        if name is not None:
            totals[name] = nodes, nesting, depth


def _require_nesting(level: int) -> None:
    if level > MAX_NESTING:
        raise ValueError(f"it has subgraphs nested {level} deep; expected at most {MAX_NESTING}")


def _require_graph(graph: onnx.GraphProto) -> None:
    _require_names([graph.name], "a graph")
    _require_values((*graph.input, *graph.output, *graph.value_info))
    for tensor in graph.initializer:
        _require_tensor(tensor)
    for sparse in graph.sparse_initializer:
        _require_tensor(sparse.values)
        _require_rank(len(sparse.dims), sparse.values.name)


def _require_values(values: Any) -> None:  # noqa: ANN401 - protobuf's containers
    for value in values:
        _require_names([value.name], "a value")
        _require_type(value.type, value.name)


def _require_type(kind: onnx.TypeProto, name: str) -> None:
    while True:
        for tensor in (kind.tensor_type, kind.sparse_tensor_type):
            _require_rank(len(tensor.shape.dim), name)
            _require_names((dim.dim_param for dim in tensor.shape.dim), "a dimension")
        which = kind.WhichOneof("value")
        if which in ("sequence_type", "optional_type"):
            kind = getattr(kind, which).elem_type
        elif which == "map_type":
            kind = kind.map_type.value_type
        else:
            return


def _require_node(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Checks a node, and yields its subgraphs."""
    texts = (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
    _require_names(texts, "a node or a value")
    if len(node.attribute) > MAX_ATTRIBUTES:
        what = f"{node_text(node.op_type, node.name, node.output)} has {len(node.attribute)} attributes"
        raise ValueError(f"{what}; expected at most {MAX_ATTRIBUTES}")
    for attribute in node.attribute:
        _require_names((attribute.name, attribute.ref_attr_name), "an attribute")
        if attribute.HasField("t"):
            _require_tensor(attribute.t)
        for tensor in attribute.tensors:
            _require_tensor(tensor)
        if attribute.name in ("axes", "perm", "shape"):
            _require_rank(len(attribute.ints), node.output[0] if node.output else "")
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _require_tensor(tensor: onnx.TensorProto) -> None:
    _require_names([tensor.name], "a tensor")
    _require_rank(len(tensor.dims), tensor.name)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        require_entries(tensor)


def _require_rank(rank: int, name: str, what: str = "dimensions") -> None:
    if rank > MAX_RANK:
        raise ValueError(f"value {name!r} has {rank} {what}; expected at most {MAX_RANK}")


def _require_names(names: Any, what: str) -> None:  # noqa: ANN401 - any iterable of texts
    for name in names:
        if len(name) > MAX_NAME:
            begin = name[:40] if isinstance(name, str) else "..."
            raise ValueError(
                f"{what} has a name of {len(name)} characters, {begin!r}...; expected at most {MAX_NAME}"
            )
