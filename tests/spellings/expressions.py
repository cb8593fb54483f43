"""Expressions of a batch norm over numbered axes, without layouts.

A value varies along a set of axes: data along all of them, a parameter along those that the batch norm keeps, a
number along none. Nodes are interned by their `Space`: equal expressions are one object, so an expression is a
graph that shares all common parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, eq=False)
class Node:
    """An operation, a number or an input.

    Attributes:
        op: A key of `COMPUTE`, or ``leaf``, ``const``, ``count``, ``pow``, ``expand``, or one of `REDUCTIONS`.
        args: Operands.
        value: The name of a leaf, the number of a constant, the exponent of a power, or the axes of a reduction.
        axes: The axes along which its value varies.
    """

    op: str
    args: tuple[Node, ...]
    value: object
    axes: frozenset[int]


COMPUTE = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "sqrt": np.sqrt,
    "recip": np.reciprocal,
    "abs": np.abs,
    "identity": lambda a: a,
    "relu": lambda a: np.maximum(a, 0.0),
    "gate": lambda a, z: np.where(z > 0, a, 0.0),
}
REDUCTIONS = ("sum", "mean")


class Space:
    """The axes of one batch norm, and all nodes over them.

    Args:
        sizes: The size of each axis of the data.
        reduced: The axes that the batch norm reduces.
        dynamic: Whether the size of axis 0 is unknown in the model.
    """

    def __init__(self, sizes: Sequence[int], reduced: Iterable[int], dynamic: bool = False) -> None:
        self.sizes = tuple(sizes)
        self.all = frozenset(range(len(self.sizes)))
        self.reduced = frozenset(reduced)
        self.kept = self.all - self.reduced
        self.dynamic = dynamic
        self.positive: set[Node] = set()
        """Nodes known to be positive."""
        self._nodes: dict[tuple, Node] = {}

    @property
    def number(self) -> int:
        """The number of elements that are reduced."""
        return self.size(self.reduced)

    def size(self, axes: Iterable[int]) -> int:
        """The number of elements along axes."""
        return int(np.prod([self.sizes[axis] for axis in axes], dtype=int))

    def make(self, op: str, *args: Node, value: object = None, axes: frozenset[int] | None = None) -> Node:
        """Returns the node of an operation on nodes."""
        if axes is None:
            axes = frozenset().union(*(arg.axes for arg in args))
        key = (op, *map(id, args), value, axes)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(op, args, value, axes)
        return node

    def again(self, node: Node, args: Sequence[Node]) -> Node:
        """The same operation on other operands."""
        if node.op in REDUCTIONS:
            assert node.value <= args[0].axes, (node.op, node.value, args[0].axes)
            axes = args[0].axes - node.value
        else:
            axes = node.axes if node.op == "expand" or not args else None
        result = self.make(node.op, *args, value=node.value, axes=axes)
        if node in self.positive:
            self.positive.add(result)
        return result

    def leaf(self, name: str, axes: frozenset[int]) -> Node:
        return self.make("leaf", value=name, axes=axes)

    def const(self, value: float) -> Node:
        return self.make("const", value=float(value))

    def count(self) -> Node:
        """The number of elements reduced."""
        return self.make("count")

    def add(self, a: Node, b: Node) -> Node:
        return self.make("add", a, b)

    def sub(self, a: Node, b: Node) -> Node:
        return self.make("sub", a, b)

    def mul(self, a: Node, b: Node) -> Node:
        return self.make("mul", a, b)

    def div(self, a: Node, b: Node) -> Node:
        return self.make("div", a, b)

    def neg(self, a: Node) -> Node:
        return self.make("neg", a)

    def sqrt(self, a: Node) -> Node:
        return self.make("sqrt", a)

    def recip(self, a: Node) -> Node:
        return self.make("recip", a)

    def rsqrt(self, a: Node) -> Node:
        return self.recip(self.sqrt(a))

    def pow(self, a: Node, exponent: float) -> Node:
        return self.make("pow", a, value=float(exponent))

    def relu(self, a: Node) -> Node:
        return self.make("relu", a)

    def gate(self, a: Node, z: Node) -> Node:
        """``a`` where z > 0, else 0."""
        return self.make("gate", a, z)

    def expand(self, a: Node) -> Node:
        return self.make("expand", a, axes=self.all)

    def sum(self, a: Node, axes: frozenset[int] | None = None) -> Node:
        return self._reduction("sum", a, axes)

    def mean(self, a: Node, axes: frozenset[int] | None = None) -> Node:
        return self._reduction("mean", a, axes)

    def _reduction(self, op: str, a: Node, axes: frozenset[int] | None) -> Node:
        axes = self.reduced if axes is None else axes
        assert axes <= a.axes, (op, axes, a.axes)
        return self.make(op, a, value=axes, axes=a.axes - axes)

    def evaluate(self, roots: Iterable[Node], leaves: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The values of nodes in float64; each has all dimensions, of size 1 where it does not vary.

        Leaves may have more dimensions before these, such as one of draws.
        """
        values: dict[Node, np.ndarray] = {}
        roots = list(roots)
        with np.errstate(all="ignore"):
            for node in topological(roots):
                args = [values[arg] for arg in node.args]
                if node.op == "leaf":
                    value = leaves[node.value]
                elif node.op == "const":
                    value = np.float64(node.value)
                elif node.op == "count":
                    value = np.float64(self.number)
                elif node.op == "pow":
                    value = args[0] ** node.value
                elif node.op in REDUCTIONS:
                    axes = tuple(sorted(axis - len(self.sizes) for axis in node.value))
                    value = np.add.reduce(args[0], axis=axes, keepdims=True)
                    if node.op == "mean":
                        value = value / self.size(node.value)
                elif node.op == "expand":
                    value = np.broadcast_to(args[0], np.broadcast_shapes(args[0].shape, self.sizes))
                else:
                    value = COMPUTE[node.op](*args)
                values[node] = value
        return [values[root] for root in roots]


def topological(roots: Iterable[Node]) -> list[Node]:
    """All nodes under roots, each after its operands."""
    done: dict[Node, None] = {}
    stack = [*roots][::-1]
    while stack:
        node = stack[-1]
        waiting = [] if node in done else [arg for arg in node.args if arg not in done]
        if waiting:
            stack.extend(waiting[::-1])
        else:
            done[stack.pop()] = None
    return list(done)


def replaced(space: Space, roots: Sequence[Node], old: Node, new: Node) -> list[Node]:
    """The roots with ``new`` in every place of ``old``."""
    if old is new:
        return list(roots)
    images: dict[Node, Node] = {}
    for node in topological(roots):
        args = [images[arg] for arg in node.args]
        changed = any(a is not b for a, b in zip(args, node.args, strict=True))
        images[node] = new if node is old else space.again(node, args) if changed else node
    return [images[root] for root in roots]


def replaced_once(space: Space, roots: Sequence[Node], parent: Node, position: int, new: Node) -> list[Node]:
    """The roots with ``new`` as one operand of one node."""
    args = [*parent.args]
    args[position] = new
    return replaced(space, roots, parent, space.again(parent, args))
