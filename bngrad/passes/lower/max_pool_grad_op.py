"""MaxPoolGrad of ONNX Runtime's dialect -> MaxPoolInputGrad of ``bngrad``, which needs no indices.

::

    Y, indices = MaxPool(X); dX = MaxPoolGrad(dY, indices)
    =>  Y = MaxPool(X); dX = bngrad.MaxPoolInputGrad(dY, X)

ONNX Runtime's kernels of MaxPool without indices take a small part of the time. A gradient that stays is lowered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.graph.node_reader import read_attribute
from bngrad.graph.window_axes import window_axes
from bngrad.opset.domain import DOMAIN
from bngrad.opset.max_pool_grad import MIN_OPSET, NAME
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.lower.lower_training import LowerTrainingPass
from bngrad.passes.lower.shapes import spatial_sizes
from bngrad.passes.lower.site import Site

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_MAX_RANK = 3


class MaxPoolGradOpPass(RewritePass):
    """Converts the gradients of MaxPools whose indices nothing else needs.

    Requires: ai.onnx `MIN_OPSET` or newer.
    Refuses: what `LowerTrainingPass` refuses.
    Guarantees: others stay for that pass: those of 16-bit types, which the op does not have; of windows with
    dilations, for which ONNX Runtime has no faster kernel; and of auto_pad with data of symbolic sizes.
    """

    minimum = MIN_OPSET

    def matches(self, node: ir.Node) -> bool:
        """Returns whether a node is a MaxPoolGrad for which MaxPool needs no indices."""
        if not _is_gradient(node):
            return False
        indices = node.inputs[1]
        pool = None if indices is None else indices.producer()
        if indices is None or pool is None or indices.is_graph_output() or _attributes(pool) is None:
            return False
        return all(_is_gradient(reader) and reader.graph is pool.graph for reader, _ in indices.uses())

    def refusal(self, node: ir.Node) -> str | None:
        """Returns the reason why a node cannot be lowered; None if it can."""
        return LowerTrainingPass().refusal(node)

    def rewrite(self, node: ir.Node, context: Context) -> None:
        """Replaces a node, and removes the indices of its MaxPool once no node is left that reads them."""
        site = Site(node, context)
        dY, indices = site.x(0), site.x(1)
        pool = indices.producer()
        attributes = None if pool is None else _attributes(pool)
        assert pool is not None and attributes is not None, "`matches` checks it"  # noqa: S101, PT018
        x = pool.inputs[0]
        assert x is not None, "`_attributes` checks it"  # noqa: S101
        (dX,) = site.outputs_of(NAME, dY, x, outputs=["dX"], domain=DOMAIN, **attributes)
        site.replace({0: dX})
        y = pool.outputs[0]
        if not indices.uses() and not y.uses() and not y.is_graph_output():
            context.replaced.append(pool)  # only its indices were needed
        elif not indices.uses():
            pool.resize_outputs(1)


def _is_gradient(node: ir.Node) -> bool:
    return (node.domain, node.op_type, len(node.inputs)) == ("", "MaxPoolGrad", 2)


def _attributes(pool: ir.Node) -> Mapping[str, list[int] | int] | None:
    """The attributes of the op for a MaxPool, with auto_pad resolved; None if the op does not take it."""
    x = pool.inputs[0] if pool.inputs else None
    if (pool.domain, pool.op_type) != ("", "MaxPool") or x is None or x.dtype not in _TYPES:
        return None
    if any(attribute.is_ref() for attribute in pool.attributes.values()):
        return None
    kernel = list(read_attribute(pool, "kernel_shape", ()))
    rank = len(kernel)
    strides, dilations = (list(read_attribute(pool, name, ())) or [1] * rank for name in ("strides", "dilations"))
    pads = _pads(pool, x, kernel, strides)
    lists = (len(strides), len(dilations), len(pads or ())) == (rank, rank, 2 * rank)
    if pads is None or not lists or not 1 <= rank <= _MAX_RANK:
        return None
    if max(dilations) > 1 or read_attribute(pool, "storage_order", 0):
        return None
    same = read_attribute(pool, "auto_pad", "NOTSET").startswith("SAME")
    return {
        "ceil_mode": 0 if same else read_attribute(pool, "ceil_mode", 0),
        "dilations": dilations,
        "kernel_shape": kernel,
        "pads": pads,
        "strides": strides,
    }


def _pads(pool: ir.Node, x: ir.Value, kernel: list[int], strides: list[int]) -> list[int] | None:
    """The padding of a MaxPool without dilations; None if it is unknown."""
    auto_pad = read_attribute(pool, "auto_pad", "NOTSET")
    if not auto_pad.startswith("SAME"):
        declared = () if auto_pad == "VALID" else read_attribute(pool, "pads", ())
        return list(declared) or [0] * 2 * len(kernel)
    sizes = [size for size in spatial_sizes(x, len(kernel)) if size is not None]
    if not len(sizes) == len(kernel) == len(strides):
        return None
    axes = window_axes(sizes, kernel, strides=strides, auto_pad=auto_pad)
    if any((axis.out - 1) * axis.stride + axis.length < axis.size for axis in axes):
        return None  # ONNX Runtime leaves out leading elements there
    return [*(axis.begin for axis in axes), *(axis.end for axis in axes)]
