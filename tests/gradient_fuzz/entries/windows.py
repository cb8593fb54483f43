"""Convolutions, pools and Resize."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx

from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from gradient_fuzz.sketch import Sketch, Value


def _window(
    b: Sketch, spatial: tuple[int, ...], kernel: tuple[int, ...], *, pooling: bool = False
) -> dict[str, object]:
    """Strides, dilations and pads that leave at least one window."""
    rank = len(spatial)
    dilations = [b.draw.choice([1, 1, 2]) if k > 1 else 1 for k in kernel]
    padding = b.draw.choice(["pads", "pads", "none", "VALID", "SAME_UPPER", "SAME_LOWER", "NOTSET"])
    if padding.startswith("SAME") and b.draw.chance(0.7):
        dilations = [1] * rank
    attributes: dict[str, object] = {"strides": b.maybe([b.draw.randint(1, 3) for _ in spatial], 0.6)}
    if padding.startswith("SAME"):
        # ONNX Runtime refuses negative pads, which a stride beyond the kernel may need.
        attributes["strides"] = b.maybe([b.draw.randint(1, k) for k in kernel], 0.6)
    if any(d > 1 for d in dilations) or b.draw.chance(0.2):
        attributes["dilations"] = dilations
    if padding in ("pads", "NOTSET"):
        most = [k - 1 if pooling else 2 for k in kernel]
        attributes["pads"] = [b.draw.randint(0, max(0, min(most[i % rank], 2))) for i in range(2 * rank)]
    if padding not in ("pads", "none"):
        attributes["auto_pad"] = padding
    return attributes


def _data(b: Sketch, channels: int | None = None, least: int = 2) -> Value:
    """Data [N, C, ...] with one to three spatial dimensions."""
    if channels is None and b.draw.chance(0.5):
        data = b.some(lambda v: 3 <= v.rank <= 5 and min(v.shape[1:]) >= 1 and v.array.size <= 100)
        if data is not None:
            return data
    rank = b.draw.choice([1, 2, 2, 2, 3])
    size = {1: (least, 6), 2: (least, 5), 3: (1, 3)}[rank]
    shape = (b.dim(1, 2), channels or b.draw.randint(1, 4), *(b.draw.randint(*size) for _ in range(rank)))
    return b.of_shape(shape, computed=0.3)


def conv(b: Sketch) -> list[Value]:
    x = _data(b)
    channels, spatial = x.shape[1], x.shape[2:]
    group = b.draw.choice([g for g in range(1, channels + 1) if channels % g == 0])
    out = group * b.draw.randint(1, 2)
    kernel = tuple(b.draw.randint(1, min(3, size)) for size in spatial)
    w = b.of_shape((out, channels // group, *kernel), computed=0.3)
    bias = b.of_shape((out,)) if b.draw.chance(0.5) else None
    return b.emit(
        "Conv",
        [x, w, bias],
        group=group if group > 1 else b.maybe(1, 0.3),
        kernel_shape=b.maybe(list(kernel), 0.6),
        **_window(b, spatial, kernel),
    )


def conv_transpose(b: Sketch) -> list[Value]:
    x = _data(b, least=1)
    channels, spatial = x.shape[1], x.shape[2:]
    group = b.draw.choice([g for g in range(1, channels + 1) if channels % g == 0])
    group_outputs = b.draw.randint(1, 2)
    kernel = tuple(b.draw.randint(1, 3) for _ in spatial)
    w = b.of_shape((channels, group_outputs, *kernel), computed=0.3)
    bias = b.of_shape((group * group_outputs,)) if b.draw.chance(0.5) else None
    strides = [b.draw.randint(1, 3) for _ in spatial]
    dilations = [b.draw.choice([1, 1, 2]) for _ in spatial]
    attributes: dict[str, object] = {"strides": strides if max(strides) > 1 else b.maybe(strides)}
    if max(dilations) > 1:
        attributes["dilations"] = dilations
    kind = b.draw.randrange(5)
    if kind <= 1:
        pads = [b.draw.randint(0, 1) for _ in range(2 * len(spatial))]
        for i, (s, n, k, d) in enumerate(zip(strides, spatial, kernel, dilations, strict=True)):
            if s * (n - 1) + (k - 1) * d + 1 <= pads[i] + pads[i + len(spatial)]:
                raise NotDrawableError("nothing is left")
        attributes["pads"] = pads
    elif kind == 2:
        attributes["auto_pad"] = b.draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif kind == 3:
        natural = [
            s * (n - 1) + (k - 1) * d + 1 for s, n, k, d in zip(strides, spatial, kernel, dilations, strict=True)
        ]
        attributes["output_shape"] = [max(1, size - b.draw.randint(0, 2)) for size in natural]
        attributes["auto_pad"] = b.maybe(b.draw.choice(["SAME_UPPER", "SAME_LOWER"]))
    if kind != 3 and b.draw.chance(0.3):
        attributes["output_padding"] = [
            b.draw.randint(0, max(s, d) - 1) for s, d in zip(strides, dilations, strict=True)
        ]
    return b.emit(
        "ConvTranspose",
        [x, w, bias],
        group=group if group > 1 else b.maybe(1, 0.3),
        kernel_shape=b.maybe(list(kernel), 0.6),
        **attributes,
    )


def pool(b: Sketch, op_type: str) -> list[Value]:
    x = _data(b)
    kernel = tuple(b.draw.randint(1, min(3, size)) for size in x.shape[2:])
    attributes = _window(b, x.shape[2:], kernel, pooling=True)
    if "dilations" in attributes and b.opset < (19 if op_type == "AveragePool" else 10):
        del attributes["dilations"]
    attributes["ceil_mode"] = b.maybe(b.draw.choice([0, 1])) if b.opset >= 10 else None
    outputs: int | list[bool] = 1
    if op_type == "AveragePool":
        attributes["count_include_pad"] = b.maybe(b.draw.choice([0, 1]))
    else:
        attributes["storage_order"] = b.maybe(b.draw.choice([0, 0, 1]), 0.3)
        outputs = b.draw.choice([1, 1, 1, 2])
    return b.emit(op_type, [x], outputs, kernel_shape=list(kernel), **attributes)[:1]


def lp_pool(b: Sketch) -> list[Value]:
    x = _data(b)
    kernel = tuple(b.draw.randint(1, min(3, size)) for size in x.shape[2:])
    attributes = _window(b, x.shape[2:], kernel, pooling=True)
    if b.opset < 18:
        attributes.pop("dilations", None)
    else:
        attributes["ceil_mode"] = b.maybe(b.draw.choice([0, 1]))
    p = b.maybe(b.draw.choice([1, 2, 3, 4]))
    (y,) = b.emit("LpPool", [x], kernel_shape=list(kernel), p=p, **attributes)
    if not np.all(y.array > 0.01):
        raise NotDrawableError("a length of 0")
    return [y]


def max_unpool(b: Sketch) -> list[Value]:
    """Unpools data to where other data has its largest elements, whose shape is the natural one."""
    x = _data(b, least=1)
    kernel = [b.draw.randint(1, 3) for _ in x.shape[2:]]
    strides = [b.draw.randint(1, 3) for _ in kernel]
    pads = [b.draw.randint(0, k - 1) for k in kernel] * 2
    attributes: dict[str, object] = {"kernel_shape": kernel, "strides": b.maybe(strides, 0.7)}
    if attributes["strides"] is None:
        strides = [1] * len(kernel)
    attributes["pads"] = b.maybe(pads)
    if attributes["pads"] is None:
        pads = [0] * len(pads)
    sizes = [
        (n - 1) * s - pads[i] - pads[i + len(kernel)] + k
        for i, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    if min(sizes) < 1:
        raise NotDrawableError("nothing is left")
    z = b.of_shape((*x.shape[:2], *sizes))
    _, indices = b.emit("MaxPool", [z], 2, **attributes)
    natural = b.shape_of(z.shape) if b.draw.chance(0.3) else None
    return b.emit("MaxUnpool", [x, indices, natural], **attributes)


def col2im(b: Sketch) -> list[Value]:
    rank = b.draw.choice([1, 2, 2, 3])
    block = [b.draw.randint(1, 3 if rank < 3 else 2) for _ in range(rank)]
    strides, dilations = ([b.draw.choice([1, 1, 2]) for _ in range(rank)] for _ in range(2))
    if rank != 2 and b.draw.chance(0.9):  # which is refused with dilations
        dilations = [1] * rank
    pads = [b.draw.randint(0, k - 1) for k in block] * 2 if b.draw.chance(0.5) else [0] * (2 * rank)
    blocks = [b.draw.randint(1, 3 if rank < 3 else 2) for _ in range(rank)]
    image = [
        (n - 1) * s + (k - 1) * d + 1 - pads[i] - pads[i + rank] + b.draw.randint(0, s - 1)
        for i, (n, s, k, d) in enumerate(zip(blocks, strides, block, dilations, strict=True))
    ]
    if min(image) < 1:
        raise NotDrawableError("nothing is left")
    x = b.of_shape((b.dim(1, 2), b.draw.randint(1, 2) * int(np.prod(block)), int(np.prod(blocks))))
    return b.emit(
        "Col2Im",
        [x, b.shape_of(image), b.shape_of(block)],
        dilations=dilations if max(dilations) > 1 else b.maybe(dilations),
        pads=pads if any(pads) else b.maybe(pads),
        strides=strides if max(strides) > 1 else b.maybe(strides),
    )


COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "half_pixel_symmetric",
)


def resize(b: Sketch) -> list[Value]:  # noqa: C901 - one draw after the other
    x = _data(b, least=1) if b.draw.chance(0.7) else b.any(1)
    mode = b.draw.choice(["nearest", "linear", "linear", "cubic"])
    coordinates = COORDINATES if b.opset >= 19 else COORDINATES[:5]
    attributes: dict[str, object] = {
        "mode": b.maybe("nearest") if mode == "nearest" else mode,
        "coordinate_transformation_mode": b.maybe(b.draw.choice(coordinates), 0.7),
    }
    crop = attributes["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if mode == "nearest":
        nearest = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        attributes["nearest_mode"] = b.maybe(b.draw.choice(nearest))
    if mode == "cubic":
        attributes["cubic_coeff_a"] = b.maybe(b.draw.choice([-0.5, -0.75]))
    if mode != "nearest":
        attributes["exclude_outside"] = b.maybe(b.draw.choice([0, 1]), 0.3) if mode == "cubic" else None
    chosen = list(range(x.rank))
    if b.opset >= 18 and b.draw.chance(0.4):
        chosen = b.draw.sample(chosen, b.draw.randint(1, x.rank))
        attributes["axes"] = [a - x.rank if b.draw.chance(0.3) else a for a in chosen]
    if b.opset >= 18 and mode != "nearest":
        attributes["antialias"] = b.maybe(b.draw.choice([0, 1]), 0.4)
    keep = {0, 1} if x.rank > 2 else set()
    by_sizes = b.draw.chance(0.45)
    roi = None
    if crop:
        starts = [0.0 if a in keep else b.draw.choice([0.0, 0.1, 0.25]) for a in chosen]
        ends = [1.0 if a in keep else b.draw.choice([1.0, 0.8, 1.2]) for a in chosen]
        roi = b.constant(b.round(np.asarray([*starts, *ends])), b.element)
        attributes["extrapolation_value"] = b.maybe(b.draw.choice([0.0, 0.5]))
    elif b.opset < 13:
        roi = b.constant(np.zeros(0), b.element)
    if by_sizes:
        sizes = [x.shape[a] if a in keep or b.draw.chance(0.3) else b.draw.randint(1, 6) for a in chosen]
        policy = None
        if b.opset >= 18 and b.draw.chance(0.25):
            policy = b.draw.choice(["stretch", "not_larger", "not_smaller"])
        attributes["keep_aspect_ratio_policy"] = policy
        scales = b.constant(np.zeros(0), onnx.TensorProto.FLOAT) if b.opset < 13 else None
        inputs = [x, roi, scales, b.shape_of(sizes)]
    else:
        factors = [
            1.0 if a in keep or b.draw.chance(0.3) else b.draw.choice([0.5, 1.5, 2.0, 0.7, 2.3]) for a in chosen
        ]
        inputs = [x, roi, b.constant(np.asarray(factors), onnx.TensorProto.FLOAT)]
    outputs = b.emit("Resize", inputs, **attributes)
    if outputs[0].array.size == 0 and x.array.size:
        raise NotDrawableError("nothing is left")
    return outputs


def grid_sample(b: Sketch) -> list[Value]:
    if b.opset < 16:
        raise NotDrawableError("no such op")
    newer = b.opset >= 20
    rank = b.draw.choice([2, 2, 3]) if newer else 2
    mode = b.draw.choice(["nearest", "linear", "linear", "cubic"][: 4 if rank == 2 else 3])
    x = b.of_shape((b.dim(1, 3), b.dim(1, 3), *(b.dim(1, 4) for _ in range(rank))))
    shape = (x.shape[0], *(b.dim(1, 3) for _ in range(rank)), rank)
    # Away from where two elements meet: there the op has a kink, and the mode nearest a jump.
    grid = b.one("Add", b.one("Mul", b.one("Tanh", b.of_shape(shape)), b.scalar(1.2137)), b.scalar(0.0731))
    names = {"linear": "bilinear", "cubic": "bicubic"}
    return b.emit(
        "GridSample",
        [x, grid],
        mode=mode if newer else names.get(mode, mode),
        padding_mode=b.maybe(b.draw.choice(["zeros", "border", "reflection"]), 0.8),
        align_corners=b.maybe(b.draw.choice([0, 1])),
    )


def affine_grid(b: Sketch) -> list[Value]:
    rank = b.draw.choice([2, 2, 3])
    theta = b.of_shape((b.dim(1, 2), rank, rank + 1))
    align = b.maybe(b.draw.choice([0, 1]))
    # The corners of a single element are no two places.
    size = [theta.shape[0], b.dim(1, 2), *(b.draw.randint(1 + (align or 0), 3) for _ in range(rank))]
    return b.emit("AffineGrid", [theta, b.shape_of(size)], align_corners=align)


def center_crop_pad(b: Sketch) -> list[Value]:
    x = b.any(1)
    axes = b.draw.sample(range(x.rank), b.draw.randint(1, x.rank)) if b.draw.chance(0.5) else None
    shape = [b.draw.randint(1, 6) for _ in axes or range(x.rank)]
    counted = None if axes is None else [axis - x.rank if b.draw.chance(0.3) else axis for axis in axes]
    return b.emit("CenterCropPad", [x, b.shape_of(shape)], axes=counted)


def roi_align(b: Sketch) -> list[Value]:
    if b.opset < 16:
        raise NotDrawableError("onnx's reference has the default of a newer opset")
    x = b.of_shape((b.draw.randint(1, 2), b.draw.randint(1, 2), b.draw.randint(2, 5), b.draw.randint(2, 5)))
    count = b.draw.randint(1, 3)
    begin = b.rng.uniform(-2, 4, (count, 2))
    rois = b.round(np.concatenate([begin, begin + b.rng.uniform(-0.5, 5, (count, 2))], axis=1))
    return b.emit(
        "RoiAlign",
        [x, b.constant(rois, b.element), b.constant(b.rng.integers(0, x.shape[0], count))],
        coordinate_transformation_mode=b.maybe(b.draw.choice(["half_pixel", "output_half_pixel"])),
        mode=b.maybe(b.draw.choice(["avg", "max"])),
        output_height=b.maybe(b.draw.randint(1, 3)),
        output_width=b.maybe(b.draw.randint(1, 3)),
        sampling_ratio=b.maybe(b.draw.randint(0, 2)),
        spatial_scale=b.maybe(b.draw.choice([0.5, 1.5])),
    )


def max_roi_pool(b: Sketch) -> list[Value]:
    x = b.of_shape((b.draw.randint(1, 2), b.draw.randint(1, 2), b.draw.randint(2, 5), b.draw.randint(2, 5)))
    count = b.draw.randint(1, 3)
    image = b.rng.integers(0, x.shape[0], (count, 1))
    begin = b.rng.uniform(-2, 4, (count, 2))
    # Away from halves, which errors in the scale would round up or down.
    edges = np.round(np.concatenate([begin, begin + b.rng.uniform(-0.5, 5, (count, 2))], axis=1)) + 0.125
    return b.emit(
        "MaxRoiPool",
        [x, b.constant(np.concatenate([image, edges], axis=1), b.element)],
        pooled_shape=[b.draw.randint(1, 3), b.draw.randint(1, 3)],
        spatial_scale=b.maybe(b.draw.choice([0.5, 1.5])),
    )


ENTRIES = {
    ("", "AffineGrid"): affine_grid,
    ("", "AveragePool"): partial(pool, op_type="AveragePool"),
    ("", "Col2Im"): col2im,
    ("", "CenterCropPad"): center_crop_pad,
    ("", "Conv"): conv,
    ("", "ConvTranspose"): conv_transpose,
    ("", "GridSample"): grid_sample,
    ("", "LpPool"): lp_pool,
    ("", "MaxPool"): partial(pool, op_type="MaxPool"),
    ("", "MaxRoiPool"): max_roi_pool,
    ("", "MaxUnpool"): max_unpool,
    ("", "Resize"): resize,
    ("", "RoiAlign"): roi_align,
}
