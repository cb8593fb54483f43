"""Mutants of the C++ of depthwise and batched convolutions, and of MaxPool's gradient."""

from __future__ import annotations

from metamorphic.mutants import of

_DEPTHWISE = ("tests/ops/test_depthwise.py",)
_POOLS = ("tests/ops/test_max_pool_grad.py",)
_BATCHED = ("tests/ops/test_batched_conv.py",)

DEPTHWISE = of(
    "ops/core/depthwise.cc",
    (
        "plane % s_.channels * s_.multiplier + i;",
        "plane * s_.multiplier + i;",
        "weights by image, too",
        _DEPTHWISE,
    ),
    (
        "k / c.kernel * r.dilation;",
        "k / c.kernel;",
        "dX has undilated rows",
        _DEPTHWISE,
    ),
    ("if (row % r.stride != 0 ||", "if (", "dX has rows of other phases", _DEPTHWISE),
    ("plane % s_.channels * weights;", "0 * weights;", "dX by the weights of the first channel", _DEPTHWISE),
    (
        "for (int64_t n = 0; n < s_.batch; ++n) {",
        "for (int64_t n = 0; n < 1; ++n) {",
        "dW of one image",
        _DEPTHWISE,
    ),
    ("lanes[i] += lanes[i + half];", "lanes[i] = lanes[i + half];", "dW loses half of its lanes", _DEPTHWISE),
    ("row % layout.row_step * layout.row_phase +", "0 * layout.row_phase +", "Y of one phase of rows", _DEPTHWISE),
)
POOLS = of(
    "ops/core/max_pool_grad.cc",
    (
        "at = value > largest ? first + k : at;",
        "at = value >= largest ? first + k : at;",
        "the last of equals",
        _POOLS,
    ),
    (
        "const Distance<T> at = first + static_cast<Distance<T>>(k * dilation);",
        "const Distance<T> at = first + static_cast<Distance<T>>(k);",
        "dilated columns go to their neighbours",
        _POOLS,
    ),
    ("dx[best] += dy[w];", "dx[best] = dy[w];", "at an edge the last window counts", _POOLS),
    ("best.at[i]] += dy[w + i];", "best.at[i]] = dy[w + i];", "the last window counts", _POOLS),
    ("depth * depth_.dilation * height_.size", "depth * height_.size", "planes undilated", _POOLS),
    ("static_cast<const T*>(a.dY) + p * windows", "static_cast<const T*>(a.dY)", "dY of the first plane", _POOLS),
)
BATCHED = [
    *of(
        "ops/core/col2im.cc",
        ("axis.begin - k * axis.dilation;", "axis.begin - k;", "undilated", _BATCHED),
        ("before + axis.stride - 1", "before", "a window more than meets data", _BATCHED),
        ("data + (n * channels + c) * plane", "data + (n + c) * plane", "images overlap", _BATCHED),
    ),
    *of(
        "ops/ort/batched_conv.cc",
        (
            "ExchangeDimensions(y, m, n, plane_y, to, parallel)",
            "ExchangeDimensions(y, n, m, plane_y, to, parallel)",
            "Y has its images and channels exchanged",
            _BATCHED,
        ),
        ("float *const to = a.y + first * image_y,", "float *const to = a.y,", "later parts replace Y", _BATCHED),
        ("a.y + first * m * plane_y", "a.y", "later parts replace the first", _BATCHED),
    ),
]

WINDOW_MUTANTS = [*DEPTHWISE, *POOLS, *BATCHED]
