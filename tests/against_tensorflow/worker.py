"""Runs TensorFlow in an environment of its own: `worker.py run JOBS RESULTS`, `worker.py convert OPS DIRECTORY`,
`worker.py gradient_tape sparse|dense DIRECTORY`.

JOBS is an .npz of float32 arrays `<number>/<name>` and a JSON text `jobs` with what to do with them; RESULTS gets
arrays `<number>/<name>`, or a text `<number>/error`. Data in 16 bits travels as float32, which holds it exactly.
"""

import json
import os
import pathlib
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

FORWARD_OUTPUTS = ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2")
GRADIENT_OUTPUTS = ("x_backprop", "scale_backprop", "offset_backprop")
DATA = ("x", "y_backprop", "U")


def forward(op_type, arrays, attributes):
    return dict(zip(FORWARD_OUTPUTS, getattr(tf.raw_ops, op_type)(**arrays, **attributes), strict=False))


def gradient(op_type, arrays, attributes):
    return dict(zip(GRADIENT_OUTPUTS, getattr(tf.raw_ops, op_type)(**arrays, **attributes), strict=False))


def second_order(op_type, arrays, attributes):
    cotangents = [arrays[name] for name in ("U", "a", "b")]
    inputs = {name: array for name, array in arrays.items() if name not in ("U", "a", "b")}
    wrt = [inputs[name] for name in ("y_backprop", "x", "scale")]
    with tf.GradientTape() as tape:
        tape.watch(wrt)
        first = list(gradient(op_type, inputs, attributes).values())
    return dict(zip(("d_dY", "d_X", "d_scale"), tape.gradient(first, wrt, cotangents), strict=True))


KINDS = {"forward": forward, "gradient": gradient, "second_order": second_order}


def run(jobs_path, results_path):
    archive = np.load(jobs_path)
    results = {}
    for number, job in enumerate(json.loads(str(archive["jobs"]))):
        prefix = f"{number}/"
        arrays = {name.removeprefix(prefix): archive[name] for name in archive.files if name.startswith(prefix)}
        types = {name: job["dtype"] if name in DATA else "float32" for name in arrays}
        tensors = {name: tf.cast(tf.constant(array), types[name]) for name, array in arrays.items()}
        compute = KINDS[job["kind"]]
        try:
            # XLA computes what the CPU kernels leave out.
            called = tf.function(
                lambda values, compute=compute, job=job: compute(job["op_type"], values, job["attributes"]),
                jit_compile=job["jit"],
            )
            answered = called(tensors)
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            results[f"{prefix}error"] = np.array(str(error))
        else:
            for name, value in answered.items():
                results[f"{prefix}{name}"] = tf.cast(value, tf.float32).numpy()
                results[f"{prefix}{name}/dtype"] = np.array(value.dtype.name)
    np.savez(results_path, **results)


def convert(kept, directory):
    """Converts a training step of convolution, batch norm and ReLU, with the named ops kept as they are."""
    import tf2onnx

    shapes = {"x": (2, 5, 6, 2), "scale": (4,), "offset": (4,), "target": (2, 5, 6, 4)}
    rng = np.random.default_rng(7)
    kernel = rng.standard_normal((3, 3, 2, 4)).astype(np.float32) / 4

    # The gradients that tf2onnx has no handler for (ReluGrad, ShapeN) in ops that it knows.
    @tf.custom_gradient
    def relu(t):
        z = tf.nn.relu(t)
        return z, lambda dz: tf.where(z > 0, dz, tf.zeros_like(dz))

    @tf.custom_gradient
    def convolve(t):
        return tf.nn.conv2d(t, kernel, 1, "SAME"), lambda dz: tf.nn.conv2d_transpose(dz, kernel, shapes["x"], 1)

    def step(x, scale, offset, target):
        with tf.GradientTape() as tape:
            tape.watch([x, scale, offset])
            normalized, _, _ = tf.compat.v1.nn.fused_batch_norm(
                convolve(x), scale, offset, epsilon=1e-3, is_training=True
            )
            loss = tf.reduce_mean(tf.square(relu(normalized) - target))
        dx, dscale, doffset = tape.gradient(loss, [x, scale, offset])
        return {"loss": loss, "dx": dx, "dscale": dscale, "doffset": doffset}

    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    signature = [tf.TensorSpec(shape, tf.float32, name=name) for name, shape in shapes.items()]
    traced = tf.function(step, input_signature=signature)
    expected = {f"want/{name}": value.numpy() for name, value in traced(**feeds).items()}
    domain = "ai.onnx.converters.tensorflow"
    tf2onnx.convert.from_function(
        traced,
        signature,
        opset=17,
        custom_ops=dict.fromkeys(kept.split(","), domain),
        extra_opset=[tf2onnx.utils.make_opsetid(domain, 1)],
        output_path=str(pathlib.Path(directory) / "step.onnx"),
    )
    np.savez(pathlib.Path(directory) / "step.npz", **feeds, **expected)


SHAPES = {
    "kernel": (3, 3, 1, 8),
    "bias": (8,),
    "scale": (8,),
    "offset": (8,),
    "depthwise": (3, 3, 8, 1),
    "point": (1, 1, 8, 6),
    "dense": (6, 10),
    "dense_bias": (10,),
}
KEPT = (
    *("AvgPoolGrad", "BiasAddGrad", "Conv2DBackpropFilter", "Conv2DBackpropInput"),
    *("DepthwiseConv2dNativeBackpropFilter", "DepthwiseConv2dNativeBackpropInput", "EluGrad"),
    *(
        "FusedBatchNormGradV3",
        "FusedBatchNormV3",
        "LeakyReluGrad",
        "MaxPoolGrad",
        "Relu6Grad",
        "ReluGrad",
        "SeluGrad",
    ),
    *("ShapeN", "SigmoidGrad", "SoftmaxCrossEntropyWithLogits", "SoftplusGrad", "SoftsignGrad"),
    *("SparseSoftmaxCrossEntropyWithLogits", "TanhGrad"),
)


def gradient_tape(sparse, directory):
    """Converts the gradients of a network that tf.GradientTape computes, with all of `KEPT` kept as they are."""
    import tf2onnx

    def step(images, labels, *weights):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            kernel, bias, scale, offset, depthwise, point, dense, dense_bias = weights
            x = tf.nn.bias_add(tf.nn.conv2d(images, kernel, 1, "SAME"), bias)
            x, *_ = tf.compat.v1.nn.fused_batch_norm(x, scale, offset, is_training=True)
            x = tf.nn.max_pool2d(tf.nn.relu(x), 2, 2, "SAME")
            x = tf.nn.relu6(tf.nn.depthwise_conv2d(x, depthwise, [1, 1, 1, 1], "SAME"))
            x = tf.nn.elu(tf.nn.avg_pool2d(x, 2, 1, "SAME"))
            x = tf.nn.leaky_relu(tf.nn.conv2d(x, point, 2, "VALID"))
            for activation in (tf.nn.selu, tf.nn.softplus, tf.tanh, tf.sigmoid, tf.nn.softsign):
                x = activation(x)
            logits = tf.reduce_mean(x, [1, 2]) @ dense + dense_bias
            if sparse == "sparse":
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            else:
                losses = tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(labels, 10), logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, weights)
        return {"loss": loss, **{f"d_{name}": d for name, d in zip(SHAPES, gradients, strict=True)}}

    rng = np.random.default_rng(9)
    images = rng.standard_normal((6, 8, 8, 1)).astype(np.float32)
    feeds = {"images": images, "labels": rng.integers(0, 10, 6)}
    feeds |= {name: rng.standard_normal(shape).astype(np.float32) / 2 for name, shape in SHAPES.items()}
    signature = [tf.TensorSpec(array.shape, array.dtype, name=name) for name, array in feeds.items()]
    traced = tf.function(step, input_signature=signature)
    expected = {f"want/{name}": value.numpy() for name, value in traced(*map(tf.constant, feeds.values())).items()}
    domain = "ai.onnx.converters.tensorflow"
    tf2onnx.convert.from_function(
        traced,
        signature,
        opset=17,
        custom_ops=dict.fromkeys(KEPT, domain),
        extra_opset=[tf2onnx.utils.make_opsetid(domain, 1)],
        output_path=str(pathlib.Path(directory) / "step.onnx"),
    )
    np.savez(pathlib.Path(directory) / "step.npz", **feeds, **expected)


if __name__ == "__main__":
    {"run": run, "convert": convert, "gradient_tape": gradient_tape}[sys.argv[1]](*sys.argv[2:])
