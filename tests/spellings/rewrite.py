"""Sound rewrites of expressions: the table of all, and how they are applied at random.

A rewrite is a function of a space, a node and a random generator. It returns the new node, with the same value
and axes, or None where it does not apply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spellings.expressions import replaced, replaced_once, topological

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from spellings.expressions import Node, Space

    Rewrite = Callable[[Space, Node, random.Random], Node | None]

REWRITES: dict[str, Rewrite] = {}
"""The rewrites, by the names under which they are counted."""
MOST_NODES = 110
"""Above this number of nodes, an expression is not rewritten further."""


def rewrite(name: str) -> Callable[[Rewrite], Rewrite]:
    def register(function: Rewrite) -> Rewrite:
        REWRITES[name] = function
        return function

    return register


def rewritten(space: Space, roots: Sequence[Node], rng: random.Random, times: int) -> tuple[list[Node], list[str]]:
    """Applies rewrites at random nodes, in one place of the node or in all.

    Returns:
        The new roots, and the names of the rewrites.
    """
    roots, used = list(roots), []
    for _ in range(times):
        nodes = topological(roots)
        if len(nodes) > MOST_NODES:
            break
        inner = [node for node in nodes if node.op != "leaf"]
        match = _drawn(space, rng.sample(inner, len(inner)), rng)
        if match is None:
            break
        name, node, new = match
        assert new.axes == node.axes, (name, node.op, node.axes, new.axes)
        if node in space.positive:
            space.positive.add(new)
        places = [(p, i) for p in nodes for i, arg in enumerate(p.args) if arg is node]
        if len(places) > 1 and rng.random() < 0.4:
            roots = replaced_once(space, roots, *rng.choice(places), new)
            used.append("one of several uses alone")
        else:
            roots = replaced(space, roots, node, new)
        used.append(name)
    return roots, used


def _drawn(space: Space, nodes: Sequence[Node], rng: random.Random) -> tuple[str, Node, Node] | None:
    """A rewrite that applies, drawn by its name first, so that rare ones are as likely as others."""
    for name in rng.sample(list(REWRITES), len(REWRITES)):
        for node in nodes:
            new = REWRITES[name](space, node, rng)
            if new is not None and new is not node:
                return name, node, new
    return None


def operands(node: Node, op: str, rng: random.Random) -> tuple[Node, Node] | None:
    """The operands of a commutative operation, in any order."""
    if node.op != op:
        return None
    a, b = node.args
    return (a, b) if rng.random() < 0.5 else (b, a)
