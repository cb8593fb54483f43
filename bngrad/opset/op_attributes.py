"""Attributes of ops that are used in several tables: by name, with the supported values."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Attributes: TypeAlias = Mapping[str, Sequence[int | str]]

ANY: tuple[int, ...] = ()
"""All values of an attribute are supported."""
FLAG = (0, 1)

AXIS: Attributes = {"axis": ANY}
ALPHA: Attributes = {"alpha": ANY}
WINDOWS: Attributes = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""),
    **dict.fromkeys(("dilations", "kernel_shape", "pads", "strides"), ANY),
}
CONV: Attributes = {**WINDOWS, "group": ANY}
CONV_TRANSPOSE: Attributes = {**CONV, "output_padding": ANY, "output_shape": ANY}
POOL: Attributes = {**WINDOWS, "ceil_mode": FLAG}
AVERAGE_POOL: Attributes = {**POOL, "count_include_pad": FLAG}
MAX_POOL: Attributes = {**POOL, "storage_order": (0,)}
MAX_POOL_GRAD: Attributes = {name: values for name, values in POOL.items() if name != "auto_pad"}
NORM: Attributes = {"epsilon": ANY, "stash_type": ANY}
LOSS: Attributes = {"ignore_index": ANY, "reduction": ("none", "sum", "mean")}
REDUCTION: Attributes = {"keepdims": FLAG, "noop_with_empty_axes": FLAG}
RESIZE: Attributes = {
    "antialias": FLAG,
    "axes": ANY,
    "coordinate_transformation_mode": (
        *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
        *("tf_half_pixel_for_nn", "tf_crop_and_resize"),
    ),
    "cubic_coeff_a": ANY,
    "exclude_outside": FLAG,
    "extrapolation_value": ANY,
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "mode": ("nearest", "linear", "cubic"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
}
ROUNDING: Attributes = {"round_mode": ANY, "saturate": FLAG}
SCATTER: Attributes = {"reduction": ("none", "add", "mul", "max", "min")}
RANDOM: Attributes = {"dtype": ANY, "seed": ANY}
