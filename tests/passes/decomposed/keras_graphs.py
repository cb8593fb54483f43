"""Networks of Keras and TensorFlow that tf2onnx writes with batch norm in primitives.

    python tests/passes/decomposed/keras_graphs.py FOLDER [NAME ...]

writes NAME.onnx, as tf2onnx made it, and NAME.npz, the inputs and what TensorFlow computes of them, of each
network. *_forward is a model's call with training=True, with the loss and the moving statistics, of a symbolic
batch size; its .npz also has TensorFlow's gradients as "grad.WEIGHT". *_step is that and the gradients of a
GradientTape, with the gradient ops that tf2onnx does not convert kept in a domain. *_captured has its weights as
constants. In those that begin with not_ there is no batch norm.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import onnx
import tensorflow as tf
import tf2onnx
from keras import layers

DOMAIN = "ai.onnx.converters.tensorflow"
KEPT = (
    "AvgPoolGrad", "BiasAddGrad", "Conv2DBackpropFilter", "Conv2DBackpropInput", "Conv3DBackpropFilterV2",
    "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput",
    "EluGrad", "MaxPoolGrad", "Relu6Grad", "ReluGrad", "RsqrtGrad", "ShapeN", "SigmoidGrad", "SqrtGrad",
    "TanhGrad",
)  # fmt: skip
"""TensorFlow's gradient ops that tf2onnx does not convert."""
OPSET = 17
NETWORKS = {}
"""(function, function with gradients, weights, state, data, whether the batch size is symbolic) by name."""


def arrays(seed, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def add(name, loss, weights, state, data):
    """Adds the function loss(weights, state, data) -> (loss, new state), with a gradient and without."""

    def forward(weights, state, data):
        value, new = loss(weights, state, data)
        return {"loss": value} | {f"new.{key}": array for key, array in new.items()}

    def step(weights, state, data):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            value, new = loss(weights, state, data)
        grads = tape.gradient(value, weights)
        return (
            {"loss": value}
            | {f"grad.{key}": gradient for key, gradient in grads.items() if gradient is not None}
            | {f"new.{key}": array for key, array in new.items()}
        )

    NETWORKS[f"{name}_forward"] = forward, step, weights, state, data, True
    NETWORKS[f"{name}_step"] = step, step, weights, state, data, False


def mse(y, data):
    return tf.reduce_mean(tf.square(tf.cast(y, tf.float32) - data["t"]))


# tf.nn


def with_moments(x, scale, offset):
    mean, variance = tf.nn.moments(x, list(range(len(x.shape) - 1)))
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)


def fast(x, scale, offset):
    axes = list(range(len(x.shape) - 1))
    mean = tf.reduce_mean(x, axes, keepdims=True)
    variance = tf.reduce_mean(tf.square(x), axes, keepdims=True) - tf.square(mean)
    return (x - mean) / tf.sqrt(variance + 1e-3) * scale + offset


def sufficient(x, scale, offset):
    """By tf.nn.sufficient_statistics and tf.nn.normalize_moments."""
    statistics = tf.nn.sufficient_statistics(x, list(range(len(x.shape) - 1)))
    mean, variance = tf.nn.normalize_moments(*statistics[:3], None)
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)


def tf_small(norm):
    def loss(p, _, d):
        return mse(tf.nn.relu(norm(d["x"] @ p["w1"], p["g1"], p["b1"])) @ p["w3"], d), {}

    return loss


def tf_dense(norm):
    def loss(p, _, d):
        h = tf.nn.tanh(norm(d["x"] @ p["w1"], p["g1"], p["b1"]))
        h = tf.nn.relu(norm(h @ p["w2"], p["g2"], p["b2"]))
        return mse(h @ p["w3"], d), {}

    return loss


def tf_conv(norm):
    def loss(p, _, d):
        h = tf.nn.relu(norm(tf.nn.conv2d(d["x"], p["k1"], 1, "SAME"), p["g1"], p["b1"]))
        h = tf.nn.relu(norm(tf.nn.conv2d(h, p["k2"], 2, "SAME"), p["g2"], p["b2"]))
        return mse(tf.reduce_mean(h, [1, 2]) @ p["w"], d), {}

    return loss


DENSE = arrays(0, w1=(5, 4), g1=4, b1=4, w2=(4, 6), g2=6, b2=6, w3=(6, 3))
DENSE_DATA = arrays(1, x=(8, 5), t=(8, 3))
SMALL = {key: DENSE[key] for key in ("w1", "g1", "b1")} | arrays(1, w3=(4, 3))
CONV = arrays(2, k1=(3, 3, 2, 4), g1=4, b1=4, k2=(3, 3, 4, 5), g2=5, b2=5, w=(5, 3))
CONV_DATA = arrays(3, x=(4, 6, 6, 2), t=(4, 3))
for norm in (with_moments, fast, sufficient):
    add(f"tf_{norm.__name__}", tf_small(norm), SMALL, {}, DENSE_DATA)
    add(f"tf_dense_{norm.__name__}", tf_dense(norm), DENSE, {}, DENSE_DATA)
    add(f"tf_conv_{norm.__name__}", tf_conv(norm), CONV, {}, CONV_DATA)


# Keras


def add_keras(name, build, data, *, frozen=False, captured=False):
    """Adds a model by its stateless call: weights and moving statistics are inputs under their paths."""
    keras.utils.clear_session()  # names of layers are numbered
    keras.utils.set_random_seed(3)
    model = build(data["x"].shape[1:])
    trainable = {v.path.replace("/", "."): v for v in model.trainable_variables}
    others = {
        v.path.replace("/", "."): v for v in model.non_trainable_variables if keras.backend.is_float_dtype(v.dtype)
    }
    rng = np.random.default_rng(5)
    if not captured:
        for variable in trainable.values():
            if len(variable.shape) == 1:  # not the ones and zeros of a fresh model
                variable.assign(rng.normal(size=variable.shape))
    state_of = {v.path: v for v in model.non_trainable_variables}

    def loss(weights, state, data):
        rest = [state.get(path.replace("/", "."), v.value) for path, v in state_of.items()]
        y, new = model.stateless_call([weights[key] for key in trainable], rest, data["x"], training=True)
        changed = {p.replace("/", "."): v for p, v in zip(state_of, new, strict=True)}
        return mse(y, data), {key: value for key, value in changed.items() if key in others and not frozen}

    def constant(weights, state, data):
        del weights, state
        return {"y": model(data["x"], training=True)}

    weights = {key: v.numpy() for key, v in trainable.items()}
    state = {key: v.numpy() for key, v in others.items()}
    if captured:
        NETWORKS[f"{name}_captured"] = constant, constant, {}, {}, {"x": data["x"]}, True
        return
    add(name, loss, weights, state, data)


def functional(body):
    def build(shape):
        inputs = keras.Input(shape)
        return keras.Model(inputs, body(inputs))

    return build


def bn(x, **options):
    return layers.BatchNormalization(**options)(x)


@functional
def dense(x):
    x = layers.ReLU()(bn(layers.Dense(4)(x)))
    return layers.Dense(3)(layers.Activation("tanh")(bn(layers.Dense(6)(x))))


@functional
def conv2d(x):
    x = layers.ReLU()(bn(layers.Conv2D(4, 3, padding="same", use_bias=False)(x)))
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


@functional
def cnn(x):
    x = layers.ReLU()(bn(layers.Conv2D(4, 3, padding="same", use_bias=False)(x)))
    x = layers.ReLU()(bn(layers.Conv2D(5, 3, strides=2, padding="same", use_bias=False)(x)))
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


@functional
def conv1d(x):
    x = layers.ReLU()(bn(layers.Conv1D(4, 3, padding="same")(x)))
    return layers.Dense(3)(layers.GlobalAveragePooling1D()(x))


@functional
def conv3d(x):
    x = layers.ReLU()(bn(layers.Conv3D(4, 2, padding="same")(x)))
    return layers.Dense(3)(layers.GlobalAveragePooling3D()(x))


@functional
def axis_1(x):
    x = layers.ReLU()(bn(layers.Conv2D(4, 3, padding="same")(x), axis=1))
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


@functional
def mobilenet_block(x):
    h = layers.ReLU(6.0)(bn(layers.Conv2D(6, 1, use_bias=False)(x)))
    h = layers.ReLU(6.0)(bn(layers.DepthwiseConv2D(3, padding="same", use_bias=False)(h)))
    x = layers.Add()([x, bn(layers.Conv2D(2, 1, use_bias=False)(h))])
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


@functional
def resnet_block(x):
    x = layers.ReLU()(bn(layers.Conv2D(4, 3, padding="same", use_bias=False)(x)))
    h = layers.ReLU()(bn(layers.Conv2D(4, 3, padding="same", use_bias=False)(x)))
    h = bn(layers.Conv2D(4, 3, padding="same", use_bias=False)(h))
    x = layers.ReLU()(layers.Add()([x, h]))
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


@functional
def no_scale(x):
    x = layers.ReLU()(bn(layers.Dense(4)(x), scale=False))
    return layers.Dense(3)(bn(x, center=False))


@functional
def nothing(x):
    return layers.Dense(3)(bn(layers.Dense(4)(x), scale=False, center=False))


@functional
def frozen(x):
    layer = layers.BatchNormalization()
    layer.trainable = False
    return layers.Dense(3)(bn(layer(layers.Dense(4)(x))))


@functional
def mixed(x):
    x = layers.Dense(4, dtype="mixed_float16")(x)
    x = layers.ReLU(dtype="mixed_float16")(bn(x, dtype="mixed_float16"))
    return layers.Dense(3, dtype="float32")(x)


SEQUENCE_DATA = arrays(4, x=(4, 7, 5), t=(4, 3))
VOLUME_DATA = arrays(4, x=(3, 4, 3, 4, 2), t=(3, 3))
add_keras("keras_dense", dense, DENSE_DATA)
add_keras("keras_dense", dense, DENSE_DATA, captured=True)
add_keras("keras_conv2d", conv2d, CONV_DATA)
add_keras("keras_cnn", cnn, CONV_DATA)
add_keras("keras_cnn", cnn, CONV_DATA, captured=True)
add_keras("keras_conv1d", conv1d, SEQUENCE_DATA)
add_keras("keras_conv3d", conv3d, VOLUME_DATA)
add_keras("keras_axis_1", axis_1, CONV_DATA)
add_keras("keras_mobilenet_block", mobilenet_block, CONV_DATA)
add_keras("keras_resnet_block", resnet_block, CONV_DATA)
add_keras("keras_no_scale", no_scale, DENSE_DATA)
add_keras("keras_nothing", nothing, DENSE_DATA)
add_keras("keras_frozen", frozen, DENSE_DATA)
add_keras("keras_mixed", mixed, DENSE_DATA)


# No batch norms


@functional
def layer_norm(x):
    x = layers.ReLU()(layers.LayerNormalization()(layers.Dense(4)(x)))
    return layers.Dense(3)(x)


@functional
def layer_norm_2d(x):
    x = layers.ReLU()(layers.LayerNormalization(axis=(1, 2, 3))(layers.Conv2D(4, 3)(x)))
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


@functional
def group_norm(x):
    x = layers.ReLU()(layers.GroupNormalization(2)(layers.Conv2D(4, 3)(x)))
    return layers.Dense(3)(layers.GlobalAveragePooling2D()(x))


@functional
def rms_norm(x):
    return layers.Dense(3)(layers.ReLU()(layers.RMSNormalization()(layers.Dense(4)(x))))


@functional
def unit_norm(x):
    return layers.Dense(3)(layers.ReLU()(layers.UnitNormalization()(layers.Dense(4)(x))))


add_keras("not_keras_layer_norm", layer_norm, DENSE_DATA)
add_keras("not_keras_layer_norm_2d", layer_norm_2d, CONV_DATA)
add_keras("not_keras_group_norm", group_norm, CONV_DATA)
add_keras("not_keras_rms_norm", rms_norm, DENSE_DATA)
add_keras("not_keras_unit_norm", unit_norm, DENSE_DATA)


def write(name, folder):
    """Writes NAME.onnx and NAME.npz."""
    function, reference, *parts, symbolic = NETWORKS[name]
    feeds = {key: value for part in parts for key, value in part.items()}
    batches = parts[-1].keys() if symbolic else ()
    specs = [
        tf.TensorSpec((None, *v.shape[1:]) if k in batches else v.shape, v.dtype, f"i{number}")
        for number, (k, v) in enumerate(feeds.items())
    ]

    def flat(*tensors):
        values = dict(zip(feeds, tensors, strict=True))
        results = function(*({key: values[key] for key in part} for part in parts))
        return {f"o{number}": tf.identity(value) for number, value in enumerate(results.values())}

    expected = {
        k: v.numpy()
        for k, v in tf.function(reference)(
            *({key: tf.constant(value) for key, value in part.items()} for part in parts)
        ).items()
    }
    outputs = list(function(*({key: tf.constant(value) for key, value in part.items()} for part in parts)))
    model, _ = tf2onnx.convert.from_function(
        tf.function(flat),
        specs,
        opset=OPSET,
        custom_ops=dict.fromkeys(KEPT, DOMAIN),
        extra_opset=[tf2onnx.utils.make_opsetid(DOMAIN, 1)],
    )
    rename(model, {f"i{n}": k for n, k in enumerate(feeds)} | {f"o{n}": k for n, k in enumerate(outputs)})
    onnx.checker.check_model(model)
    onnx.save(model, folder / f"{name}.onnx")
    used = {value.name for value in model.graph.input}
    np.savez_compressed(folder / f"{name}.npz", **{k: v for k, v in feeds.items() if k in used}, **expected)


def rename(model, names):
    """Gives inputs and outputs names that TensorFlow does not allow."""
    graph = model.graph
    for value in (*graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for network in sys.argv[2:] or NETWORKS:
        write(network, folder)
