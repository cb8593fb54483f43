"""Resize.

`torch.nn.functional.interpolate` computes the forms that are the same in PyTorch. The others are products with a
matrix for each axis, which onnx's reference evaluator computes from an identity matrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from onnx import helper
from onnx.reference import ReferenceEvaluator
from torch import Tensor
from torch.nn import functional

from bngrad.torch.autograd.table import UnsupportedFormError, float32, numbers, op
from bngrad.validation.training_ops.resize import resized_identity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MODES = {
    ("nearest", 1): "nearest",
    ("nearest", 2): "nearest",
    ("nearest", 3): "nearest",
    ("linear", 1): "linear",
    ("linear", 2): "bilinear",
    ("linear", 3): "trilinear",
    ("cubic", 2): "bicubic",
}
"""The modes of PyTorch, by those of ONNX and the number of spatial axes."""
_CROP = "tf_crop_and_resize"


@op("Resize", since=11)
def resize(
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = float32(-0.75),
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """The interpolation of x along some axes."""
    along = list(range(x.ndim)) if axes is None else [axis % x.ndim for axis in axes]
    scale, size = dict[int, float](), list(x.shape)
    how = {
        "antialias": antialias,
        "coordinate_transformation_mode": coordinate_transformation_mode,
        "cubic_coeff_a": cubic_coeff_a,
        "exclude_outside": exclude_outside,
        "mode": mode,
        "nearest_mode": nearest_mode,
    }
    if sizes is not None and sizes.numel():
        if keep_aspect_ratio_policy != "stretch":
            if coordinate_transformation_mode == _CROP:
                raise UnsupportedFormError(f"it has {_CROP} and keep_aspect_ratio_policy")
            how["keep_aspect_ratio_policy"] = keep_aspect_ratio_policy
            return _in_proportion(x, dict(zip(along, numbers(sizes), strict=True)), how)
        size = [dict(zip(along, numbers(sizes), strict=True)).get(axis, n) for axis, n in enumerate(size)]
    elif scales is not None:
        scale = dict(zip(along, numbers(scales), strict=True))
        size = [int(np.floor(n * scale.get(axis, 1.0))) for axis, n in enumerate(size)]
    if size[:2] == list(x.shape[:2]) and _is_of_torch(x, how):
        target: Any = {"scale_factor": [scale.get(axis, 1.0) for axis in range(2, x.ndim)]}
        target = target if scale else {"size": size[2:]}
        return functional.interpolate(x, **target, mode=_MODES[mode, x.ndim - 2])
    cropped = coordinate_transformation_mode == _CROP
    inside = torch.ones([1] * x.ndim, dtype=x.dtype)
    for place, axis in enumerate(along):
        ends = roi[[place, place + len(along)]].numpy() if cropped and roi is not None else None
        matrix = torch.from_numpy(resized_identity(x.shape[axis], size[axis], ends, scale.get(axis), how)).T.to(x)
        inside = inside * matrix.sum(1).reshape([-1 if dim == axis else 1 for dim in range(x.ndim)])
        x = torch.tensordot(matrix, x, ([1], [axis])).movedim(0, axis)
    # The sums of weights are 1, or 0 outside of the crop.
    return x + extrapolation_value * (1 - inside) if cropped else x


def _in_proportion(x: Tensor, sizes: Mapping[int, int], how: dict[str, Any]) -> Tensor:
    """Resizes axes by one scale: each with that whose sizes decide it, along which its matrix is repeated."""
    choose = min if how["keep_aspect_ratio_policy"] == "not_larger" else max
    decisive = choose(sizes, key=lambda axis: sizes[axis] / x.shape[axis])
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], axes=[1, 2], **how)
    before = x.shape
    for axis, size in sizes.items():
        rows = np.eye(before[axis])[:, :, None].repeat(before[decisive], axis=2)
        result: Any = ReferenceEvaluator(node).run(None, {"x": rows, "sizes": np.array([size, sizes[decisive]])})
        matrix = torch.from_numpy(result[0][:, :, 0]).T.to(x)
        x = torch.tensordot(matrix, x, ([1], [axis])).movedim(0, axis)
    return x


def _is_of_torch(x: Tensor, how: dict[str, Any]) -> bool:
    """Returns whether PyTorch computes a form as ONNX defines it."""
    if (how["mode"], x.ndim - 2) not in _MODES or how["antialias"] or how["exclude_outside"]:
        return False
    if how["mode"] == "nearest":
        return (how["coordinate_transformation_mode"], how["nearest_mode"]) == ("asymmetric", "floor")
    return (how["coordinate_transformation_mode"], how["cubic_coeff_a"]) == ("half_pixel", float32(-0.75))
