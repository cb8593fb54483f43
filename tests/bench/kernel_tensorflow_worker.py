"""TensorFlow's kernel for `bench_kernels.py`. Its outputs come from memory that it keeps."""

from __future__ import annotations

import sys

import tensorflow as tf

from kernel_serve import RefusedError, serve

DTYPES = {"float": tf.float32, "bfloat16": tf.bfloat16, "float16": tf.float16}


def main() -> None:
    threads, name = int(sys.argv[1]), sys.argv[2]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    serve(lambda asked: {name: prepare(asked)})


def prepare(asked):
    if asked.op != "grad" or asked.layout != "NHWC" or len(asked.extents) != 4 or asked.dtype not in DTYPES:
        raise RefusedError("its kernel for CPUs has the gradient of rank 4 in NHWC, of float and 16-bit types")
    data = [tf.cast(tf.random.normal(asked.shape), DTYPES[asked.dtype]) for _ in range(2)]
    scale, mean, variance = (tf.random.uniform([asked.channels], 0.5, 1.5) for _ in range(3))
    arguments = {
        "y_backprop": data[0],
        "x": data[1],
        "scale": scale,
        "reserve_space_1": mean,
        "reserve_space_2": variance,
        "reserve_space_3": tf.zeros([0]),
        "epsilon": 1e-5,
        "data_format": "NHWC",
        "is_training": not asked.frozen,
    }
    return lambda: tf.raw_ops.FusedBatchNormGradV3(**arguments)


if __name__ == "__main__":
    main()
