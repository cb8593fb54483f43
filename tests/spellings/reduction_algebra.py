"""Sound rewrites of sums and means over axes, and of the variance."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spellings.rewrite import operands, rewrite

if TYPE_CHECKING:
    from spellings.expressions import Node, Space

REDUCTIONS = ("sum", "mean")


def _size(space: Space, axes: frozenset[int]) -> Node:
    """The number of elements along axes, as a node."""
    return space.count() if axes == space.reduced else space.const(space.size(axes))


def _is_known(space: Space, axes: frozenset[int]) -> bool:
    """Returns whether `_size` has a node for these axes."""
    return axes == space.reduced or 0 not in axes or not space.dynamic


def _reduced(space: Space, op: str, a: Node, axes: frozenset[int]) -> Node:
    return space.make(op, a, value=axes, axes=a.axes - axes)


def _square_of(node: Node) -> Node | None:
    square = (node.op == "pow" and node.value == 2) or (node.op == "mul" and node.args[0] is node.args[1])
    return node.args[0] if square else None


def _is_mean_of(node: Node, x: Node, axes: frozenset[int]) -> bool:
    return node.op == "mean" and node.value == axes and node.args[0] is x


@rewrite("mean as a sum")
def _(s, n, rng):
    if n.op == "mean" and _is_known(s, n.value):
        (a,), axes = n.args, n.value
        forms = [
            lambda: s.div(s.sum(a, axes), _size(s, axes)),
            lambda: s.sum(s.div(a, _size(s, axes)), axes),
            lambda: s.mul(s.sum(a, axes), s.recip(_size(s, axes))),
        ]
        return rng.choice(forms)()
    return None


@rewrite("sum as a mean")
def _(s, n, _rng):
    if n.op == "div" and n.args[0].op == "sum" and n.args[1] is _size(s, n.args[0].value):
        return s.mean(n.args[0].args[0], n.args[0].value)
    if n.op == "sum" and _is_known(s, n.value):
        return s.mul(s.mean(n.args[0], n.value), _size(s, n.value))
    return None


@rewrite("N times epsilon inside the root")
def _(s, n, rng):
    pair = operands(n, "add", rng)
    if not pair or pair[1].axes or not n.axes:
        return None
    if pair[0].op == "div" and not pair[0].args[1].axes:
        a, count = pair[0].args
        return s.div(s.add(a, s.mul(count, pair[1])), count)
    if pair[0].op == "mean" and _is_known(s, pair[0].value):
        size = _size(s, pair[0].value)
        return s.div(s.add(s.sum(pair[0].args[0], pair[0].value), s.mul(pair[1], size)), size)
    return None


@rewrite("factor out of a reduction")
def _(s, n, rng):
    if n.op not in REDUCTIONS:
        return None
    (a,), axes = n.args, n.value
    pair = operands(a, "mul", rng)
    if pair and not pair[0].axes & axes and axes <= pair[1].axes:
        return s.mul(pair[0], _reduced(s, n.op, pair[1], axes))
    if a.op == "div" and not a.args[1].axes & axes and axes <= a.args[0].axes:
        return s.div(_reduced(s, n.op, a.args[0], axes), a.args[1])
    return None


@rewrite("factor into a reduction")
def _(s, n, rng):
    pair = operands(n, "mul", rng)
    if pair and pair[1].op in REDUCTIONS and not pair[0].axes & pair[1].value:
        return _reduced(s, pair[1].op, s.mul(pair[1].args[0], pair[0]), pair[1].value)
    if n.op == "div" and n.args[0].op in REDUCTIONS and not n.args[1].axes & n.args[0].value:
        return _reduced(s, n.args[0].op, s.div(n.args[0].args[0], n.args[1]), n.args[0].value)
    return None


@rewrite("split a reduction")
def _(s, n, _rng):
    if n.op not in REDUCTIONS or n.args[0].op not in ("add", "sub"):
        return None
    axes = n.value
    terms = []
    for term in n.args[0].args:
        if axes <= term.axes:
            terms.append(_reduced(s, n.op, term, axes))
        elif not axes & term.axes and (n.op == "mean" or _is_known(s, axes)):
            terms.append(term if n.op == "mean" else s.mul(_size(s, axes), term))
        else:
            return None
    new = s.make(n.args[0].op, *terms)
    return new if new.axes == n.axes else None


@rewrite("join reductions")
def _(s, n, _rng):
    if n.op not in ("add", "sub"):
        return None
    a, b = n.args
    if a.op == b.op and a.op in REDUCTIONS and a.value == b.value and a.axes == b.axes:
        return _reduced(s, a.op, s.make(n.op, a.args[0], b.args[0]), a.value)
    return None


@rewrite("reduce in two steps")
def _(s, n, rng):
    if n.op not in REDUCTIONS or len(n.value) < 2:
        return None
    axes = sorted(n.value)
    first = axes[1:] if rng.random() < 0.6 else rng.sample(axes, rng.randint(1, len(axes) - 1))
    return _reduced(s, n.op, _reduced(s, n.op, n.args[0], frozenset(first)), n.value - frozenset(first))


@rewrite("reduce in one step")
def _(s, n, _rng):
    if n.op in REDUCTIONS and n.args[0].op == n.op:
        return _reduced(s, n.op, n.args[0].args[0], n.value | n.args[0].value)
    return None


@rewrite("variance as a difference of means")
def _(s, n, rng):
    x_less_mean = _square_of(n.args[0]) if n.op == "mean" else None
    if x_less_mean is None or x_less_mean.op != "sub":
        return None
    x, mean = x_less_mean.args
    if not _is_mean_of(mean, x, n.value):
        return None
    new = s.sub(s.mean(s.mul(x, x), n.value), s.mul(mean, mean))
    return s.relu(new) if rng.random() < 0.4 else new


@rewrite("variance as a mean of squares")
def _(s, n, _rng):
    if n.op != "sub" or n.args[0].op != "mean":
        return None
    axes = n.args[0].value
    x, mean = _square_of(n.args[0].args[0]), _square_of(n.args[1])
    if x is None or mean is None or not _is_mean_of(mean, x, axes):
        return None
    return s.mean(s.pow(s.sub(x, mean), 2), axes)


@rewrite("center the other factor")
def _(s, n, rng):
    """sum(dy * (x - mean x)) = sum((dy - mean dy) * x), as automatic differentiation of centering has it."""
    if n.op != "sum" or n.value != s.reduced:
        return None
    pair = operands(n.args[0], "mul", rng)
    if pair and pair[0].axes == pair[1].axes == s.all and pair[1].op == "sub":
        x, mean = pair[1].args
        if _is_mean_of(mean, x, s.reduced):
            return s.sum(s.mul(s.sub(pair[0], s.mean(pair[0])), x))
    return None
