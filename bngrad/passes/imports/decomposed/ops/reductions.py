"""Sums and means, and products with a constant filled with one number, which are sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.graph.node_reader import known_integers, read_attribute
from bngrad.passes.imports.decomposed.ops.record import FLOATS, Op, register, sizes_of
from bngrad.passes.imports.decomposed.polynomial import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.evaluate import Evaluator
    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.ops.record import Array
    from bngrad.passes.imports.decomposed.polynomial import Polynomial


def reduced_dimensions(node: ir.Node, rank: int) -> list[int] | None:
    """The dimensions that a reduction reduces; None if they are unknown."""
    axes: Sequence[int] | None
    if "axes" in node.attributes:
        axes = read_attribute(node, "axes", [0])
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        axes = known_integers(node, 1)
        if axes is None:
            return None
    else:
        axes = []
    if not axes:
        return [] if read_attribute(node, "noop_with_empty_axes", 0) else list(range(rank))
    return sorted({axis % rank for axis in axes}) if all(-rank <= axis < rank for axis in axes) else None


def _reduction(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:
    dimensions = reduced_dimensions(node, len(layout))
    if dimensions is None:
        return None
    if 0 in dimensions:
        kept = tuple(dimension for place, dimension in enumerate(layout) if place not in dimensions)
        layouts.note_reduction(tuple(layout[place] for place in dimensions), kept)
    keep = read_attribute(node, "keepdims", 1)
    return tuple(
        () if place in dimensions else dimension
        for place, dimension in enumerate(layout)
        if keep or place not in dimensions
    )


def _reduce(forms: Forms, node: ir.Node) -> Polynomial | None:
    x = node.inputs[0]
    layout = None if x is None else forms.layouts.at(x)
    if x is None or layout is None or node.outputs[0].dtype not in FLOATS:
        return None
    dimensions = reduced_dimensions(node, len(layout))
    if dimensions is None:
        return None
    return _reduced(forms, forms.of(x), [layout[place] for place in dimensions], node.op_type)


def _reduced(
    forms: Forms, form: Polynomial, dimensions: Iterable[tuple[int, ...]], op_type: str
) -> Polynomial | None:
    over = frozenset(axis for dimension in dimensions for axis in dimension)
    if op_type == "ReduceSumSquare":
        form = forms.algebra.product(form, form)
    total = forms.algebra.sum_over(form, over)
    if op_type != "ReduceMean":
        return total
    share = forms.algebra.power(forms.algebra.extent(tuple(over)), -2)
    return None if share is None else forms.algebra.product(total, share)


def _reduced_array(evaluator: Evaluator, node: ir.Node, x: Array) -> Array:
    shape = evaluator.shape(node.inputs[0])
    axes = tuple(reduced_dimensions(node, len(shape)) or ())
    x = np.broadcast_to(x, shape) if x.ndim == 0 else x
    keep = bool(read_attribute(node, "keepdims", 1))
    if node.op_type == "ReduceSumSquare":
        return np.sum(x * x, axes, keepdims=keep)
    return (np.mean if node.op_type == "ReduceMean" else np.sum)(x, axes, keepdims=keep)


def _pooled(layouts: Layouts, node: ir.Node, layout: Layout) -> Layout | None:  # noqa: ARG001
    return None if len(layout) < 3 else (*layout[:2], *[()] * (len(layout) - 2))


def _pool(forms: Forms, node: ir.Node) -> Polynomial | None:
    x = node.inputs[0]
    layout = None if x is None else forms.layouts.of(x)
    return None if x is None or layout is None else _reduced(forms, forms.of(x), layout[2:], "ReduceMean")


def _is_sum_by_matmul(layouts: Layouts, node: ir.Node) -> bool:
    """Returns whether a MatMul sums: one operand is filled with one number, or a row is multiplied by a column."""
    if any(layouts.filled(value) is not None for value in node.inputs):
        return True
    a, b = (None if value is None else sizes_of(value) for value in node.inputs)
    return a is not None and b is not None and len(a) > 1 and len(b) > 1 and a[-2] == b[-1] == 1


def _matmul_layout(layouts: Layouts, node: ir.Node, a: Layout) -> Layout | None:
    b = layouts.of_input(node, 1)
    if b is None or not a or not b or not _is_sum_by_matmul(layouts, node):
        return None
    left, right = (a if len(a) > 1 else ((), *a)), (b if len(b) > 1 else (*b, ()))
    if not layouts.axes.equate(left[-1], right[-2]):
        return None
    batch = layouts.axes.broadcast([left[:-2], right[:-2]]) if len(left) > 2 or len(right) > 2 else ()
    if batch is None:
        return None
    return (*batch, *(left[-2:-1] if len(a) > 1 else ()), *(right[-1:] if len(b) > 1 else ()))


def _matmul(forms: Forms, node: ir.Node) -> Polynomial | None:
    a, b = node.inputs
    layouts = [None if value is None else forms.layouts.of(value) for value in (a, b)]
    if a is None or b is None:
        return None
    place, data = (-2, b) if forms.layouts.filled(a) is not None else (-1, a)
    layout = layouts[1] if data is b else layouts[0]
    if layout is None or not layout:
        return None
    product = forms.algebra.product(forms.of(a), forms.of(b))
    return forms.algebra.sum_over(product, frozenset(layout[place if len(layout) > 1 else -1]))


def _einsum(forms: Forms, node: ir.Node) -> Polynomial | None:
    parsed = _equation_of(node)
    if parsed is None:
        return None
    terms, output = parsed
    over: set[int] = set()
    product = number(1.0)
    seen: set[str] = set()
    data_first = sorted(range(len(terms)), key=lambda index: forms.layouts.filled(node.inputs[index]) is not None)
    for index in data_first:
        value = node.inputs[index]
        layout: Layout | None = None if value is None else forms.layouts.at(value)
        if value is None or layout is None:
            return None
        product = forms.algebra.product(product, forms.of(value))
        for letter, dimension in zip(terms[index], layout, strict=True):
            if letter not in output and letter not in seen:
                over |= set(dimension)
            seen.add(letter)
    return forms.algebra.sum_over(product, frozenset(over))


def _matmul_array(evaluator: Evaluator, node: ir.Node, a: Array, b: Array) -> Array:
    if a.ndim == 0 or b.ndim == 0:
        data, other, place = (b, a, 0) if a.ndim == 0 else (a, b, 1)
        shape = list(evaluator.shape(node.inputs[place]))
        shape[-1 if place == 0 else max(-2, -len(shape))] = data.shape[max(-2, -data.ndim) if place == 0 else -1]
        filled = np.broadcast_to(other, shape)
        a, b = (filled, data) if place == 0 else (data, filled)
    return a @ b


def _equation_of(node: ir.Node) -> tuple[list[str], str] | None:
    """The letters of an Einsum's inputs and of its output; None if it has an ellipsis or repeats a letter."""
    equation = read_attribute(node, "equation", "").replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if not arrow or "." in equation or len(terms) != len(node.inputs):
        return None
    return (terms, output) if all(len(set(term)) == len(term) for term in (*terms, output)) else None


def _einsum_layout(layouts: Layouts, node: ir.Node, first: Layout) -> Layout | None:  # noqa: ARG001
    parsed = _equation_of(node)
    if parsed is None:
        return None
    terms, output = parsed
    dimensions: dict[str, Any] = {}
    for index, term in enumerate(terms):
        layout = layouts.of_input(node, index)
        filled = layouts.filled(node.inputs[index]) is not None
        if layout is None or len(layout) != len(term) or not (filled or _divides(term, output)):
            return None
        for letter, dimension in zip(term, layout, strict=True):
            if not layouts.axes.equate(dimensions.setdefault(letter, dimension), dimension):
                return None
    return tuple(dimensions[letter] for letter in output) if set(output) <= set(dimensions) else None


def _divides(term: str, output: str) -> bool:
    """Returns whether an operand is summed, or a factor of the output: not in a product of matrices."""
    return set(output) <= set(term) or set(term) <= set(output)


def _einsum_array(evaluator: Evaluator, node: ir.Node, *arrays: Array) -> Array:
    terms, output = _equation_of(node) or ([], "")
    sizes: dict[str, int] = {}
    for term, value, array in zip(terms, node.inputs, arrays, strict=True):
        shape = evaluator.shape(value) if array.ndim == 0 else array.shape
        for letter, size in zip(term, shape, strict=True):
            if array.ndim or letter not in sizes:
                sizes[letter] = size
    operands = [
        np.broadcast_to(array, [sizes[letter] for letter in term]) if array.ndim == 0 else array
        for term, array in zip(terms, arrays, strict=True)
    ]
    return np.einsum(f"{','.join(terms)}->{output}", *operands)


_REDUCTION = Op(_reduction, _reduce, evaluate=_reduced_array, operands=1)

REDUCTIONS = dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceSumSquare"), _REDUCTION)
register(
    {
        **REDUCTIONS,
        "GlobalAveragePool": Op(_pooled, _pool, numpy=lambda x: x.mean(tuple(range(2, x.ndim)), keepdims=True)),
        "MatMul": Op(_matmul_layout, _matmul, evaluate=_matmul_array),
        "Einsum": Op(_einsum_layout, _einsum, evaluate=_einsum_array),
    }
)
