"""Gradients by onnx-ad of forward models that spell batch norm in primitives, and of a frozen batch norm.

    python tests/passes/decomposed/onnxad_graphs.py FOLDER [NAME ...]

writes NAME.onnx, as onnx-ad 0.3 made it but with one seed, and NAME.npz, the inputs and the gradients in float64.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ad
import own_graphs

FROZEN = """
    <ir_version: 8, opset_import: ["" : 18]>
    frozen (float[2,3,3,2] x, float[3] scale, float[3] bias, float[3] mean, float[3] variance, float[2,3,3,2] seed)
        => (float[2,3,3,2] z, float loss) {
        c = Tanh (x)
        y = BatchNormalization<epsilon=0.001> (c, scale, bias, mean, variance)
        z = Relu (y)
        weighted = Mul (z, seed)
        loss = ReduceSum<keepdims=0> (weighted)
    }
"""
NETWORKS = ["frozen", *(f"{form}_{rank}d" for form, rank in own_graphs.forms())]


def write(name, folder):
    """Writes onnxad_NAME.onnx and onnxad_NAME.npz."""
    if name == "frozen":
        forward, values = onnx.parser.parse_model(FROZEN), own_graphs.feeds(4)
        values |= {"mean": np.float32([0.1, -0.2, 0.3]), "variance": np.float32([0.5, 1, 2])}
        expected = _frozen(values)
    else:
        form, _, rank = name.removesuffix("d").rpartition("_")
        forward, values = own_graphs.forward(form, int(rank), relu=True), own_graphs.feeds(int(rank))
        expected = own_graphs.expected(values, relu=True)
    model = onnx_ad.reverse(forward, inputs=["x", "scale", "bias"], outputs=["loss"], layout="onnx")
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param:  # the number of seeds, the last axis of each gradient
                dimension.dim_value = 1
    values["adj_loss"] = np.ones(1, np.float32)
    for key in ("x", "scale", "bias"):
        expected[f"adj_{key}"] = expected.pop(f"{key}_grad")[..., None]
    onnx.save(model, folder / f"onnxad_{name}.onnx")
    np.savez_compressed(folder / f"onnxad_{name}.npz", **values, **expected)


def _frozen(values):
    x, scale, bias, mean, variance, seed = (values[name].astype(np.float64) for name in (
        "x", "scale", "bias", "mean", "variance", "seed"
    ))  # fmt: skip
    channel = (slice(None), None, None)
    inv_std = (1 / np.sqrt(variance + own_graphs.EPSILON))[channel]
    normalized = (np.tanh(x) - mean[channel]) * inv_std
    y = normalized * scale[channel] + bias[channel]
    dy = seed * (y > 0)
    return {
        "z": np.maximum(y, 0),
        "loss": (np.maximum(y, 0) * seed).sum(),
        "x_grad": dy * scale[channel] * inv_std * (1 - np.tanh(x) ** 2),
        "scale_grad": (dy * normalized).sum((0, 2, 3)),
        "bias_grad": dy.sum((0, 2, 3)),
    }


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for network in sys.argv[2:] or NETWORKS:
        write(network, target)
