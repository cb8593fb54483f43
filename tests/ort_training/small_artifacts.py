"""The artifacts of two small models, in ONNX Runtime's dialect, as text."""

from __future__ import annotations

import numpy as np
import onnx

from bngrad.ort_training.checkpoint_file import Checkpoint, write_checkpoint

HEADER = '<ir_version: 8, opset_import: ["" : 15, "com.microsoft" : 1]>\n'
LINEAR_FORWARD = """
    product = MatMul (x, w)
    y = Add (product, b)
    d = Sub (y, target)
    square = Mul (d, d)
    loss = ReduceMean <keepdims = 0> (square)"""
LINEAR_TRAINING = f"""linear (float[N, 3] x, float[N, 2] target, float[3, 2] w, float[2] b,
    float[3, 2] "w_grad.accumulation.buffer", float[2] "b_grad.accumulation.buffer", bool[1] lazy_reset_grad)
    => (float loss, float[N, 2] y, bool[1] "w_grad.accumulation.out", bool[1] "b_grad.accumulation.out") {{
    {LINEAR_FORWARD}
    size = Size (d)
    number = Cast <to = 1> (size)
    two = Constant <value = float {{2}}> ()
    factor = Div (two, number)
    dy = Mul (d, factor)
    dw = Gemm <transA = 1> (x, dy)
    zero = Constant <value = int64[1] {{0}}> ()
    db = ReduceSum <keepdims = 0> (dy, zero)
    "w_grad.accumulation.out" = com.microsoft.InPlaceAccumulatorV2
        ("w_grad.accumulation.buffer", dw, lazy_reset_grad)
    "b_grad.accumulation.out" = com.microsoft.InPlaceAccumulatorV2
        ("b_grad.accumulation.buffer", db, lazy_reset_grad)
}}"""
LINEAR_EVAL = f"""linear (float[N, 3] x, float[N, 2] target, float[3, 2] w, float[2] b)
    => (float loss, float[N, 2] y) {{ {LINEAR_FORWARD} }}"""

NORM_TRAINING = """norm (float[N, 2] x, float[2] w, float[2] bias, float[2] "w_grad.accumulation.buffer",
    bool[1] lazy_reset_grad) => (float loss, bool[1] "w_grad.accumulation.out")
    <float[2] scale = {1, 1}, float[2] mean = {0, 0}, float[2] var = {1, 1}> {
    n, new_mean, new_var, saved_mean, saved_std = com.microsoft.BatchNormInternal <momentum = 0.9>
        (x, scale, bias, mean, var)
    y = Mul (n, w)
    loss = ReduceMean <keepdims = 0> (y)
    size = Size (y)
    number = Cast <to = 1> (size)
    share = Div (n, number)
    zero = Constant <value = int64[1] {0}> ()
    dw = ReduceSum <keepdims = 0> (share, zero)
    "w_grad.accumulation.out" = com.microsoft.InPlaceAccumulatorV2
        ("w_grad.accumulation.buffer", dw, lazy_reset_grad)
}"""
NORM_EVAL = """norm (float[N, 2] x, float[2] w, float[2] bias) => (float loss)
    <float[2] scale = {1, 1}, float[2] mean = {0, 0}, float[2] var = {1, 1}> {
    n, new_mean, new_var = BatchNormalization <momentum = 0.9, training_mode = 0> (x, scale, bias, mean, var)
    y = Mul (n, w)
    loss = ReduceMean <keepdims = 0> (y)
}"""

SGD = """sgd (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    seq(float[]) first_order_moments) => (bool[1] done) {
    [sgd] done = com.microsoft.SGDOptimizerV2 (learning_rate, params, gradients)
}"""
ADAMW = """adamw (float[1] learning_rate, int64[1] step, seq(float[]) params, seq(float[]) gradients,
    seq(float[]) first_order_moments, seq(float[]) second_order_moments) => (bool[1] done) {
    [adamw] done = com.microsoft.AdamWOptimizer <adam_mode = 1>
        (learning_rate, step, params, gradients, first_order_moments, second_order_moments)
}"""


def write(path, text):
    """Writes a model given as text, and returns its path."""
    path.write_bytes(onnx.parser.parse_model(HEADER + text).SerializeToString())
    return path


def linear(folder):
    """Artifacts of a linear model with a mean squared error: w and b are trained."""
    write(folder / "training_model.onnx", LINEAR_TRAINING)
    write(folder / "eval_model.onnx", LINEAR_EVAL)
    write(folder / "sgd.onnx", SGD)
    write(folder / "adamw.onnx", ADAMW)
    weights = {"w": np.arange(6, dtype="f").reshape(3, 2) / 8, "b": np.ones(2, "f")}
    write_checkpoint(Checkpoint(weights), folder / "checkpoint")
    nominal = {name: np.empty(0, "f") for name in weights}
    write_checkpoint(Checkpoint(nominal, nominal=True), folder / "nominal_checkpoint")
    return folder


def norm(folder):
    """Artifacts of a batch norm whose running statistics are initializers: w is trained, bias frozen."""
    write(folder / "training_model.onnx", NORM_TRAINING)
    write(folder / "eval_model.onnx", NORM_EVAL)
    write(folder / "sgd.onnx", SGD)
    write_checkpoint(Checkpoint({"w": np.ones(2, "f")}, {"bias": np.zeros(2, "f")}), folder / "checkpoint")
    return folder


def batch(step=0, size=4):
    """An x and a target of the linear model."""
    rng = np.random.default_rng(step)
    return rng.normal(size=(size, 3)).astype("f"), rng.normal(size=(size, 2)).astype("f")


def mean_squared_error(state, x, target):
    """The loss, and the gradients with respect to w and b, in float64."""
    w, b = (state.parameters[name].data.astype(float) for name in "wb")
    d = x @ w + b - target
    return (d * d).mean(), {"w": x.T @ d * (2 / d.size), "b": d.sum(0) * (2 / d.size)}
