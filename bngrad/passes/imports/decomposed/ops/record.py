"""The record of an op: its layout, its normal form, the integers that it computes, and its NumPy function."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnx_ir as ir

from bngrad.graph.batch_norms import SUPPORTED_DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bngrad.passes.imports.decomposed.axes import Layout, Size
    from bngrad.passes.imports.decomposed.polynomial import Polynomial, Vector

FLOATS = SUPPORTED_DTYPES
INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)

Array = Any  # NDArray[np.float64] or of booleans or integers


class Op(NamedTuple):
    """The rules of an op. A rule returns None for a node that it does not support.

    The NumPy functions check the forms, so they must not use the rules of the forms.
    """

    layout: Callable[..., Layout | None] | None = None
    """The layout of the output, from that of input 0: (layouts, node, layout)."""
    form: Callable[..., Polynomial | None] | None = None
    """The normal form of the output: (forms, node)."""
    sizes: Callable[..., Vector | None] | None = None
    """The integers that the op computes from those of its operands: (sizes, node, *vectors)."""
    numpy: Callable[..., Array] | None = None
    """The op in NumPy, a function of its operands."""
    evaluate: Callable[..., Array] | None = None
    """The same, if it depends on the node: (evaluator, node, *operands)."""
    operands: int | None = None
    """The number of inputs whose elements the output is computed from; None for all."""
    chooses: bool = False
    """True if the op selects by the values of its inputs."""
    float_sizes: bool = False
    """True if `sizes` also applies to sizes that were cast to floats."""

    def compute(self, evaluator: object, node: ir.Node, *operands: Array) -> Array:
        """The output in NumPy."""
        if self.numpy is not None:
            return self.numpy(*operands)
        assert self.evaluate is not None, "a node that a form explains has a function"  # noqa: S101
        return self.evaluate(evaluator, node, *operands)


def sizes_of(value: ir.Value) -> list[Size] | None:
    """The shape of a value as numbers, symbols, and None; None if its rank is unknown, or it has no elements."""
    if value.shape is None or 0 in value.shape:
        return None
    return [size if isinstance(size, int) else size.value for size in value.shape]


_OPS: dict[str, Op] = {}


def register(ops: Mapping[str, Op]) -> None:
    """Adds the records of ops, by op type."""
    _OPS.update(ops)


def op_of(node: ir.Node) -> Op:
    """The record of a node's op; an empty one if it has none, or the node too few or too many inputs."""
    if node.domain != "" or node.op_type not in _OPS:
        return _UNKNOWN
    least, most = _input_counts(node.op_type)
    return _OPS[node.op_type] if least <= len(node.inputs) <= most else _UNKNOWN


@cache
def _input_counts(op_type: str) -> tuple[int, int]:
    """The least and the greatest number of inputs in any opset: axes were attributes once."""
    opsets = [opset for opset in (_OLDEST, onnx.defs.onnx_opset_version()) if onnx.defs.has(op_type, opset)]
    schemas = [onnx.defs.get_schema(op_type, opset) for opset in opsets]
    return min(schema.min_input for schema in schemas), max(schema.max_input for schema in schemas)


_UNKNOWN = Op()
_OLDEST = 7
"""The oldest opset whose ops the rules support."""
