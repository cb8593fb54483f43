"""Unsound changes of one node, which turn a batch norm into a near miss.

A mutation is a function of a space, a node and a random generator, like a rewrite. The result may still be a batch
norm, with another scale for example; `spellings.readings` decides that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spellings.expressions import replaced, replaced_once, topological
from spellings.formulas import TASKS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from spellings.expressions import Node, Space

    Mutation = Callable[[Space, Node, random.Random], Node | None]

MUTATIONS: dict[str, Mutation] = {}
"""The mutations, by the names under which they are counted."""
TASKS_OF: dict[str, tuple[str, ...]] = {}
"""The tasks that each mutation applies to."""


def _mutation(name: str, *tasks: str) -> Callable[[Mutation], Mutation]:
    def register(function: Mutation) -> Mutation:
        MUTATIONS[name] = function
        TASKS_OF[name] = tasks or TASKS
        return function

    return register


def mutated(space: Space, roots: Sequence[Node], rng: random.Random, name: str) -> list[Node] | None:
    """Applies a mutation at a random node, in one of its places or in all; None if it applies nowhere."""
    nodes = topological(roots)
    fitting = [(node, new) for node in nodes if (new := MUTATIONS[name](space, node, rng)) not in (None, node)]
    if not fitting:
        return None
    node, new = rng.choice(fitting)
    places = [(p, i) for p in nodes for i, arg in enumerate(p.args) if arg is node]
    try:
        if len(places) > 1 and rng.random() < 0.6:
            return replaced_once(space, roots, *rng.choice(places), new)
        return replaced(space, roots, node, new)
    except AssertionError:  # a reduction over axes that the operand no longer has
        return None


def all_reductions_changed(space: Space, roots: Sequence[Node], rng: random.Random) -> list[Node] | None:
    """Changes the axes of all reductions of the batch norm, as to those of an instance or layer norm."""
    choices = []
    if len(space.reduced) > 1:
        choices.append(space.reduced - {0})
    choices.append(space.all)
    if len(space.all) > 1:
        choices.append(space.all - {0})
    axes = rng.choice(choices)
    images: dict[Node, Node] = {}
    for node in topological(roots):
        args = [images[arg] for arg in node.args]
        if node.op in ("sum", "mean") and node.value == space.reduced:
            if not axes <= args[0].axes:
                return None
            images[node] = space.make(node.op, args[0], value=axes, axes=args[0].axes - axes)
        elif node.op == "count":
            images[node] = space.const(space.size(axes))
        elif node.op in ("sum", "mean") and not node.value <= args[0].axes:
            return None
        else:
            images[node] = space.again(node, args)
    return [images[root] for root in roots]


@_mutation("one reduction over other axes")
def _(s, n, rng):
    if n.op not in ("sum", "mean") or n.value != s.reduced:
        return None
    choices = [s.reduced - {axis} for axis in s.reduced if len(s.reduced) > 1]
    choices += [s.reduced | {axis} for axis in n.args[0].axes - s.reduced]
    if not choices:
        return None
    axes = rng.choice(choices)
    return s.make(n.op, n.args[0], value=axes, axes=n.args[0].axes - axes)


@_mutation("wrong N")
def _(s, n, rng):
    others = [s.number - 1, s.number + 1, *(s.size(s.reduced - {axis}) for axis in s.reduced)]
    other = s.const(rng.choice([size for size in others if size not in (0, s.number)]))
    if n.op == "count":
        return other
    if n.op == "mean" and n.value == s.reduced:
        return s.div(s.sum(n.args[0]), other)
    if n.op == "const" and n.value == s.number:
        return other
    return s.recip(other) if n.op == "const" and abs(n.value * s.number - 1) < 1e-12 else None


@_mutation("missing term")
def _(_s, n, rng):
    if n.op not in ("add", "sub"):
        return None
    kept = [arg for arg in n.args if arg.axes == n.axes]
    return rng.choice(kept) if kept else None


@_mutation("wrong sign")
def _(s, n, _rng):
    if n.op in ("add", "sub"):
        return s.make("sub" if n.op == "add" else "add", *n.args)
    return n.args[0] if n.op == "neg" else None


@_mutation("epsilon outside the root")
def _(s, n, _rng):
    if n.op == "sqrt" and n.args[0].op == "add":
        for shift, v in (n.args[0].args, n.args[0].args[::-1]):
            if not shift.axes:
                return s.add(s.sqrt(v), shift)
    if n.op == "pow" and n.value == -0.5 and n.args[0].op == "add":
        for shift, v in (n.args[0].args, n.args[0].args[::-1]):
            if not shift.axes:
                return s.recip(s.add(s.sqrt(v), shift))
    return None


@_mutation("root missing")
def _(s, n, _rng):
    if n.op == "sqrt" and n.axes:
        return n.args[0]
    return s.recip(n.args[0]) if n.op == "pow" and n.value == -0.5 else None


@_mutation("root doubled")
def _(s, n, _rng):
    if n.op == "sqrt" and n.axes:
        return s.sqrt(n)
    return s.pow(n.args[0], -0.25) if n.op == "pow" and n.value == -0.5 else None


@_mutation("missing factor")
def _(_s, n, rng):
    if n.op not in ("mul", "div"):
        return None
    kept = [arg for arg in (n.args if n.op == "mul" else n.args[:1]) if arg.axes == n.axes]
    return rng.choice(kept) if kept else None


@_mutation("factor twice")
def _(s, n, _rng):
    if n.op not in ("mul", "div"):
        return None
    again = n.args[1] if n.args[1].axes else n.args[0]
    return s.make(n.op, n, again) if again.axes else None


@_mutation("product as a quotient")
def _(s, n, _rng):
    return s.div(*n.args) if n.op == "mul" and n.args[1].axes and n.args[1].axes != s.all else None


@_mutation("another tensor in one place")
def _(s, n, _rng):
    if n.op == "leaf" and n.value in ("x", "dy"):
        return s.leaf(f"{n.value}2", n.axes)
    return None


@_mutation("another mean in one place", "backward")
def _(s, n, _rng):
    # Another inv_std is another scale.
    return replaced(s, [n], s.leaf("mean", s.kept), s.leaf("mean2", s.kept))[0] if n.axes == s.all else None


@_mutation("another value's statistic")
def _(s, n, _rng):
    if n.op in ("sum", "mean") and n.axes == s.kept:
        return s.again(n, [s.leaf("other", s.all)])
    return None


@_mutation("parameter of another axis")
def _(s, n, _rng):
    # A bias or a mean of another axis is another term beside a batch norm.
    if n.op == "leaf" and n.axes == s.kept and n.value in ("gamma", "inv_std", "var") and s.reduced - {0}:
        return s.leaf(f"{n.value}_elsewhere", frozenset({max(s.reduced)}))
    return None


@_mutation("absolute value inside")
def _(s, n, _rng):
    return s.make("abs", n) if n.axes == s.all and n.op in ("sub", "mul", "leaf", "add") else None


@_mutation("ReLU inside")
def _(s, n, _rng):
    return s.relu(n) if n.axes == s.all and n.op in ("sub", "mul", "leaf", "add") else None


@_mutation("ReLU of a statistic")
def _(s, n, _rng):
    """Applies to a mean, or a sum of dY, which may be negative."""
    return s.relu(n) if n.op in ("sum", "mean") and n.axes == s.kept else None


@_mutation("no mean subtracted")
def _(s, n, _rng):
    if n.op == "sub" and n.axes == s.all and n.args[0].op == "leaf" and n.args[1].axes == s.kept:
        return n.args[0]
    return None


@_mutation("other exponent")
def _(s, n, _rng):
    if n.op == "mul" and n.args[0] is n.args[1]:
        return s.mul(n.args[0], s.make("abs", n.args[0]))
    return s.pow(n.args[0], 4 if n.value == 2 else n.value * 2) if n.op == "pow" else None


@_mutation("mean as a sum")
def _(s, n, _rng):
    if n.op in ("sum", "mean") and n.value == s.reduced:
        return s.make("mean" if n.op == "sum" else "sum", *n.args, value=n.value, axes=n.axes)
    return None


@_mutation("expanded before a sum twice")
def _(s, n, _rng):
    """A parameter summed as if it were data: N times as much."""
    if n.op in ("mul", "div") and n.axes == s.kept and s.number > 1:
        return s.sum(s.expand(n))
    return None
