"""Pools, as ORT's own gradient ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.autodiff.rule import gradient
from bngrad.opset.functions import DOMAIN
from bngrad.opset.op_attributes import AVERAGE_POOL, FLAG, MAX_POOL, MAX_POOL_GRAD

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
    attributes = {name: value for name, value in back.attributes().items() if name != "storage_order"}
    if back.attribute("storage_order", 0):
        indices = back.outputs_of("MaxPool", back.x(0), outputs=["y", "indices"], **attributes)[1]
    else:
        indices = back.y(1)
    indices.dtype, indices.shape = ir.DataType.INT64, back.y(0).shape
    return [back.op("MaxPoolGrad", back.dY, indices, **attributes)]


@gradient("MaxPoolInputGrad", domain=DOMAIN, inputs=(0,), zero=(1,), attributes=MAX_POOL_GRAD)
def max_pool_grad(back: Backward) -> Gradients:
    """d_dY = ddX at the indices of MaxPool(X); zero with respect to X."""
    indices = back.outputs_of("MaxPool", back.x(1), outputs=["y", "indices"], **back.attributes())[1]
    indices.dtype, indices.shape = ir.DataType.INT64, back.x(0).shape
    return [back.op("Gather", back.op("Reshape", back.dY, back.int64([-1])), indices, axis=0), None]


def refuse_dilated_same(back: Backward) -> None:
    """Refuses auto_pad with dilations: ONNX Runtime pads for a kernel without them, and has another shape."""
    auto_pad, dilations = back.attribute("auto_pad", "NOTSET"), back.attribute("dilations", [])
    if auto_pad.startswith("SAME") and max(dilations, default=1) > 1:
        back.refuse(f"it has auto_pad = {auto_pad} and dilations {list(dilations)}; expected pads as numbers")


@gradient("AveragePool", versions=(11, 19, 22), attributes=AVERAGE_POOL)
def average_pool(back: Backward) -> Gradients:
    """AveragePoolGrad(dY) -> dX."""
    return [back.op("AveragePoolGrad", back.dY, **back.attributes())]
