"""Reverse-mode differentiation of an expression, primitive by primitive, as JAX and TensorFlow do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spellings.expressions import topological

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from spellings.expressions import Node, Space


def vjp(space: Space, y: Node, dy: Node, wrt: Sequence[Node], rng: random.Random) -> list[Node]:
    """Returns the gradients of ``y``, whose gradient is ``dy``, with respect to nodes.

    Contributions to one gradient are added in a random order.
    """
    parts: dict[Node, list[Node]] = {y: [dy]}
    dependent: set[Node] = set()
    order = topological([y])
    for node in order:
        if node in wrt or any(arg in dependent for arg in node.args):
            dependent.add(node)
    gradients = {}
    for node in reversed(order):
        if node not in dependent or node not in parts:
            continue
        terms = parts[node]
        rng.shuffle(terms)
        total = terms[0]
        for term in terms[1:]:
            total = space.add(total, term)
        gradients[node] = total
        if node in wrt:
            continue
        for arg, gradient in zip(node.args, _rule(space, node, total, rng), strict=True):
            if arg in dependent:
                parts.setdefault(arg, []).append(_reduced(space, gradient, node, arg, rng))
    return [gradients[node] for node in wrt]


def _rule(space: Space, node: Node, g: Node, rng: random.Random) -> list[Node]:
    """The gradient with respect to each operand, before the sums that undo broadcasting."""
    s, args = space, node.args
    if node.op == "mul":
        return [s.mul(g, args[1]), s.mul(g, args[0])]
    if node.op == "div":
        a, b = args
        of_divisor = [s.div(s.mul(g, a), s.mul(b, b)), s.mul(s.div(g, b), node)]
        return [s.div(g, b), s.neg(rng.choice(of_divisor))]
    return {
        "add": lambda: [g, g],
        "sub": lambda: [g, s.neg(g)],
        "neg": lambda: [s.neg(g)],
        "sqrt": lambda: [rng.choice([s.div(g, s.mul(s.const(2), node)), s.div(s.mul(g, s.const(0.5)), node)])],
        "recip": lambda: [s.neg(s.mul(g, s.mul(node, node)))],
        "pow": lambda: [s.mul(g, s.mul(s.const(node.value), _lower_power(s, node)))],
        "sum": lambda: [g],
        "mean": lambda: [s.div(g, s.count() if s.dynamic else s.const(s.size(node.value)))],
        "relu": lambda: [s.gate(g, rng.choice([args[0], node]))],
    }[node.op]()


def _lower_power(space: Space, node: Node) -> Node:
    return node.args[0] if node.value == 2 else space.pow(node.args[0], node.value - 1)


def _reduced(space: Space, g: Node, node: Node, arg: Node, rng: random.Random) -> Node:
    """Undoes broadcasting from the axes of ``node`` to those of ``arg``."""
    if node.op in ("sum", "mean"):
        return g if rng.random() < 0.7 or arg.axes != space.all else space.expand(g)
    extra = node.axes - arg.axes
    present = extra & g.axes
    if present:
        g = space.sum(g, present)
    assert extra == present, (node.op, extra, present)
    return g
