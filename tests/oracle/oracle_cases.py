"""Models that the oracle's tests share."""

from __future__ import annotations

import numpy as np
import onnx.parser

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'

# Convolution, batch norm, relu, both pools, Gemm and softmax cross entropy; the batch size is symbolic.
CNN = (
    HEADER
    + """cnn (float[N,3,8,8] x, int64[N] labels,
     float[4,3,3,3] w1, float[4] b1, float[4] scale, float[4] bias, float[4] mean, float[4] var,
     float[5,16] w2, float[5] b2) => (float loss)
{
  c = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)
  y, new_mean, new_var = BatchNormalization <training_mode = 1> (c, scale, bias, mean, var)
  r = Relu (y)
  p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r)
  q = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (p)
  f = Flatten (q)
  z = Gemm <transB = 1> (f, w2, b2)
  loss, log_prob = SoftmaxCrossEntropyLoss (z, labels)
}"""
)
CNN_WEIGHTS = ["w1", "b1", "scale", "bias", "w2", "b2"]


def parse(text):
    return onnx.parser.parse_model(text if text.startswith("<") else HEADER + text)


def cnn_feeds(batch=3, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {value.name: value.type.tensor_type.shape.dim for value in parse(CNN).graph.input}
    feeds = {
        name: rng.standard_normal([dim.dim_value or batch for dim in dims]).astype(np.float32)
        for name, dims in shapes.items()
    }
    feeds["var"] = np.abs(feeds["var"]) + np.float32(0.5)
    feeds["labels"] = rng.integers(0, 5, batch)
    return feeds


def model(
    body, inputs="float[4,2] x", outputs="float loss", initializers="float[2] w = {2.0, 3.0}", opset=17, ir=8
):
    header = f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n'
    return parse(f"{header}m ({inputs}) => ({outputs}) <{initializers}> {{ {body} }}")


def sum_of(op):
    """loss = sum(op(x * w)): with x all ones, d loss / d w is 4 where op is the identity."""
    return f"a = Mul (x, w)\n {op}\n loss = ReduceSum <keepdims = 0> (b)"


BATCH_NORM = "y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, rm, rv)\n p = Mul (y, t)\n {}"
TO_LOSS = "loss = ReduceSum <keepdims = 0> (p)"
FRESH = "float[2] s = {1.0, 1.0}, float[2] b = {1.0, 1.0}, float[2] rm = {0.0, 0.0}, float[2] rv = {1.0, 1.0}"


def gradients(oracle, prepared, **feeds):
    training = oracle.build_gradient(prepared.model, prepared.loss, prepared.wrt).model
    values = oracle.run(training, {**prepared.values, **feeds})
    return {name: values[f"{name}_grad"].tolist() for name in prepared.wrt}
