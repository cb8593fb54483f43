"""Single-op models: for each op of `bngrad.validation.training_ops` the inputs and attributes it is tried with."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper

from bngrad.validation.training_ops import FUNCTIONS

DOMAIN = {op_type: domain for domain, op_type in FUNCTIONS if domain != "bngrad"}
"""The domain of an op, none of ``bngrad``'s; com.microsoft for Gelu, which is in both."""


def values(*shape, seed=0):
    """Float32 arrays without ties, zeros or large numbers; another one for each shape and seed."""
    rng = np.random.default_rng([seed, zlib.crc32(repr(shape).encode())])
    return np.asarray(rng.standard_normal(shape), np.float32)


def positive(*shape, seed=0):
    return np.asarray(np.abs(values(*shape, seed=seed)) + np.float32(0.5))


def ints(*items):
    return np.array(items, np.int64)


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


@dataclass(frozen=True)
class Case:
    op: str
    what: str
    inputs: tuple[np.ndarray | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: str = "a"
    """A letter for each output; - for one that is left out."""
    extents: tuple[int, ...] | None = None
    """Static shape of the first output, for the ops whose kernels need it."""
    opset: int = 17

    def __str__(self):
        return self.id

    @property
    def id(self):
        return f"{self.op}-{self.what}"

    @property
    def feeds(self):
        return {f"x{i}": array for i, array in enumerate(self.inputs) if array is not None}

    def model(self):
        inputs = ["" if array is None else f"x{i}" for i, array in enumerate(self.inputs)]
        outputs = ["" if letter == "-" else letter for letter in self.outputs]
        node = helper.make_node(self.op, inputs, outputs, name="node", domain=DOMAIN[self.op], **self.attributes)
        float_type = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            [node],
            "case",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in self.feeds.items()
            ],
            [self._output(name, i, float_type) for i, name in enumerate(outputs) if name],
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def _output(self, name, index, float_type):
        integer = (self.op, index) in {("ConcatTraining", 1), ("MaxPool", 1)} or self.op == "BroadcastGradientArgs"
        shape = self.extents if index == 0 else None
        return helper.make_tensor_value_info(name, onnx.TensorProto.INT64 if integer else float_type, shape)


# Geometry of a window: (id, spatial extent, kernel, attributes, number of windows)
GEOMETRIES = [
    ("1d", (9,), (3,), {"strides": [2], "pads": [1, 0]}, (4,)),
    ("same-size", (6, 7), (3, 3), {"pads": [1, 1, 1, 1]}, (6, 7)),
    ("strided", (7, 8), (3, 2), {"strides": [2, 3], "pads": [1, 0, 0, 1]}, (3, 3)),
    ("valid", (7, 8), (3, 2), {"auto_pad": "VALID", "strides": [2, 2]}, (3, 4)),
    ("same-upper", (7, 8), (4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (4, 4)),
    ("same-lower", (7, 8), (4, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (4, 4)),
    ("3d", (4, 5, 3), (2, 3, 2), {"strides": [1, 2, 1], "pads": [0, 1, 1, 1, 0, 0]}, (4, 2, 3)),
]
DILATED = ("dilated", (9, 8), (3, 2), {"dilations": [2, 3], "pads": [1, 0, 2, 1]}, (8, 6))
CEIL = [
    ("ceil", (6, 7), (3, 2), {"strides": [2, 2], "ceil_mode": 1}, (3, 4)),
    ("ceil-pads", (6, 7), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1}, (4, 4)),
]


def _convolutions():
    for what, extent, kernel, geometry, out in [*GEOMETRIES, DILATED]:
        x, w = values(2, 3, *extent), values(4, 3, *kernel)
        attributes = {"kernel_shape": kernel, **geometry}
        yield Case("Conv", what, (x, w, values(4)), attributes)
        yield Case("ConvGrad", what, (values(2, 4, *out), x, w), attributes, "abc")
    for what, w, attributes in [
        ("strided", values(4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 0, 1, 1], "output_padding": [1, 0]}),
        ("groups", values(4, 2, 3, 3), {"group": 2}),
        ("dilated", values(4, 3, 2, 2), {"dilations": [2, 3]}),
        ("1-D", values(4, 3, 3), {"strides": [2]}),
    ]:
        x, bias = values(2, 4, *[5] * (w.ndim - 2)), values(w.shape[1] * attributes.get("group", 1))
        yield Case("ConvTranspose", what, (x, w, bias), {"kernel_shape": w.shape[2:], **attributes})
    x, dy = values(2, 4, 5, 5), values(2, 8, 5, 5)
    for what, w, attributes in [
        ("groups", values(8, 2, 3, 3), {"group": 2, "pads": [1] * 4}),
        ("depthwise", values(8, 1, 3, 3), {"group": 4, "pads": [1] * 4}),
        ("pointwise", values(8, 4, 1, 1), {}),
    ]:
        yield Case("Conv", what, (x, w), attributes)
        yield Case("ConvGrad", what, (dy, x, w), {"kernel_shape": w.shape[2:], **attributes}, "abc")
        yield Case(
            "ConvGrad", f"{what}-weight-only", (dy, x, w), {"kernel_shape": w.shape[2:], **attributes}, "-b"
        )


def _pools():
    for what, extent, kernel, geometry, out in [*GEOMETRIES, DILATED, *CEIL]:
        x, dy = values(2, 3, *extent), values(2, 3, *out)
        attributes = {"kernel_shape": kernel, **geometry}
        yield Case("MaxPool", what, (x,), attributes, "ab")
        yield Case("LpPool", what, (x,), {**attributes, "p": 3}, opset=18)
        if what != "dilated":
            yield Case("AveragePool", what, (x,), attributes)
            yield Case("AveragePoolGrad", what, (dy,), attributes, extents=x.shape)
        if attributes.get("pads"):
            included = {**attributes, "count_include_pad": 1}
            if what != "dilated":
                yield Case("AveragePool", f"{what}-include-pad", (x,), included)
                yield Case("AveragePoolGrad", f"{what}-include-pad", (dy,), included, extents=x.shape)
        indices = FUNCTIONS["", "MaxPool"](x, **attributes)[1]
        yield Case("MaxPoolGrad", what, (dy, indices), attributes, extents=x.shape)
    yield Case(
        "MaxPool", "column-major", (values(2, 3, 4, 5),), {"kernel_shape": [2, 2], "storage_order": 1}, "ab"
    )
    for shape in [(2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 3, 2)]:
        yield Case("GlobalMaxPool", f"rank-{len(shape)}", (values(*shape),))
        yield Case("GlobalLpPool", f"rank-{len(shape)}", (values(*shape),))
    yield Case("GlobalLpPool", "p-1", (values(2, 3, 4, 5),), {"p": 1})
    rois = np.array([[1.25, 0.6, -0.9, 2.6, 8], [0.5, 3, 1, 1, 2.25], [0.5, 6, 0.1, 8, 3]], np.float32)
    for scale in (1.0, 0.75):
        attributes = {"pooled_shape": [3, 2], "spatial_scale": scale}
        yield Case("MaxRoiPool", f"scale-{scale}", (values(2, 3, 4, 5), rois), attributes)
    yield Case("LpPool", "defaults", (values(2, 3, 4, 5),), {"kernel_shape": [2, 3]}, opset=18)
    ties = np.zeros([1, 1, 4, 4], np.float32)
    yield Case("MaxPool", "ties", (ties,), {"kernel_shape": [3, 3], "pads": [1] * 4}, "ab")


def _batch_norms():
    for what, shape in [
        ("rank-2", (6, 3)),
        ("rank-3", (4, 3, 5)),
        ("nchw", (2, 3, 4, 5)),
        ("one-image", (1, 3, 4, 4)),
    ]:
        x, (scale, bias, mean) = values(*shape), (values(3, seed=seed) for seed in range(3))
        var = positive(3)
        yield Case("BatchNormalization", f"frozen-{what}", (x, scale, bias, mean, var), {"epsilon": 1e-3})
        training = {"epsilon": 1e-3, "momentum": 0.3, "training_mode": 1}
        yield Case("BatchNormalization", f"training-{what}", (x, scale, bias, mean, var), training, "abc")
        yield Case("BatchNormInternal", what, (x, scale, bias, mean, var), training, "abcde")
        inputs = (values(*shape, seed=1), x, scale, mean, positive(3, seed=1))
        yield Case("BatchNormalizationGrad", what, inputs, {"epsilon": 1e-3}, "abc")

    for what, shape in [("rank-2", (3, 4)), ("rank-3", (2, 4, 3)), ("nchw", (2, 4, 2, 3))]:
        x, scale, bias = values(*shape), values(4), values(4, seed=1)
        for groups in (1, 2, 4):
            attributes = {"num_groups": groups, "epsilon": 1e-3}
            yield Case("GroupNormalization", f"{what}-{groups}", (x, scale, bias), attributes, opset=21)
    for axis in (-1, 1):
        for p in (1, 2):
            yield Case("LpNormalization", f"axis{axis}-p{p}", (values(2, 3, 4),), {"axis": axis, "p": p})
    yield Case("LpNormalization", "zeros", (np.zeros([2, 3], np.float32),))
    for size in (1, 3, 5, 9):
        yield Case("LRN", f"size{size}", (values(2, 5, 3, 2),), {"size": size, "alpha": 0.5, "bias": 2.0})
    yield Case("MeanVarianceNormalization", "defaults", (values(2, 4, 3, 2),))
    yield Case("MeanVarianceNormalization", "axes", (values(2, 4, 3),), {"axes": [0, -1]})
    yield Case("LRN", "defaults", (values(2, 5, 3, 2),), {"size": 3})


def _losses():
    for what, shape in [("vectors", (5, 4)), ("images", (2, 4, 3, 2))]:
        x, weights = values(*shape), positive(4)
        labels = np.arange(np.prod(shape) // 4, dtype=np.int64).reshape(shape[0], *shape[2:]) % 4
        log_prob = log_softmax(x)
        for reduction in ("mean", "sum", "none"):
            dy = values(*labels.shape if reduction == "none" else ())
            for extra, inputs, options in [
                ("", (labels,), {}),
                ("-weights", (labels, weights), {}),
                ("-ignore", (labels,), {"ignore_index": 1}),
                ("-weights-ignore", (labels, weights), {"ignore_index": 1}),
            ]:
                name = f"{what}-{reduction}{extra}"
                attributes = {"reduction": reduction, **options}
                yield Case("SoftmaxCrossEntropyLoss", name, (x, *inputs), attributes, "ab")
                yield Case("SoftmaxCrossEntropyLossGrad", name, (dy, log_prob, *inputs), attributes)
                yield Case("NegativeLogLikelihoodLoss", name, (x, *inputs), attributes)
    x, padded = values(3, 4), {"ignore_index": -1}
    labels = ints(2, -1, 0)
    yield Case("SoftmaxCrossEntropyLoss", "padding", (x, labels), padded, "ab")
    yield Case("NegativeLogLikelihoodLoss", "padding", (x, labels), padded)
    # The loss of padding alone is 0 / 0.
    for what, labels in [("padding", ints(2, -1, 0)), ("padding-alone", ints(-1, -1, -1))]:
        yield Case("SoftmaxCrossEntropyLossGrad", what, (values(), log_softmax(x), labels), padded)
    for axis in (-1, 1, 0):
        dy, y = values(3, 4, 5), log_softmax(values(3, 4, 5, seed=1))
        yield Case("SoftmaxGrad_13", f"axis{axis}", (dy, np.exp(y)), {"axis": axis})
        yield Case("LogSoftmaxGrad_13", f"axis{axis}", (dy, y), {"axis": axis})


def _activations():
    dy, x = values(3, 4), values(3, 4, seed=1)
    for op in ("ReluGrad", "SigmoidGrad", "TanhGrad", "GeluGrad", "FastGeluGrad"):
        yield Case(op, "plain", (dy, x))
    yield Case("LeakyReluGrad", "default", (dy, x))
    yield Case("LeakyReluGrad", "alpha", (dy, x), {"alpha": 0.3})
    yield Case("QuickGeluGrad", "default", (dy, x))
    yield Case("QuickGeluGrad", "alpha", (dy, x), {"alpha": 0.7})
    yield Case("BiasGeluGrad_dX", "plain", (dy, x, values(4)))
    yield Case("BiasFastGeluGrad_dX", "plain", (dy, x, values(4)))
    yield Case("Erf", "plain", (x,))
    yield Case("Gelu", "plain", (x,))
    yield Case("BiasGelu", "plain", (x, values(4)))
    yield Case("FastGelu", "plain", (x,))
    yield Case("FastGelu", "bias", (x, values(4)))
    yield Case("QuickGelu", "alpha", (x,), {"alpha": 0.7})
    mask, ratio = x > 0, np.array(0.3, np.float32)
    yield Case("DropoutGrad", "no-mode", (dy, mask))
    yield Case("DropoutGrad", "default-ratio", (dy, mask, None, np.array(True)))
    yield Case("DropoutGrad", "ratio", (dy, mask, ratio, np.array(True)))
    yield Case("DropoutGrad", "inference", (dy, mask, ratio, np.array(False)))
    yield Case("DropoutGrad", "ratio-0", (dy, np.ones_like(mask), np.zeros([], np.float32), np.array(True)))


def _arithmetic():
    for what, a, b in [
        ("same", (3, 4), (3, 4)),
        ("vector", (3, 4), (4,)),
        ("both-repeat", (3, 1, 4), (2, 1)),
        ("scalar", (3, 4), ()),
    ]:
        dy = values(*np.broadcast_shapes(a, b), seed=1)
        for outputs in ("ab", "a", "-b"):
            yield Case("DivGrad", f"{what}-{outputs}", (dy, values(*a), positive(*b)), {}, outputs)
        yield Case("BroadcastGradientArgs", what, (ints(*a), ints(*b)), {}, "ab")
    yield Case("BroadcastGradientArgs", "ones", (ints(1, 1, 4), ints(2, 1, 1)), {}, "ab")
    yield Case("Mean", "broadcast", (values(2, 1), values(3), values(4, 1, 1)))
    factor = np.array(4.0, np.float32)
    yield Case("Scale", "up", (values(3, 4), factor))
    yield Case("Scale", "down", (values(3, 4), factor), {"scale_down": 1})
    yield Case("Scale", "down-int64", (values(3, 4), np.array(4)), {"scale_down": 1})
    yield Case("FusedMatMul", "alpha", (values(3, 4), values(4, 5)), {"alpha": 0.5})
    yield Case("FusedMatMul", "trans", (values(2, 4, 3), values(2, 5, 4)), {"transA": 1, "transB": 1})
    yield Case("FusedMatMul", "broadcast", (values(2, 3, 4), values(5, 4)), {"transB": 1})
    yield Case(
        "FusedMatMul", "trans-batch", (values(3, 2, 4), values(4, 2, 5)), {"transBatchA": 1, "transBatchB": 1}
    )
    for axis, kept, scale in [(-1, (2, 3, 1), (4,)), (1, (2, 1, 1), (3, 4))]:
        x, dy = values(2, 3, 4), values(2, 3, 4, seed=1)
        mean, inv_std = values(*kept), positive(*kept)
        inputs = (dy, x, values(*scale), mean, inv_std)
        yield Case("LayerNormalizationGrad", f"axis{axis}", inputs, {"axis": axis}, "abc")
        simplified = (dy, x, values(*scale), inv_std)
        yield Case("SimplifiedLayerNormalizationGrad", f"axis{axis}", simplified, {"axis": axis}, "ab")


def _indexing():
    for mode in ("constant", "edge", "reflect"):
        yield Case("Pad", f"{mode}-both-ends", (values(3, 4), ints(0, 1, 2, 3)), {"mode": mode})
        yield Case("Pad", f"{mode}-taken-away", (values(3, 4), ints(-1, 1, 0, -2)), {"mode": mode})
    yield Case("Pad", "value", (values(3, 4), ints(1, 0, 0, 2), values()))
    yield Case("Pad", "axes", (values(3, 4), ints(2, 1), None, ints(-1)), opset=18)
    for axis in (0, 1, 3, -1):
        yield Case("Flatten", f"axis{axis}", (values(2, 3, 4),), {"axis": axis})
    yield Case("Flatten", "empty", (values(2, 0, 4),), {"axis": 2})
    parts = (values(2, 1, 3), values(2, 4, 3), values(2, 2, 3))
    for axis in (1, -2):
        yield Case("ConcatTraining", f"axis{axis}", parts, {"axis": axis}, "ab")
        yield Case("SplitTraining", f"axis{axis}", (values(2, 7, 3), ints(1, 4, 2)), {"axis": axis}, "abc")
    for what, out, arguments in [
        ("leading", (2, 5), (ints(1), ints(3))),
        ("axes", (4, 2), (ints(1), ints(3), ints(1))),
        ("negative", (4, 2), (ints(-3), ints(-1), ints(-1))),
        ("steps", (2, 3), (ints(0, 0), ints(9, 9), ints(0, 1), ints(2, 2))),
        ("backwards", (4, 3), (ints(-1), ints(-9), ints(1), ints(-2))),
    ]:
        yield Case("SliceGrad", what, (values(*out), ints(4, 5), *arguments))
    shape, repeated = ints(3, 4, 5), np.array([[0, 2], [2, -1]])
    for axis, dy in [(0, values(2, 2, 4, 5)), (1, values(3, 2, 2, 5)), (-1, values(3, 4, 2, 2))]:
        yield Case("GatherGrad", f"axis{axis}", (shape, repeated, dy), {"axis": axis})
    yield Case("GatherGrad", "scalar-index", (shape, np.array(1), values(3, 5)), {"axis": 1})
    for what, index in [("smaller", np.array([[2, -3]])), ("larger", np.array([[0] * 5, [1] * 5, [-1] * 5]))]:
        yield Case("GatherElements", what, (values(3, 5), index), {"axis": 0})
        yield Case("GatherElements", f"{what}-last", (values(3, 5), index), {"axis": -1})
    for axis in (0, -1):
        index = np.array([[0, 1], [1, 1], [0, -1]])
        yield Case("GatherElementsGrad", f"axis{axis}", (values(3, 2), ints(3, 2), index), {"axis": axis})
    yield Case("GatherNDGrad", "points", (shape, np.array([[0, 1, 2], [0, 1, 2], [2, 3, 4]]), values(3)))
    yield Case("GatherNDGrad", "rows", (shape, np.array([[0, 1], [0, 1]]), values(2, 5)))
    yield Case("GatherNDGrad", "batch", (shape, np.array([[1], [3], [1]]), values(3, 5)), {"batch_dims": 1})


def _resizes():
    x, roi = values(2, 2, 4, 3), np.array([0, 0, 0.1, 0, 1, 1, 0.8, 0.9], np.float32)
    scales = np.array([1.6, 2.4, 1.7, 0.9], np.float32)  # none of them at the edge of another extent
    for what, out, optional, attributes in [
        ("default", (3, 4, 6, 2), (None, scales), {}),
        ("shapes", (2, 2, 5, 7), (), {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("cubic", (3, 4, 6, 2), (None, scales), {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}),
        ("crop", (2, 2, 5, 7), (roi,), {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}),
        ("antialias", (2, 2, 2, 2), (), {"mode": "linear", "antialias": 1}),
        ("axes", (2, 2, 6, 2), (None, scales[:1:-1]), {"axes": [3, 2], "nearest_mode": "floor"}),
    ]:
        yield Case("ResizeGrad", what, (values(*out, seed=1), x, *optional), attributes)


def _samples():
    for align in (0, 1):
        attributes = {"align_corners": align}
        yield Case("AffineGrid", f"align{align}", (values(2, 2, 3), ints(2, 1, 3, 4)), attributes, opset=20)
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            attributes = {"mode": mode, "padding_mode": padding, "align_corners": int(padding == "border")}
            yield Case("GridSample", f"{mode}-{padding}", (values(2, 3, 4, 5), values(2, 3, 2, 2)), attributes)
    groups = {"group": 2, "offset_group": 2, "pads": [1, 0, 1, 0], "strides": [1, 1]}
    inputs = (values(2, 4, 3, 4), values(4, 2, 3, 1), values(2, 12, 3, 4), values(4), values(2, 6, 3, 4))
    yield Case("DeformConv", "groups", inputs, groups, opset=19)


def _recurrences():
    for direction, activations in [
        ("forward", ["Tanh"]),
        ("reverse", ["Relu"]),
        ("bidirectional", ["Sigmoid", "Tanh"]),
    ]:
        count, attributes = (
            len(activations),
            {"hidden_size": 3, "direction": direction, "activations": activations},
        )
        weights = values(count, 3, 2), values(count, 3, 3)
        yield Case("RNN", direction, (values(4, 2, 2), *weights), attributes, "ab")
        more = values(count, 6), None, values(count, 2, 3)
        yield Case("RNN", f"{direction}-all-inputs", (values(4, 2, 2), *weights, *more), attributes, "ab")
    lengths = np.array([2, 4], np.int32)
    numbers = {"activation_alpha": [0.5, 0.3, 0.7], "activation_beta": [0.1, 0.2]}
    for op, gates, activations, more in (
        ("LSTM", 4, ["Softsign", "HardSigmoid", "LeakyRelu", "Relu", "Affine", "Softplus"], {}),
        ("LSTM", 4, ["Sigmoid", "Elu", "Tanh", "ThresholdedRelu", "ScaledTanh", "Tanh"], {"input_forget": 1}),
        ("GRU", 3, ["HardSigmoid", "Tanh", "Sigmoid", "ScaledTanh"], {}),
        ("GRU", 3, ["Softsign", "Affine", "Sigmoid", "Elu"], {"linear_before_reset": 1}),
        ("RNN", 1, ["ScaledTanh", "HardSigmoid"], {}),
    ):
        firsts = [values(2, 2, 3, seed=seed) for seed in range(1 + (op == "LSTM"))]
        weights = values(2, 3 * gates, 2), values(2, 3 * gates, 3), values(2, 6 * gates), lengths
        inputs = (values(4, 2, 2), *weights, *firsts, *([values(2, 9)] if op == "LSTM" else []))
        attributes = {"hidden_size": 3, "direction": "bidirectional", "activations": activations, "clip": 0.8}
        what = "-".join(("all-inputs", *more)) if op != "RNN" else "lengths"
        yield Case(op, what, inputs, attributes | numbers | more, "abc" if op == "LSTM" else "ab")


def _quantized():
    rng = np.random.default_rng(3)
    q, zero = rng.integers(-128, 128, (3, 4, 5), np.int8), rng.integers(-9, 9, 4, np.int8)
    yield Case("DequantizeLinear", "one-scale", (q, positive()))
    yield Case("DequantizeLinear", "axis", (q, positive(4), zero), {"axis": -2})
    zeros = rng.integers(-9, 9, (3, 2, 5), np.int8)
    yield Case("DequantizeLinear", "blocks", (q, positive(3, 2, 5), zeros), {"block_size": 2}, opset=21)
    for what, columns, zero_points in (
        ("plain", 32, None),
        ("zero-points", 40, rng.integers(0, 256, (5 * 2,), np.uint8)),
        ("float-zero-points", 40, values(5 * 3)),
    ):
        blocks = -(-columns // 16)
        weight = rng.integers(0, 256, (5, blocks, 8), np.uint8)
        attributes = {"K": columns, "N": 5, "bits": 4, "block_size": 16}
        yield Case(
            "MatMulNBits", what, (values(2, 3, columns), weight, positive(5 * blocks), zero_points), attributes
        )


CASES = [
    *_convolutions(),
    *_pools(),
    *_batch_norms(),
    *_losses(),
    *_activations(),
    *_arithmetic(),
    *_indexing(),
    *_resizes(),
    *_samples(),
    *_recurrences(),
    *_quantized(),
]
