"""TensorFlow's gradient ops: cases, and what they compute in float64 NumPy."""

from __future__ import annotations

import itertools
import zlib
from typing import NamedTuple

import numpy as np

DOMAIN = "ai.onnx.converters.tensorflow"


class Case(NamedTuple):
    """One node: what it is given, and the float64 function of its outputs."""

    name: str
    op_type: str
    inputs: dict
    attributes: dict
    formula: object
    constants: tuple = ()
    outputs: int = 1

    def wanted(self):
        """The outputs in float64."""
        arrays = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in self.inputs.values()]
        result = self.formula(*arrays, **self.attributes)
        return list(result) if isinstance(result, tuple) else [result]


def window_pads(sizes, kernel, strides, dilations, padding, explicit):
    if padding == "EXPLICIT":
        return explicit
    if padding == "VALID":
        return [(0, 0)] * len(sizes)
    totals = [
        max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, s, k, d in zip(sizes, strides, kernel, dilations, strict=True)
    ]
    return [(total // 2, total - total // 2) for total in totals]


def spatial(numbers, data_format):
    return list(numbers[1:-1] if data_format.endswith("C") else numbers[2:])


def last(array, data_format):
    return array if data_format.endswith("C") else np.moveaxis(array, 1, -1)


def first(array, data_format):
    return array if data_format.endswith("C") else np.moveaxis(array, -1, 1)


class Sliding:
    """Windows over data [N, *spatial, C]."""

    def __init__(self, shape, kernel, attributes):
        data_format = attributes["data_format"]
        self.kernel, rank = kernel, len(kernel)
        self.strides = spatial(attributes["strides"], data_format)
        self.dilations = spatial(attributes.get("dilations", [1] * (rank + 2)), data_format)
        explicit = attributes.get("explicit_paddings", [])
        pairs = spatial(list(zip(explicit[::2], explicit[1::2], strict=True)), data_format)
        self.pads = window_pads(shape[1:-1], kernel, self.strides, self.dilations, attributes["padding"], pairs)
        self.shape = shape
        self.out = [
            (n + b + e - (k - 1) * d - 1) // s + 1
            for n, (b, e), k, d, s in zip(
                shape[1:-1], self.pads, kernel, self.dilations, self.strides, strict=True
            )
        ]

    def padded(self, x, value=0.0):
        return np.pad(x, [(0, 0), *self.pads, (0, 0)], constant_values=value)

    def cropped(self, x):
        return x[
            (
                slice(None),
                *(slice(b, b + n) for (b, _), n in zip(self.pads, self.shape[1:-1], strict=True)),
                slice(None),
            )
        ]

    def elements(self):
        """For each kernel element, its index and where the windows meet the padded data."""
        for index in np.ndindex(*self.kernel):
            where = (
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, n, s in zip(index, self.dilations, self.out, self.strides, strict=True)
            )
            yield index, (slice(None), *where, slice(None))


def backprop_filter(x, sizes, dy, *, data_format, **attributes):
    x, dy = last(x, data_format), last(dy, data_format)
    slide = Sliding(x.shape, tuple(sizes[:-2]), attributes | {"data_format": data_format})
    group, gradient = x.shape[-1] // sizes[-2], np.zeros(sizes)
    for index, where in slide.elements():
        met = slide.padded(x)[where].reshape(-1, group, sizes[-2])
        gradient[index] = np.einsum("ngc,ngm->cgm", met, dy.reshape(len(met), group, -1)).reshape(sizes[-2:])
    return gradient


def backprop_input(sizes, w, dy, *, data_format, **attributes):
    dy = last(dy, data_format)
    shape = last(np.empty(sizes), data_format).shape
    slide = Sliding(shape, w.shape[:-2], attributes | {"data_format": data_format})
    group, dx = shape[-1] // w.shape[-2], slide.padded(np.zeros(shape))
    for index, where in slide.elements():
        parts = dy.reshape(*dy.shape[:-1], group, -1)
        dx[where] += np.einsum("...gm,cgm->...gc", parts, w[index].reshape(w.shape[-2], group, -1)).reshape(
            *dy.shape[:-1], -1
        )
    return first(slide.cropped(dx), data_format)


def depthwise_filter(x, sizes, dy, *, data_format, **attributes):
    x, dy = last(x, data_format), last(dy, data_format)
    slide, gradient = (
        Sliding(x.shape, tuple(sizes[:-2]), attributes | {"data_format": data_format}),
        np.zeros(sizes),
    )
    for index, where in slide.elements():
        parts = dy.reshape(-1, *sizes[-2:])
        gradient[index] = np.einsum("nc,ncm->cm", slide.padded(x)[where].reshape(len(parts), -1), parts)
    return gradient


def depthwise_input(sizes, w, dy, *, data_format, **attributes):
    dy, shape = last(dy, data_format), last(np.empty(sizes), data_format).shape
    slide = Sliding(shape, w.shape[:-2], attributes | {"data_format": data_format})
    dx = slide.padded(np.zeros(shape))
    for index, where in slide.elements():
        dx[where] += np.einsum("...cm,cm->...c", dy.reshape(*dy.shape[:-1], *w.shape[-2:]), w[index])
    return first(slide.cropped(dx), data_format)


def max_pool(x, y, dy, *, data_format, ksize, **attributes):
    x, y, dy = (last(array, data_format) for array in (x, y, dy))
    slide = Sliding(x.shape, tuple(spatial(ksize, data_format)), attributes | {"data_format": data_format})
    padded, dx, left = slide.padded(x, -np.inf), slide.padded(np.zeros(x.shape)), np.ones(dy.shape, bool)
    for _, where in slide.elements():
        hit = left & (padded[where] == y)
        dx[where] += dy * hit
        left &= ~hit
    return first(slide.cropped(dx), data_format)


def average_pool(sizes, dy, *, data_format, ksize, **attributes):
    dy, shape = last(dy, data_format), last(np.empty(sizes), data_format).shape
    slide = Sliding(shape, tuple(spatial(ksize, data_format)), attributes | {"data_format": data_format})
    inside, count = slide.padded(np.ones(shape)), np.zeros(dy.shape)
    for _, where in slide.elements():
        count += inside[where]
    dx = slide.padded(np.zeros(shape))
    for _, where in slide.elements():
        dx[where] += dy / count
    return first(slide.cropped(dx), data_format)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(x, labels):
    return -(labels * np.log(softmax(x))).sum(-1), softmax(x) - labels


def sparse_cross_entropy(x, labels):
    return cross_entropy(x, np.eye(x.shape[1])[labels])


SCALE, SCALE_ALPHA = 1.0507009873554805, 1.7580993408473768
ELEMENTWISE = {
    "ReluGrad": lambda g, f: np.where(f > 0, g, 0),
    "Relu6Grad": lambda g, f: np.where((f > 0) & (f < 6), g, 0),
    "LeakyReluGrad": lambda g, f, alpha=0.2: np.where(f > 0, g, alpha * g),
    "EluGrad": lambda g, y: np.where(y < 0, g * (y + 1), g),
    "SeluGrad": lambda g, y: np.where(y < 0, g * (y + SCALE_ALPHA), g * SCALE),
    "SoftplusGrad": lambda g, f: g / (1 + np.exp(-f)),
    "SoftsignGrad": lambda g, f: g / (1 + np.abs(f)) ** 2,
    "SigmoidGrad": lambda y, g: g * y * (1 - y),
    "TanhGrad": lambda y, g: g * (1 - y**2),
    "SqrtGrad": lambda y, g: g / (2 * y),
    "RsqrtGrad": lambda y, g: -g * y**3 / 2,
    "InvGrad": lambda y, g: -g * y**2,
    "ReciprocalGrad": lambda y, g: -g * y**2,
}
POOLS = [
    *itertools.product(
        ["NHWC", "NCHW"], ["SAME", "VALID"], [((2, 2), (2, 2)), ((3, 2), (1, 2)), ((2, 3), (3, 4))]
    ),
    *itertools.product(["NDHWC", "NCDHW"], ["SAME", "VALID"], [((2, 2, 2), (2, 1, 2))]),
]
CONVOLUTIONS = [
    *itertools.product(["NHWC", "NCHW"], ["SAME", "VALID", "EXPLICIT"], [((1, 1), (1, 1)), ((2, 1), (1, 1))], [1]),
    ("NHWC", "SAME", ((1, 1), (2, 2)), 1),
    ("NCHW", "EXPLICIT", ((1, 1), (1, 2)), 1),
    ("NHWC", "SAME", ((2, 2), (1, 1)), 2),
    ("NHWC", "VALID", ((3, 4), (1, 1)), 1),
]


def shape_in(data_format, channels, sizes=(4, 5, 3)):
    sizes = sizes[: len(data_format) - 2]
    return (2, *sizes, channels) if data_format.endswith("C") else (2, channels, *sizes)


def listed(data_format, numbers, other=1):
    return [other, *numbers, other] if data_format.endswith("C") else [other, other, *numbers]


def draw(rng, shape, low=None):
    return (rng.standard_normal(shape) if low is None else rng.uniform(low, 2, shape)).astype(np.float32)


def out_shape(x, kernel, attributes, channels):
    data_format = attributes["data_format"]
    slide = Sliding(last(np.empty(x), data_format).shape, kernel, attributes)
    return shape_in(data_format, channels, tuple(slide.out))


def convolution_cases():
    for data_format, padding, (strides, dilations), group in CONVOLUTIONS:
        attributes = {
            "data_format": data_format,
            "padding": padding,
            "strides": listed(data_format, strides),
            "dilations": listed(data_format, dilations),
        }
        if padding == "EXPLICIT":
            attributes["explicit_paddings"] = [
                int(n) for pair in listed(data_format, [(1, 0), (2, 1)], (0, 0)) for n in pair
            ]
        name = f"{data_format}-{padding}-{strides}-{dilations}-{group}".replace(" ", "")
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        x, filters = draw(rng, shape_in(data_format, 4)), draw(rng, (3, 2, 4 // group, 6))
        dy = draw(rng, out_shape(x.shape, (3, 2), attributes, 6))
        sizes = np.array(x.shape, np.int32), np.array(filters.shape, np.int32)
        inputs = {"input": x, "filter_sizes": sizes[1], "out_backprop": dy}
        yield Case(
            f"Conv2DBackpropFilter-{name}",
            "Conv2DBackpropFilter",
            inputs,
            attributes,
            backprop_filter,
            ("filter_sizes",),
        )
        inputs = {"input_sizes": sizes[0], "filter": filters, "out_backprop": dy}
        yield Case(
            f"Conv2DBackpropInput-{name}",
            "Conv2DBackpropInput",
            inputs,
            attributes,
            backprop_input,
            ("input_sizes",),
        )
        # TensorFlow's has one stride, and ignores dilations.
        if group == 1 and strides[0] == strides[1] and dilations == (1, 1):
            depthwise, dy = draw(rng, (3, 2, 4, 2)), draw(rng, out_shape(x.shape, (3, 2), attributes, 8))
            of_filter = {"input": x, "filter_sizes": np.array(depthwise.shape, np.int32), "out_backprop": dy}
            op_type = "DepthwiseConv2dNativeBackpropFilter"
            yield Case(f"{op_type}-{name}", op_type, of_filter, attributes, depthwise_filter, ("filter_sizes",))
            inputs = {"input_sizes": sizes[0], "filter": depthwise, "out_backprop": dy}
            op_type = "DepthwiseConv2dNativeBackpropInput"
            yield Case(f"{op_type}-{name}", op_type, inputs, attributes, depthwise_input, ("input_sizes",))
    for data_format, padding in itertools.product(["NDHWC", "NCDHW"], ["SAME", "VALID"]):
        attributes = {"data_format": data_format, "padding": padding, "strides": listed(data_format, (1, 2, 1))}
        rng = np.random.default_rng(5)
        x, filters = draw(rng, shape_in(data_format, 2)), draw(rng, (2, 3, 2, 2, 3))
        dy = draw(rng, out_shape(x.shape, (2, 3, 2), attributes, 3))
        inputs = {"input": x, "filter_sizes": np.array(filters.shape, np.int32), "out_backprop": dy}
        name = f"{data_format}-{padding}"
        yield Case(
            f"Conv3DBackpropFilterV2-{name}",
            "Conv3DBackpropFilterV2",
            inputs,
            attributes,
            backprop_filter,
            ("filter_sizes",),
        )
        inputs = {"input_sizes": np.array(x.shape, np.int32), "filter": filters, "out_backprop": dy}
        yield Case(
            f"Conv3DBackpropInputV2-{name}",
            "Conv3DBackpropInputV2",
            inputs,
            attributes,
            backprop_input,
            ("input_sizes",),
        )


def pool_cases():
    for data_format, padding, (kernel, strides) in POOLS:
        attributes = {
            "data_format": data_format,
            "padding": padding,
            "ksize": listed(data_format, kernel),
            "strides": listed(data_format, strides),
        }
        name = f"{data_format}-{padding}-{kernel}-{strides}".replace(" ", "")
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        # Few values, so that maxima are equal; with three dimensions TensorFlow's kernels differ then.
        shape = shape_in(data_format, 3)
        x = draw(rng, shape) if len(kernel) == 3 else rng.integers(-3, 3, shape).astype(np.float32)
        dy = draw(rng, out_shape(x.shape, kernel, attributes, 3))
        slide = Sliding(last(x, data_format).shape, kernel, attributes)
        y = np.full(last(dy, data_format).shape, -np.inf, np.float32)
        for _, where in slide.elements():
            y = np.maximum(y, slide.padded(last(x, data_format), -np.inf)[where])
        suffix = "3DGrad" if len(kernel) == 3 else "Grad"
        inputs = {"orig_input": x, "orig_output": np.ascontiguousarray(first(y, data_format)), "grad": dy}
        yield Case(f"MaxPool{suffix}-{name}", f"MaxPool{suffix}", inputs, attributes, max_pool)
        inputs = {"orig_input_shape": np.array(x.shape, np.int32), "grad": dy}
        yield Case(
            f"AvgPool{suffix}-{name}", f"AvgPool{suffix}", inputs, attributes, average_pool, ("orig_input_shape",)
        )


def other_cases():
    rng = np.random.default_rng(3)
    for op_type, formula in ELEMENTWISE.items():
        of_output = op_type in ("SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad")
        low = 0.2 if op_type in ("SqrtGrad", "RsqrtGrad", "InvGrad", "ReciprocalGrad") else None
        factor = 4 if op_type == "Relu6Grad" else 1
        first_one, second = draw(rng, (3, 7), low) * np.float32(factor), draw(rng, (3, 7)) * np.float32(factor)
        operand = "outputs" if op_type in ("EluGrad", "SeluGrad") else "features"
        names = ("y", "dy") if of_output else ("gradients", operand)
        yield Case(op_type, op_type, dict(zip(names, (first_one, second), strict=True)), {}, formula)
    inputs = {"gradients": draw(rng, (3, 7)), "features": draw(rng, (3, 7))}
    yield Case("LeakyReluGrad-alpha", "LeakyReluGrad", inputs, {"alpha": 0.3}, ELEMENTWISE["LeakyReluGrad"])
    for data_format, shape in itertools.product(["NHWC", "NCHW"], [(2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 4)]):
        channel = len(shape) - 1 if data_format == "NHWC" else 1

        def bias(dy, data_format, channel=channel):  # noqa: ARG001
            return dy.sum(tuple(axis for axis in range(dy.ndim) if axis != channel))

        inputs = {"out_backprop": draw(rng, shape)}
        yield Case(
            f"BiasAddGrad-{data_format}-{len(shape)}", "BiasAddGrad", inputs, {"data_format": data_format}, bias
        )
    features = draw(rng, (4, 5)) * np.float32(3)
    labels = softmax(draw(rng, (4, 5))) * np.float32(1.5)
    op_type = "SoftmaxCrossEntropyWithLogits"
    yield Case(op_type, op_type, {"features": features, "labels": labels}, {}, cross_entropy, outputs=2)
    for dtype in (np.int32, np.int64):
        inputs = {"features": features, "labels": np.array([0, 4, 2, 2], dtype)}
        name = f"Sparse{op_type}-{np.dtype(dtype)}"
        yield Case(name, f"Sparse{op_type}", inputs, {}, sparse_cross_entropy, outputs=2)


CASES = {case.name: case for case in (*convolution_cases(), *pool_cases(), *other_cases())}
