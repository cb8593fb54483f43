"""Gradients of RoiAlign and MaxRoiPool."""

from __future__ import annotations

import numpy as np

from autodiff.cases.indexing import below
from autodiff.gradient_cases import NO_RULE, Case, fixed


def regions(rng, shape):
    """Draws regions, some of which are partly outside of an image of 6 by 5, or empty."""
    begin = rng.uniform(-2, 8, (shape[0], 2))
    return np.concatenate([begin, begin + rng.uniform(-1, 9, begin.shape)], axis=1)


def regions_of_two(rng, shape):
    """Draws regions with the image of each; some edges are halves, which ONNX Runtime rounds away from 0."""
    image = np.minimum(rng.integers(0, 3, (shape[0], 1)), 1)
    return np.concatenate([image, np.round(2 * regions(rng, shape)) / 2], axis=1)


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


def pool(name, attributes, *, x="2, 2, 6, 5", **more):
    return Case(
        f"max roi pool {name}",
        f"float[{x}] x, float[N, 5] r",
        f"y = MaxRoiPool <{attributes}> (x, r)",
        **{"draw": {"r": regions_of_two}, "dims": ({"N": 4}, {"N": 9}), "oracle": NO_RULE} | more,
    )


OLD = 'coordinate_transformation_mode = "output_half_pixel"'
CASES = [
    align("averages", "sampling_ratio = 2"),
    align("averages of as many as fit", OLD, x="B, C, H, W", dims=({"N": 3, "B": 2, "C": 2, "H": 6, "W": 5},)),
    align("averages of regions of one image", 'mode = "avg"', x="1, 2, 4, 1", draw={"r": regions, "b": below(1)}),
    align("the largest", 'mode = "max", sampling_ratio = 1'),
    align("the largest of as many as fit", f'mode = "max", {OLD}'),
    pool("of bins that overlap", "pooled_shape = [3, 2]"),
    pool(
        "of regions of another size",
        "pooled_shape = [2, 4], spatial_scale = 0.7",
        x="B, C, H, W",
        dims=({"N": 5, "B": 2, "C": 3, "H": 6, "W": 5},),
    ),
    pool("of empty bins", "pooled_shape = [7, 1], spatial_scale = 2.0", x="2, 1, 4, 1"),
    pool(
        "of a rectangle in an image",
        "pooled_shape = [1, 1]",
        x="1, 2, 4, 5",
        draw={"r": fixed([0, 1, -0.5, 2.5, 2.49])},
        dims=({"N": 1},),
    ),
]
