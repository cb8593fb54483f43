"""TensorFlow's fused batch norm in float64 and in TensorFlow's terms, and models with its nodes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from dialects import node_model, rewritten, run, worst_error
from ort_values import DTYPES, TOLERANCES

DOMAIN = "ai.onnx.converters.tensorflow"
FORMATS = ("NHWC", "NCHW", "NDHWC", "NCDHW")
MODES = {"training": 1, "frozen": 0}
GRADIENTS = {"FusedBatchNormGrad": 5, "FusedBatchNormGradV2": 5, "FusedBatchNormGradV3": 6}
FORWARDS = {"FusedBatchNorm": 5, "FusedBatchNormV2": 5, "FusedBatchNormV3": 6}
GRADIENT_OUTPUTS = ("x_backprop", "scale_backprop", "offset_backprop", "reserve_space_4", "reserve_space_5")
FORWARD_OUTPUTS = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3")
TINY = 1e-3


def shape_of(data_format, rank=None, channels=3, batch=2, extents=(4, 5, 3)):
    """A shape of a format; of another rank than that of its name, if requested."""
    spatial = extents[: (rank or len(data_format)) - 2]
    return (batch, *spatial, channels) if data_format.endswith("C") else (batch, channels, *spatial)


def axes_of_format(data_format, rank):
    channel = rank - 1 if data_format.endswith("C") else 1
    return tuple(d for d in range(rank) if d != channel)


def gradient(y_backprop, x, scale, mean, variance, *, epsilon, is_training, data_format):
    """x_backprop, scale_backprop and offset_backprop of the statistics that are given."""
    axes = axes_of_format(data_format, np.ndim(x))
    dy, xs = (np.asarray(a, np.float64) for a in (y_backprop, x))
    s, m, v = (np.expand_dims(np.asarray(a, np.float64), axes) for a in (scale, mean, variance))
    with np.errstate(all="ignore"):
        inv, xc = 1 / np.sqrt(v + epsilon), xs - m
        count = np.float64(np.prod([xs.shape[d] for d in axes]))
        mean_dy = dy.sum(axis=axes, keepdims=True) / count
        mean_dy_xc = (dy * xc).sum(axis=axes, keepdims=True) / count
        dx = s * inv * (dy - mean_dy - xc * inv**2 * mean_dy_xc) if is_training else s * inv * dy
        dscale = (inv * (dy * xc).sum(axis=axes, keepdims=True)).squeeze(axes)
    return dict(zip(GRADIENT_OUTPUTS, (dx, dscale, dy.sum(axis=axes)), strict=False))


def forward(x, scale, offset, mean, variance, *, epsilon, is_training, data_format, exponential_avg_factor=1.0):
    """The five outputs that are not cuDNN's."""
    axes = axes_of_format(data_format, np.ndim(x))
    xs, s, o = (np.asarray(a, np.float64) for a in (x, scale, offset))
    old_mean, old_variance = (np.asarray(a, np.float64) for a in (mean, variance))
    count = np.prod([xs.shape[d] for d in axes])
    with np.errstate(all="ignore"):
        used_mean = xs.sum(axis=axes) / np.float64(count) if is_training else old_mean
        centered = xs - np.expand_dims(used_mean, axes)
        used_variance = (centered**2).sum(axis=axes) / np.float64(count) if is_training else old_variance
        y = centered / np.sqrt(np.expand_dims(used_variance, axes) + epsilon) * np.expand_dims(s, axes)
        y = y + np.expand_dims(o, axes)
        batch_mean, batch_variance = old_mean, old_variance
        if is_training:
            batch_mean, batch_variance = used_mean, used_variance * count / max(count - 1, 1)
            a = exponential_avg_factor
            if a != 1:
                batch_mean = (1 - a) * old_mean + a * batch_mean
                batch_variance = (1 - a) * old_variance + a * batch_variance
    return dict(zip(FORWARD_OUTPUTS, (y, batch_mean, batch_variance, used_mean, used_variance), strict=False))


def gradient_inputs(rng, shape, data_format, dtype="float", *, offset=0.0, op_type="FusedBatchNormGradV3"):
    """Arrays for a gradient, of statistics that are near those of x and not them."""
    channels = shape[-1] if data_format.endswith("C") else shape[1]
    x = (rng.standard_normal(shape) + offset).astype(DTYPES[dtype])
    arrays = {
        "y_backprop": rng.standard_normal(shape).astype(DTYPES[dtype]),
        "x": x,
        "scale": rng.uniform(0.5, 1.5, channels).astype(np.float32),
        "reserve_space_1": (rng.uniform(-0.3, 0.3, channels) + offset).astype(np.float32),
        "reserve_space_2": rng.uniform(0.5, 1.5, channels).astype(np.float32),
        "reserve_space_3": np.float32(np.nan),
    }
    return dict(list(arrays.items())[: GRADIENTS[op_type]])


def forward_inputs(rng, shape, data_format, dtype="float", *, offset=0.0):
    channels = shape[-1] if data_format.endswith("C") else shape[1]
    return {
        "x": (rng.standard_normal(shape) + offset).astype(DTYPES[dtype]),
        "scale": rng.uniform(0.5, 1.5, channels).astype(np.float32),
        "offset": rng.standard_normal(channels).astype(np.float32),
        "mean": (rng.uniform(-0.3, 0.3, channels) + offset).astype(np.float32),
        "variance": rng.uniform(0.5, 1.5, channels).astype(np.float32),
    }


def converted(op_type, inputs, outputs=None, *, domain=DOMAIN, **attributes):
    """A node as tf2onnx leaves it, as a model, rewritten."""
    outputs = outputs or (GRADIENT_OUTPUTS[:3] if op_type in GRADIENTS else FORWARD_OUTPUTS[: FORWARDS[op_type]])
    return rewritten(node_model(op_type, inputs, outputs, domain=domain, **attributes), ImportTensorflowPass())


def check_gradient(
    inputs,
    *,
    op_type="FusedBatchNormGradV3",
    domain=DOMAIN,
    implementation="function",
    tolerance=None,
    **attributes,
):
    """Runs a rewritten gradient and compares it with the formulas."""
    got = run(converted(op_type, inputs, domain=domain, **attributes), inputs, implementation)
    want = gradient(*list(inputs.values())[:5], **attributes_with_defaults(attributes))
    compare(got, want, inputs["x"].dtype, tolerance)
    return got, want


def compare(got, want, dtype, tolerance=None):
    """Each result against the bound of its own type; those of 16-bit data that are float are float's."""
    names = {np.dtype(value): name for name, value in DTYPES.items()}
    for name, value in want.items():
        if name not in got:
            continue
        bound = tolerance or TOLERANCES[names[got[name].dtype]]
        assert worst_error(got[name], value) <= bound, name
    assert got[next(iter(want))].dtype == dtype


def attributes_with_defaults(attributes, **more):
    return {"epsilon": 1e-4, "is_training": 1, "data_format": "NHWC"} | more | attributes


def parsed(text, *domains):
    """A model from its text, which imports the domain `tf`."""
    imports = ", ".join(f'"{domain}" : 1' for domain in ("tf", *domains))
    header = "" if text.lstrip().startswith("<") else f'<ir_version: 8, opset_import: ["" : 17, {imports}]>\n'
    return ir.from_proto(onnx.parser.parse_model(header + text))
