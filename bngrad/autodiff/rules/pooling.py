"""Pools, as ORT's own gradient ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.graph.window_axes import window_count
from bngrad.opset.op_attributes import AVERAGE_POOL, FLAG, MAX_POOL

if TYPE_CHECKING:
    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients


@gradient("MaxPool", versions=(12, 22), attributes={**MAX_POOL, "storage_order": FLAG})
def max_pool(back: Backward) -> Gradients:
    """MaxPoolGrad(dY, indices) -> dX; the forward node gets the output with its indices.

    Where those are column-major, a second MaxPool makes row-major ones.
    """
    refuse_dilated_same(back)
    if back.tie == "split":
        back.refuse(
            "it is jax.lax.cummax or cummin, which split ties in the order of a scan; expected such as "
            "jnp.max(jnp.where(jnp.tri(n, dtype=bool), x[..., None, :], -jnp.inf), axis=-1)"
        )
    refuse_windows_beyond(back)
    attributes = {name: value for name, value in back.attributes().items() if name != "storage_order"}
    if back.attribute("storage_order", 0):
        indices = back.outputs_of("MaxPool", back.x(0), outputs=["y", "indices"], **attributes)[1]
    else:
        indices = back.y(1)
    indices.dtype, indices.shape = ir.DataType.INT64, back.y(0).shape
    return [back.op("MaxPoolGrad", back.dY, indices, **attributes)]


def refuse_dilated_same(back: Backward) -> None:
    """Refuses auto_pad with dilations: ONNX Runtime pads for a kernel without them, and has another shape."""
    auto_pad, dilations = back.attribute("auto_pad", "NOTSET"), back.attribute("dilations", [])
    if auto_pad.startswith("SAME") and max(dilations, default=1) > 1:
        back.refuse(f"it has auto_pad = {auto_pad} and dilations {list(dilations)}; expected pads as numbers")


def refuse_windows_beyond(back: Backward) -> None:
    """Refuses a shape that ONNX Runtime does not compute: below opset 22 ONNX has windows that begin after X."""
    if not back.attribute("ceil_mode", 0) or back.attribute("auto_pad", "NOTSET").startswith("SAME"):
        return
    x, y, kernel = back.x(0).shape, back.y().shape, back.attribute("kernel_shape", [])
    if x is None or y is None:
        return
    ones = [1] * len(kernel)
    strides, dilations = back.attribute("strides", ones), back.attribute("dilations", ones)
    pads = back.attribute("pads", [0] * 2 * len(kernel))
    for axis, size in enumerate(kernel):
        whole, windows = x[2 + axis], y[2 + axis]
        if not isinstance(whole, int) or not isinstance(windows, int):
            continue
        length = (size - 1) * dilations[axis] + 1
        begin, end = pads[axis], pads[axis + len(kernel)]
        within = window_count(whole, length, strides[axis], begin, end, ceil=True)
        if windows != within:
            back.refuse(
                f"ceil_mode = 1 gives {windows} windows along axis {2 + axis}, but ONNX Runtime computes "
                f"{within}; expected opset 22, or pads with which no window begins after the data"
            )


@gradient("AveragePool", versions=(11, 19, 22), attributes=AVERAGE_POOL)
def average_pool(back: Backward) -> Gradients:
    """AveragePoolGrad(dY) -> dX."""
    refuse_windows_beyond(back)
    return [back.op("AveragePoolGrad", back.dY, **back.attributes())]
