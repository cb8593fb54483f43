"""The gradients of Gather and similar ops in standard ONNX: dY added up where X was read.

ScatterElements adds, not ScatterND: ONNX Runtime's ScatterND adds rows on several threads, and loses some where an
index occurs twice. Sums are in float for the 16-bit types, for which its ScatterElements has no kernel that adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bngrad.graph.batch_norm_terms import cast_like, statistics_dtype
from bngrad.graph.node_reader import axis_refusal, read_attribute
from bngrad.graph.shapes import known_dimension, zeros
from bngrad.opset.op_attributes import ANY, AXIS
from bngrad.passes.lower.lowering import lowering

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.passes.lower.lowering import Outputs
    from bngrad.passes.lower.site import Site

_END = 2**63 - 1
_MOST_DIMENSIONS = 64
"""More than any tensor has: NumPy's limit."""


def refusal(node: ir.Node) -> str | None:
    """Returns the reason why a node whose dX has zeros in it cannot be lowered; None if it can."""
    if node.outputs[0].dtype is None:
        return "the type of its dX is not known; expected a model that shape inference can read"
    return None


def gather_grad_refusal(node: ir.Node) -> str | None:
    """Returns the reason why a GatherGrad cannot be lowered; None if it can."""
    if node.outputs[0].shape is None:
        return "the rank of its dX is not known; expected a model that shape inference can read"
    return axis_refusal(node, 0, len(node.outputs[0].shape)) or refusal(node)


@lowering("GatherGrad", refusal=gather_grad_refusal, attributes=AXIS)
def gather_grad(site: Site) -> Outputs:
    """GatherGrad(shape, indices, dY) {axis} -> dX of the shape: dX[..., indices, ...] += dY along the axis."""
    shape, indices, dY = site.x(0), site.x(1), site.x(2)
    rank = len(site.node.outputs[0].shape or ())
    axis = site.attribute("axis", 0) % rank
    trailing = rank - 1 - axis
    if indices.shape is None or len(indices.shape) != 1:
        # All dimensions of indices, which may have none, become the single one that X has.
        count = site.op("Reshape", site.op("Size", indices), site.int64([1]))
        head = [site.op("Slice", shape, site.int64([0]), site.int64([axis]))] if axis else []
        tail = [site.op("Slice", shape, site.int64([axis + 1]), site.int64([_END]))] if trailing else []
        dY = site.op("Reshape", dY, site.op("Concat", *head, count, *tail, axis=0), allowzero=1)
    column = site.op("Reshape", indices, site.int64([-1] + [1] * trailing))
    return [_added(site, _nothing(site, shape), site.op("Expand", column, site.op("Shape", dY)), dY, axis)]


def gather_elements_grad_refusal(node: ir.Node) -> str | None:
    """Returns the reason why a GatherElementsGrad cannot be lowered; None if it can."""
    shape = node.outputs[0].shape
    return (axis_refusal(node, 0, len(shape)) if shape is not None else None) or refusal(node)


@lowering("GatherElementsGrad", refusal=gather_elements_grad_refusal, attributes=AXIS)
def gather_elements_grad(site: Site) -> Outputs:
    """GatherElementsGrad(dY, shape, indices) {axis} -> dX of the shape: dY added at the indices along the axis."""
    return [_added(site, _nothing(site, site.x(1)), site.x(2), site.x(0), site.attribute("axis", 0))]


def gather_nd_grad_refusal(node: ir.Node) -> str | None:
    """Returns the reason why a GatherNDGrad cannot be lowered; None if it can."""
    indices = node.inputs[1] if len(node.inputs) > 1 else None
    if indices is None or known_dimension(indices, -1) is None:
        return "the last dimension of its indices is not known; expected a number"
    return _depth_refusal(node, indices) or refusal(node)


def _depth_refusal(node: ir.Node, indices: ir.Value) -> str | None:
    """Returns the reason why an index is not that of an element or a slice of X; None if it is."""
    batch, length, shape = (
        read_attribute(node, "batch_dims", 0),
        known_dimension(indices, -1) or 0,
        node.outputs[0].shape,
    )
    rank = _MOST_DIMENSIONS if shape is None else len(shape)
    if batch < 0 or length < 1 or batch + length > rank:
        return f"it has batch_dims {batch} and indices of length {length}; expected 1 to {rank} together"
    return None


@lowering("GatherNDGrad", refusal=gather_nd_grad_refusal, attributes={"batch_dims": ANY})
def gather_nd_grad(site: Site) -> Outputs:
    """GatherNDGrad(shape, indices, dY) {batch_dims} -> dX of the shape: dX[b, indices[b, i]] += dY[b, i].

    X is seen as rows, one for each index that there can be.
    """
    shape, indices, dY = site.x(0), site.x(1), site.x(2)
    batch, length = site.attribute("batch_dims", 0), known_dimension(indices, -1) or 0
    rows = site.op("Reshape", _row_numbers(site, shape, indices, length, batch), site.int64([-1, 1]))
    updates = site.op("Flatten", dY, axis=len(indices.shape or ()) - 1)
    data = site.op("Flatten", _nothing(site, shape), axis=batch + length)
    added = _added(site, data, site.op("Expand", rows, site.op("Shape", updates)), updates, 0)
    return [site.op("Reshape", added, shape, allowzero=1)]


def _row_numbers(site: Site, shape: ir.Value, indices: ir.Value, length: int, batch: int) -> ir.Value:
    """The row number of each index; negative indices count from the end."""
    end = site.int64([batch + length])
    sizes = site.op("Slice", shape, site.int64([batch]), end)
    unit, zero = site.int64(1), site.int64(0)
    row = None
    if batch:
        batches = site.op("ReduceProd", site.op("Slice", shape, site.int64([0]), site.int64([batch])), keepdims=1)
        of_each = site.op("ReduceProd", site.op("Shape", indices, start=batch, end=-1), keepdims=1)
        by_batch = site.op("Concat", batches, of_each, site.int64([length]), axis=0)
        indices = site.op("Reshape", indices, by_batch, allowzero=1)
        numbers = site.op("Range", zero, site.op("Squeeze", batches), unit)
        row = site.op("Unsqueeze", numbers, site.int64([1]))
    indices = site.op("Where", site.op("Less", indices, zero), site.op("Add", indices, sizes), indices)
    for place in range(length):
        digit = site.op("Gather", indices, site.int64(place), axis=-1)
        base = site.op("Gather", sizes, site.int64([place]))
        row = digit if row is None else site.op("Add", site.op("Mul", row, base), digit)
    assert row is not None, "an index has a length"  # noqa: S101
    return row


def _nothing(site: Site, shape: ir.Value) -> ir.Value:
    """Zeros of a shape, in the type that the gradient is added up in."""
    return zeros(site, shape, statistics_dtype(site.node.outputs[0]))


def _added(site: Site, data: ir.Value, indices: ir.Value, updates: ir.Value, axis: int) -> ir.Value:
    dtype = statistics_dtype(site.node.outputs[0])
    total = site.op("ScatterElements", data, indices, site.cast(updates, dtype), axis=axis, reduction="add")
    return cast_like(site, total, dtype, site.node.outputs[0])
