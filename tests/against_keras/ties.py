"""Writes tf2onnx's model of functions that bend, and TensorFlow's gradients, into the folder that is named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
import tf2onnx

LIMITS = [[-3.0, -1.0, 0.0, 1.0], [3.0, 6.0, 0.5, -0.5], [0.0, 0.25, -0.25, 2.0]]
TIES = [[2.0, 2.0, 2.0, 2.0], [0.5, 0.5, 0.5, 0.5], [1.0, 3.0, 3.0, 1.0]]
FUNCTIONS = {
    "relu": (LIMITS, keras.ops.relu),
    "relu6": (LIMITS, keras.ops.relu6),
    "ReLU(max_value=6)": (LIMITS, keras.layers.ReLU(max_value=6.0)),
    "ReLU(max_value=1)": (LIMITS, keras.layers.ReLU(max_value=1.0)),
    "ReLU(negative_slope, threshold)": (LIMITS, keras.layers.ReLU(negative_slope=0.1, threshold=1.0)),
    "hard_sigmoid": (LIMITS, keras.ops.hard_sigmoid),
    "hard_silu": (LIMITS, keras.ops.hard_silu),
    "hard_tanh": (LIMITS, keras.ops.hard_tanh),
    "clip": (LIMITS, lambda x: keras.ops.clip(x, 0.0, 1.0)),
    "clip from 0 to 6": (LIMITS, lambda x: keras.ops.clip(x, 0.0, 6.0)),
    "maximum": (LIMITS, lambda x: keras.ops.maximum(x, x[:, ::-1] * tf.sign(x))),
    "minimum": (LIMITS, lambda x: keras.ops.minimum(x, x[:, ::-1] * tf.sign(x))),
    "maximum of a number": (LIMITS, lambda x: keras.ops.maximum(0.0, x)),
    "max": (TIES, lambda x: keras.ops.max(x, axis=1)),
    "max of all": (TIES, keras.ops.max),
    "max_pool": (TIES, lambda x: tf.nn.max_pool2d(x[None, :, :, None], 2, 1, "VALID")),
    "abs": (LIMITS, keras.ops.abs),
    "sign": (LIMITS, lambda x: keras.ops.sign(x) * x),
    "leaky_relu": (LIMITS, keras.ops.leaky_relu),
    "elu": (LIMITS, keras.ops.elu),
    "elu with alpha": (LIMITS, lambda x: keras.ops.elu(x, 2.0)),
    "selu": (LIMITS, keras.ops.selu),
    "soft_shrink": (LIMITS, keras.ops.soft_shrink),
    "hard_shrink": (LIMITS, keras.ops.hard_shrink),
    "Hinge": (LIMITS, lambda x: keras.losses.Hinge(reduction=None)(tf.sign(x), x)),
    "Huber": (LIMITS, lambda x: keras.losses.Huber(reduction=None)(tf.zeros_like(x), x)),
    "MeanAbsoluteError": (LIMITS, lambda x: keras.losses.MeanAbsoluteError(reduction=None)(tf.zeros_like(x), x)),
    "prod": (LIMITS, lambda x: keras.ops.prod(x, axis=1)),
}
"""The point, and the function."""


def main(folder):
    """Writes the model, and for each function the point and TensorFlow's gradient."""

    def loss(*points):
        total = 0.0
        for x, (_, function) in zip(points, FUNCTIONS.values(), strict=True):
            y = function(x)
            total += tf.reduce_sum(y * tf.reshape(tf.range(1.0, tf.size(y, tf.int32) + 1), tf.shape(y)))
        return total

    values = [np.array(point, np.float32) for point, _ in FUNCTIONS.values()]
    variables = [tf.Variable(value) for value in values]
    with tf.GradientTape() as tape:
        total = loss(*variables)
    right = tape.gradient(total, variables)
    names = [f"x{i}" for i in range(len(values))]
    specs = [tf.TensorSpec([3, 4], tf.float32, name=name) for name in names]
    model, _ = tf2onnx.convert.from_function(tf.function(loss), input_signature=specs, opset=18)
    (folder / "ties.onnx").write_bytes(model.SerializeToString())
    rows = {
        name: [value.tolist(), gradient.numpy().tolist()]
        for name, value, gradient in zip(FUNCTIONS, values, right, strict=True)
    }
    (folder / "ties.json").write_text(json.dumps(rows), encoding="utf-8")


main(Path(sys.argv[1]))
