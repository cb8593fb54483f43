"""Gradients of RoiAlign."""

from __future__ import annotations

import numpy as np

from autodiff.cases.indexing import below
from autodiff.gradient_cases import NO_RULE, Case


def regions(rng, shape):
    """Draws regions, some of which are partly outside of an image of 6 by 5, or empty."""
    begin = rng.uniform(-2, 8, (shape[0], 2))
    return np.concatenate([begin, begin + rng.uniform(-1, 9, begin.shape)], axis=1)


def align(name, attributes, *, x="2, 2, 6, 5", **more):
    return Case(
        f"roi align {name}",
        f"float[{x}] x, float[N, 4] r, int64[N] b",
        f"y = RoiAlign <output_height = 2, output_width = 2, spatial_scale = 0.7, {attributes}> (x, r, b)",
        **{
            "draw": {"r": regions, "b": below(2)},
            "dims": ({"N": 4},),
            "oracle": NO_RULE,
            "float_limit": 3e-5,
        }
        | more,
    )


OLD = 'coordinate_transformation_mode = "output_half_pixel"'
CASES = [
    align("averages", "sampling_ratio = 2"),
    align("averages of as many as fit", OLD, x="B, C, H, W", dims=({"N": 3, "B": 2, "C": 2, "H": 6, "W": 5},)),
    align("averages of regions of one image", 'mode = "avg"', x="1, 2, 4, 1", draw={"r": regions, "b": below(1)}),
    align("the largest", 'mode = "max", sampling_ratio = 1'),
    align("the largest of as many as fit", f'mode = "max", {OLD}'),
]
