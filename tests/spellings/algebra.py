"""Sound rewrites of sums, products, signs, powers and numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spellings.expressions import topological
from spellings.rewrite import operands, rewrite

if TYPE_CHECKING:
    from spellings.expressions import Node, Space


def _positive(space: Space, node: Node) -> bool:
    """Returns whether a node is known to be positive."""
    if node in space.positive or node.op == "count" or (node.op == "const" and node.value > 0):
        return True
    if node.op in ("sqrt", "recip", "identity", "expand"):
        return _positive(space, node.args[0])
    return node.op in ("mul", "div", "add") and all(_positive(space, arg) for arg in node.args)


def _inverse_root_of(space: Space, node: Node) -> Node | None:
    """The v of a node v^-1/2; None for other nodes."""
    if node.op == "recip" and node.args[0].op == "sqrt":
        return node.args[0].args[0]
    if node.op == "sqrt" and node.args[0].op == "recip":
        return node.args[0].args[0]
    if node.op == "pow" and node.value == -0.5:
        return node.args[0]
    if node.op == "div" and node.args[1].op == "sqrt" and node.args[0] is space.const(1):
        return node.args[1].args[0]
    return None


def _is_square(node: Node) -> bool:
    return (node.op == "mul" and node.args[0] is node.args[1]) or (node.op == "pow" and node.value == 2)


@rewrite("commute")
def _(s, n, _rng):
    return s.again(n, n.args[::-1]) if n.op in ("add", "mul") else None


@rewrite("associate")
def _(s, n, rng):
    for op in ("add", "mul"):
        pair = operands(n, op, rng)
        inner = pair and operands(pair[0], op, rng)
        if inner:
            return s.make(op, inner[0], s.make(op, inner[1], pair[1]))
    return None


@rewrite("associate a difference")
def _(s, n, rng):
    if n.op == "sub":
        a, b = n.args
        forms = []
        if a.op == "sub":
            forms.append(lambda: s.sub(a.args[0], s.add(a.args[1], b)))
            forms.append(lambda: s.sub(s.sub(a.args[0], b), a.args[1]))
        if a.op == "add":
            forms.append(lambda: s.add(a.args[0], s.sub(a.args[1], b)))
        if b.op == "sub":
            forms.append(lambda: s.add(s.sub(a, b.args[0]), b.args[1]))
        if b.op == "add":
            forms.append(lambda: s.sub(s.sub(a, b.args[0]), b.args[1]))
        return rng.choice(forms)() if forms else None
    pair = operands(n, "add", rng)
    if pair and pair[1].op == "sub":
        return s.sub(s.add(pair[0], pair[1].args[0]), pair[1].args[1])
    return None


@rewrite("associate a quotient")
def _(s, n, rng):
    if n.op == "div":
        a, b = n.args
        forms = []
        if a.op == "mul":
            forms.append(lambda: s.mul(a.args[0], s.div(a.args[1], b)))
        if a.op == "div":
            forms.append(lambda: s.div(a.args[0], s.mul(a.args[1], b)))
        if b.op == "mul":
            forms.append(lambda: s.div(s.div(a, b.args[0]), b.args[1]))
        if b.op == "div":
            forms.append(lambda: s.mul(s.div(a, b.args[0]), b.args[1]))
        return rng.choice(forms)() if forms else None
    pair = operands(n, "mul", rng)
    if pair and pair[1].op == "div":
        return s.div(s.mul(pair[0], pair[1].args[0]), pair[1].args[1])
    return None


@rewrite("distribute")
def _(s, n, rng):
    pair = operands(n, "mul", rng)
    if pair and pair[1].op in ("add", "sub"):
        a, (b, c) = pair[0], pair[1].args
        return s.make(pair[1].op, s.mul(a, b), s.mul(a, c))
    if n.op == "div" and n.args[0].op in ("add", "sub"):
        b, c = n.args[0].args
        return s.make(n.args[0].op, s.div(b, n.args[1]), s.div(c, n.args[1]))
    return None


@rewrite("factor out")
def _(s, n, _rng):
    if n.op not in ("add", "sub"):
        return None
    left, right = n.args
    if left.op == right.op == "mul":
        for a, b in (left.args, left.args[::-1]):
            for c, d in (right.args, right.args[::-1]):
                if a is c:
                    return s.mul(a, s.make(n.op, b, d))
    if left.op == right.op == "div" and left.args[1] is right.args[1]:
        return s.div(s.make(n.op, left.args[0], right.args[0]), left.args[1])
    return None


@rewrite("difference as a sum")
def _(s, n, rng):
    if n.op == "sub":
        return s.add(n.args[0], s.neg(n.args[1]))
    pair = operands(n, "add", rng)
    return s.sub(pair[0], pair[1].args[0]) if pair and pair[1].op == "neg" else None


@rewrite("move a sign outward")
def _(s, n, _rng):
    if n.op == "sub":
        return s.neg(s.sub(n.args[1], n.args[0]))
    if n.op in ("mul", "div") and n.args[0].op == "neg":
        return s.neg(s.make(n.op, n.args[0].args[0], n.args[1]))
    if n.op in ("sum", "mean") and n.args[0].op == "neg":
        return s.neg(s.again(n, [n.args[0].args[0]]))
    return None


@rewrite("move a sign inward")
def _(s, n, _rng):
    if n.op != "neg":
        return None
    a = n.args[0]
    if a.op in ("mul", "div"):
        return s.make(a.op, s.neg(a.args[0]), a.args[1])
    if a.op in ("sum", "mean"):
        return s.again(a, [s.neg(a.args[0])])
    if a.op in ("add", "sub"):
        return s.sub(s.neg(a.args[0]), a.args[1]) if a.op == "add" else s.sub(a.args[1], a.args[0])
    return s.mul(a, s.const(-1))


@rewrite("negate twice")
def _(s, n, _rng):
    if n.op == "neg" and n.args[0].op == "neg":
        return n.args[0].args[0]
    return s.neg(s.neg(n)) if n.axes else None


@rewrite("quotient as a product")
def _(s, n, rng):
    if n.op == "div":
        return s.mul(n.args[0], s.recip(n.args[1]))
    pair = operands(n, "mul", rng)
    return s.div(pair[0], pair[1].args[0]) if pair and pair[1].op == "recip" else None


@rewrite("spell a reciprocal")
def _(s, n, rng):
    if n.op == "recip":
        return s.div(s.const(1), n.args[0]) if rng.random() < 0.6 else s.pow(n.args[0], -1)
    if (n.op == "div" and n.args[0] is s.const(1)) or (n.op == "pow" and n.value == -1):
        return s.recip(n.args[-1])
    return None


@rewrite("spell a square")
def _(s, n, _rng):
    if not _is_square(n):
        return None
    return s.pow(n.args[0], 2) if n.op == "mul" else s.mul(n.args[0], n.args[0])


@rewrite("square of a negative")
def _(s, n, _rng):
    if n.op == "pow" and n.value == 2 and n.args[0].op == "sub":
        a, b = n.args[0].args
        return s.pow(s.sub(b, a), 2)
    return None


@rewrite("square of a product")
def _(s, n, _rng):
    if n.op == "pow" and n.value == 2 and n.args[0].op in ("mul", "div"):
        return s.make(n.args[0].op, *(s.pow(arg, 2) for arg in n.args[0].args))
    return None


@rewrite("spell an inverse root")
def _(s, n, rng):
    v = _inverse_root_of(s, n)
    if v is not None:
        return rng.choice([s.rsqrt(v), s.sqrt(s.recip(v)), s.pow(v, -0.5), s.div(s.const(1), s.sqrt(v))])
    if n.op == "sqrt":
        return s.pow(n.args[0], 0.5)
    return s.sqrt(n.args[0]) if n.op == "pow" and n.value == 0.5 else None


@rewrite("inverse root squared")
def _(s, n, rng):
    if _is_square(n):
        v = _inverse_root_of(s, n.args[0])
        return s.recip(v) if v is not None else None
    # Not of other positive values: nobody writes a fourth root.
    if n.op == "recip" and n.args[0] in s.positive:
        root = rng.choice([s.rsqrt, lambda v: s.pow(v, -0.5)])(n.args[0])
        return s.mul(root, root)
    return None


@rewrite("root of a quotient")
def _(s, n, rng):
    if n.op != "sqrt":
        return None
    a = n.args[0]
    if a.op == "div" and _positive(s, a.args[1]) and not a.args[1].axes:
        return s.div(s.sqrt(a.args[0]), s.sqrt(a.args[1]))
    pair = operands(a, "mul", rng)
    if pair and _positive(s, pair[0]) and not pair[0].axes:
        return s.mul(s.sqrt(pair[0]), s.sqrt(pair[1]))
    return None


@rewrite("number folded")
def _(s, n, _rng):
    if n.axes or n.op == "const":
        return None
    if any(node.op == "leaf" or (node.op == "count" and s.dynamic) for node in topological([n])):
        return None
    return s.const(float(s.evaluate([n], {})[0]))


@rewrite("neutral element")
def _(s, n, rng):
    forms = [
        lambda: s.add(n, s.const(0)),
        lambda: s.mul(n, s.const(1)),
        lambda: s.div(n, s.const(1)),
        lambda: s.sub(n, s.const(0)),
        lambda: s.mul(s.mul(n, s.const(2)), s.const(0.5)),
    ]
    return rng.choice(forms)() if n.axes else None


@rewrite("neutral element removed")
def _(s, n, rng):
    for op, neutral in (("mul", 1), ("add", 0)):
        pair = operands(n, op, rng)
        if pair and pair[0] is s.const(neutral):
            return pair[1]
    return None


@rewrite("identity")
def _(s, n, _rng):
    return s.make("identity", n) if n.axes else None


@rewrite("expand a parameter")
def _(s, n, _rng):
    if n.op not in ("add", "sub", "mul", "div") or n.axes != s.all or n.args[0].axes == n.args[1].axes:
        return None
    args = [s.expand(arg) if arg.axes != s.all and arg.axes else arg for arg in n.args]
    return s.make(n.op, *args)


@rewrite("expansion removed")
def _(s, n, _rng):
    if n.op in ("add", "sub", "mul", "div") and any(arg.op == "expand" for arg in n.args):
        args = [arg.args[0] if arg.op == "expand" else arg for arg in n.args]
        new = s.make(n.op, *args)
        return new if new.axes == n.axes else None
    return None
