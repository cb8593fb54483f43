"""Ops that compute integers from shapes, and ConstantOfShape."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.graph.node_reader import known_integers, read_attribute
from bngrad.passes.imports.decomposed.ops.record import FLOATS, Op, register, sizes_of
from bngrad.passes.imports.decomposed.polynomial import multiply, number

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.imports.decomposed.axes import Layout
    from bngrad.passes.imports.decomposed.evaluate import Evaluator
    from bngrad.passes.imports.decomposed.forms import Forms
    from bngrad.passes.imports.decomposed.layouts import Layouts
    from bngrad.passes.imports.decomposed.ops.record import Array
    from bngrad.passes.imports.decomposed.polynomial import Polynomial, Vector
    from bngrad.passes.imports.decomposed.sizes import Sizes


def _shape(sizes: Sizes, node: ir.Node) -> Vector | None:
    layout = None if node.inputs[0] is None else sizes.layouts.of(node.inputs[0])
    if layout is None:
        return None
    if node.op_type == "Size":
        return [sizes.algebra.extent(sum(layout, ()))]
    return [sizes.algebra.extent(dimension) for dimension in layout[_part(node, len(layout))]]


def _shape_array(evaluator: Evaluator, node: ir.Node) -> Array:
    shape = evaluator.shape(node.inputs[0])
    return np.asarray(np.prod(shape, dtype=np.int64) if node.op_type == "Size" else shape[_part(node, len(shape))])


def _part(node: ir.Node, rank: int) -> slice:
    return slice(read_attribute(node, "start", 0), read_attribute(node, "end", rank))


def _gather(sizes: Sizes, node: ir.Node, vector: Vector, *_: Vector) -> Vector | None:  # noqa: ARG001
    indices = known_integers(node, 1)
    return None if indices is None else [vector[index] for index in indices]


def _slice(sizes: Sizes, node: ir.Node, vector: Vector) -> Vector | None:  # noqa: ARG001
    bounds = _bounds(node)
    if any(bound is None or len(bound) != 1 for bound in bounds):
        return None
    return vector[slice(*(bound[0] for bound in bounds if bound is not None))]


def _sliced(evaluator: Evaluator, node: ir.Node, x: Array) -> Array:  # noqa: ARG001
    return x[slice(*(bound[0] for bound in _bounds(node) if bound))]


def _bounds(node: ir.Node) -> list[list[int] | None]:
    """The start, the end and the step of a Slice along its only axis."""
    return [known_integers(node, index) for index in range(1, len(node.inputs)) if index != 3]


def _concat(sizes: Sizes, node: ir.Node, *vectors: Vector) -> Vector | None:  # noqa: ARG001
    return [size for vector in vectors for size in vector]


def _reduce_prod(sizes: Sizes, node: ir.Node, vector: Vector) -> Vector | None:  # noqa: ARG001
    result = number(1.0)
    for size in vector:
        result = multiply(result, size)
    return [result]


def _filled(layouts: Layouts, node: ir.Node, layout: Layout | None = None) -> Layout | None:  # noqa: ARG001
    sizes = sizes_of(node.outputs[0])
    return None if sizes is None else layouts.axes.layout(sizes)


def _fill(forms: Forms, node: ir.Node) -> Polynomial | None:  # noqa: ARG001
    value = node.attributes.get("value")
    if node.outputs[0].dtype not in FLOATS or (value is not None and value.is_ref()):
        return None
    return number(_fill_number(node))


def _fill_number(node: ir.Node) -> float:
    value = node.attributes.get("value")
    return 0.0 if value is None else float(value.as_tensor().numpy().item())


_SHAPE = Op(sizes=_shape, evaluate=_shape_array, operands=0)

register(
    {
        "Shape": _SHAPE,
        "Size": _SHAPE,
        "Gather": Op(sizes=_gather, numpy=lambda x, index: x[index], float_sizes=True),
        "Slice": Op(sizes=_slice, evaluate=_sliced, operands=1, float_sizes=True),
        "Concat": Op(sizes=_concat, numpy=lambda *parts: np.concatenate([np.atleast_1d(part) for part in parts])),
        "ReduceProd": Op(sizes=_reduce_prod, numpy=lambda x: np.asarray(np.prod(x)), operands=1, float_sizes=True),
        "ConstantOfShape": Op(
            _filled,
            _fill,
            evaluate=lambda evaluator, node: np.asarray(_fill_number(node)),  # noqa: ARG005
            operands=0,
        ),
    }
)
