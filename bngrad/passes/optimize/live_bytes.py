"""The bytes that are alive while ONNX Runtime runs a graph on a CPU, simulated in its order of execution.

Alive are inputs and constants all the time, and a result from its node to the last one that reads it, or to the
end if it is an output. Not counted: what kernels need while they run, and the values in the functions of ops that
have no kernel. The order is that of a session without optimizations; of a graph whose gradients are ordered (see
`Site`), that of all sessions.
"""

from __future__ import annotations

from math import ceil, prod
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from bngrad.graph.nodes import describe
from bngrad.graph.subgraphs import subgraphs
from bngrad.opset.known_shapes import size_text, type_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

_SAME_BUFFER = ("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Ops whose result is their first input, without a copy."""

_SAME_SIZE = (*_SAME_BUFFER, "Transpose")


class Run(NamedTuple):
    """A simulated run of a graph."""

    order: list[ir.Node]
    """The nodes in the order in which they run, without constants."""
    peak: int
    """The most bytes that are alive."""
    at: int
    """The index of the node that runs then."""
    buffers: dict[ir.Value, ir.Value]
    """The value whose buffer a result has, if it is not its own."""
    reads: dict[ir.Value, list[int]]
    """The indices of the nodes that read a buffer, by its value; of an output, the end, too."""
    makers: dict[ir.Value, int]
    """The index of the node that makes a buffer, by its value."""

    def holds(self, value: ir.Value, without: Collection[ir.Node] = ()) -> bool:
        """Tests whether a value is alive at the peak, also if some nodes that run later did not read it."""
        buffer = self.buffers.get(value, value)
        if self.makers.get(buffer, -1) > self.at:
            return False
        later = (index for index in self.reads.get(buffer, []) if index > self.at)
        return (
            buffer not in self.makers
            or self.at in (self.makers[buffer], *self.reads.get(buffer, []))
            or any(index == len(self.order) or self.order[index] not in without for index in later)
        )


class LiveBytes:
    """The nodes of a graph, and the bytes of its values.

    Args:
        graph: A main graph for stock ONNX Runtime, whose nodes are sorted topologically.
        outputs_first: Whether outputs have memory before the run, as a `Trainer` gives it to the new state.

    Raises:
        InputError: An input has a symbolic dimension.
        ModelError: The size of another value is unknown.
        UnsupportedNodeError: A node has a subgraph, whose values are not counted.
    """

    def __init__(self, graph: ir.Graph, *, outputs_first: bool = False) -> None:
        self._graph, self._outputs_first = graph, outputs_first
        self._outputs = set(graph.outputs)
        self._constants = {node for node in graph if node.op_type == "Constant" and not node.domain}
        self.bytes: dict[ir.Value, int] = {}
        """The bytes of each value."""
        for value in (*graph.inputs, *graph.initializers.values()):
            if not _is_known(value) and value.const_value is None:
                raise InputError(_symbolic(value))
            tensor = value.const_value
            self.bytes[value] = _bytes(value) if tensor is None or _is_known(value) else tensor.nbytes
        for node in graph:
            if any(True for _ in subgraphs(node)):
                raise UnsupportedNodeError(
                    f"memory is given in bytes, and {describe(node)} has a body, whose values are not counted; "
                    "expected memory full or lean"
                )
            for value in filter(_is_named, node.outputs):
                self.bytes[value] = self._bytes_of(node, value)

    def run(self, instead: Mapping[ir.Value, ir.Value] | None = None) -> Run:
        """Simulates a run of the nodes that outputs need.

        Args:
            instead: Values that are read instead of others, and made before these.
        """
        order = self._order(instead or {})
        buffers: dict[ir.Value, ir.Value] = {}
        reads: dict[ir.Value, list[int]] = {}
        makers: dict[ir.Value, int] = {}
        for index, node in enumerate(order):
            for value in _inputs(node, instead or {}):
                reads.setdefault(buffers.get(value, value), []).append(index)
            for value in filter(_is_named, node.outputs):
                if _in_place(node) and value not in self._outputs:
                    x = (instead or {}).get(node.inputs[0], node.inputs[0])  # type: ignore[arg-type]
                    buffers[value] = buffers.get(x, x)
                else:
                    makers[value] = index
        for value in self._outputs & makers.keys():
            reads.setdefault(value, []).append(len(order))
        first = {value for value in self._outputs & makers.keys() if self._outputs_first}
        changes = [0] * (len(order) + 2)
        for value, index in makers.items():
            changes[0 if value in first else index] += self.bytes[value]
            changes[max(reads.get(value, [index])) + 1] -= self.bytes[value]
        changes[0] += sum(self.bytes[value] for value in self._before_run(reads))
        alive = peak = at = 0
        for index, change in enumerate(changes):
            alive += change
            if alive > peak:
                peak, at = alive, index
        return Run(order, peak, at, buffers, reads, makers)

    def _before_run(self, used: Collection[ir.Value]) -> set[ir.Value]:
        """The values that are there before, without the constants that nothing reads."""
        constants = (value for node in self._constants for value in node.outputs if value in used)
        return {*self._graph.inputs, *self._graph.initializers.values(), *constants}

    def _bytes_of(self, node: ir.Node, value: ir.Value) -> int:
        """The bytes of a result, of which some shapes are not inferred."""
        if not _is_known(value):
            x = node.inputs[0] if not node.domain and node.op_type in _SAME_SIZE and node.inputs else None
            if x is not None and x in self.bytes and value.dtype == x.dtype:
                return self.bytes[x]
            raise ModelError(
                f"memory is given in bytes, and those of {value.name!r} of {describe(node)} are unknown, which is "
                f"{type_text(value)}; expected memory full or lean, or a model whose sizes are known"
            )
        return _bytes(value)

    def _order(self, instead: Mapping[ir.Value, ir.Value]) -> list[ir.Node]:
        """The nodes in the order in which they run: see `order_by_depth`, by which they are sorted before."""
        needed, used = set(self._outputs), []
        for node in reversed(self._graph):
            if not needed.isdisjoint(node.outputs):
                used.append(node)
                needed.update(_inputs(node, instead))
        nodes = used[::-1]
        depth: dict[ir.Value, int] = {}
        for node in nodes:
            level = 1 + max((depth.get(value, 0) for value in _inputs(node, instead)), default=0)
            depth.update(dict.fromkeys(node.outputs, level))
        nodes.sort(key=lambda node: depth[node.outputs[0]])
        place = {node: index for index, node in enumerate(nodes) if node not in self._constants}
        inputs = {value for node in place for value in _inputs(node, instead)}
        stack = [(node, False) for node in place if inputs.isdisjoint(node.outputs)]
        order, visited = [], set()
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                order.append(node)
            elif node not in visited:
                visited.add(node)
                stack.append((node, True))
                makers = (value.producer() for value in _inputs(node, instead))
                before = {maker for maker in makers if maker is not None and maker in place}
                stack += [(maker, False) for maker in sorted(before, key=place.__getitem__)]
        return order


def readers(value: ir.Value) -> Iterator[ir.Node]:
    """Yields the nodes that read the buffer of a value, which results of some of them have, too."""
    for node, index in value.uses():
        yield node
        if index == 0 and _in_place(node):
            yield from readers(node.outputs[0])


def _inputs(node: ir.Node, instead: Mapping[ir.Value, ir.Value]) -> Iterator[ir.Value]:
    return (instead.get(value, value) for value in node.inputs if value is not None)


def _in_place(node: ir.Node) -> bool:
    return not node.domain and node.op_type in _SAME_BUFFER


def _is_named(value: ir.Value) -> bool:
    return bool(value.name)


def _is_known(value: ir.Value) -> bool:
    return (
        isinstance(value.type, ir.TensorType)
        and value.dtype != ir.DataType.STRING
        and value.shape is not None
        and value.shape.is_static()
    )


def _bytes(value: ir.Value) -> int:
    assert value.dtype is not None and value.shape is not None, "see `_is_known`"  # noqa: S101, PT018
    return ceil(value.dtype.itemsize * prod(value.shape.numpy()))


def _symbolic(value: ir.Value) -> str:
    """The message about an input whose size is unknown."""
    names = [size_text(size) for size in value.shape or () if not isinstance(size, int)]
    name = next((name for name in names if name != "?"), None)
    how = f"--dim_param {name} --dim_value 8" if name else f"--input_name {value.name} --input_shape 8,3,224,224"
    return (
        f"memory is given in bytes, and input {value.name!r} is {type_text(value)}; expected inputs of known "
        f"sizes: fix them with `python -m onnxruntime.tools.make_dynamic_shape_fixed {how} MODEL FIXED`, or give "
        "dynamic_batch=False in bngrad.torch"
    )
