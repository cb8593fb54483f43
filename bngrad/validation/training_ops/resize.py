"""The gradient of Resize, for which ORT's training build has no kernel on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from bngrad.validation.training_ops._types import default

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.validation.training_ops._types import Array


def resize_grad(
    dY: Array,
    X: Array,
    roi: Array | None = None,
    scales: Array | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = default(-0.75),
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,  # noqa: ARG001 - a constant without a gradient
    keep_aspect_ratio_policy: str = "stretch",  # noqa: ARG001 - its effect is known from the shapes
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Array:
    """Returns dX = M dY along each axis, where M is Resize applied to the rows of an identity matrix.

    Without scales, an axis is scaled by the ratio of its sizes in dY and X.
    """
    how = {
        "antialias": antialias,
        "coordinate_transformation_mode": coordinate_transformation_mode,
        "cubic_coeff_a": cubic_coeff_a,
        "exclude_outside": exclude_outside,
        "mode": mode,
        "nearest_mode": nearest_mode,
    }
    along = [axis % X.ndim for axis in (range(X.ndim) if axes is None else axes)]
    dX = dY
    for place, axis in enumerate(along):
        ends = None if roi is None or not roi.size else roi[[place, place + len(along)]]
        scale = None if scales is None or not scales.size else scales[place]
        matrix = resized_identity(X.shape[axis], dY.shape[axis], ends, scale, how)
        dX = np.moveaxis(np.tensordot(matrix, dX, axes=(1, axis)), 0, axis)
    return dX


def resized_identity(
    before: int, after: int, ends: Array | None, scale: float | None, attributes: dict[str, Any]
) -> Array:
    """Returns the result of onnx's reference evaluator for the rows of an identity matrix.

    Args:
        before: The size of the axis.
        after: Its size after Resize.
        ends: The start and end of the axis in the roi; None without.
        scale: The scale; None to follow from the sizes.
        attributes: Those of the node.
    """
    feeds: dict[str, Any] = {"rows": np.eye(before)}
    if ends is not None:
        feeds["roi"] = np.array([0, ends[0], 1, ends[1]])
    if scale is None:
        feeds["sizes"] = np.array([before, after])
    else:
        feeds["scales"] = np.array([1, scale])
    inputs = [name if name in feeds else "" for name in ("rows", "roi", "scales", "sizes")]
    evaluator = ReferenceEvaluator(helper.make_node("Resize", inputs, ["y"], **attributes))
    matrix: Array = evaluator.run(None, feeds)[0]  # type: ignore[index]  # a list if no outputs are named
    return matrix
