"""Joint updates of small weights: one vector of all of them, in place of nodes for each.

In the flat layout the state is one vector already. A GPU takes longer to start a kernel than to update a small
weight, and a CPU to start a node; ResNet-50 has 126 weights of at most `LARGEST` elements, and 35 larger ones.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from bngrad.graph.node_reader import dtype_of, static_shape
from bngrad.training.optim.nodes import Weight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.graph.node_makers import NodesAtEnd
    from bngrad.training.optim.base import Optimizer
    from bngrad.training.optim.nodes import UpdateNodes

LARGEST = 1 << 16
"""The most elements of a weight that is updated with others; larger ones leave the caches of a CPU together."""


class Joint(NamedTuple):
    """Tensors of the state that follow each other in its vector, and their next values."""

    names: Sequence[str]
    old: ir.Value
    """A graph input, which stands for that part of the vector."""
    new: ir.Value

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the part."""
        return static_shape(self.old) or ()


class Updates(NamedTuple):
    """The updates of weights at the end of a graph."""

    graph: ir.Graph
    make: NodesAtEnd
    optimizer: Optimizer
    nodes: UpdateNodes
    weights: Sequence[Weight]


def join_updates(updates: Updates, dtype: str) -> list[Joint]:
    """Adds joint updates of the small weights with equal options, beside those that the weights have.

    Args:
        updates: The updates.
        dtype: NumPy's name of the type of the vector; weights of another type are left out.

    Returns:
        Their weights, and each of their slots.
    """
    groups: dict[object, list[Weight]] = {}
    for weight in updates.weights:
        if dtype_of(weight.value).numpy() == dtype and 0 < _size(weight.value) <= LARGEST:
            groups.setdefault(weight.options, []).append(weight)
    joints = []
    for group in groups.values():
        if len(group) > 1:
            members = [list(values) for values in zip(*((w.value, *w.slots) for w in group), strict=True)]
            old = [_vector(updates, values) for values in members]
            gradient = _concatenated(updates.make, [weight.gradient for weight in group])
            joint = Weight(old[0], gradient, old[1:], group[0].options)
            new = updates.optimizer.update(updates.nodes, joint)
            joints += [
                Joint([str(value.name) for value in values], *pair)
                for values, *pair in zip(members, old, new, strict=True)
            ]
    return joints


def _vector(updates: Updates, values: Sequence[ir.Value]) -> ir.Value:
    name = updates.make.names.fresh(f"{values[0].name}_and_others")
    vector = ir.val(name, dtype_of(values[0]), [sum(map(_size, values))])
    updates.graph.inputs.append(vector)
    return vector


def _concatenated(make: NodesAtEnd, values: Sequence[ir.Value]) -> ir.Value:
    flattened = make.int64([-1])
    result = make.op("Concat", *(make.op("Reshape", value, flattened) for value in values), axis=0)
    result.dtype = dtype_of(values[0])
    return result


def _size(weight: ir.Value) -> int:
    return prod(static_shape(weight) or ())
