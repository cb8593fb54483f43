"""A small network with everything that mixed precision treats differently, for float32 and its gradients."""

from __future__ import annotations

import numpy as np
import onnx

SHAPES = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "w3": (12, 8, 1, 1), "f": (12, 5), "fb": (5,)}
BATCH_NORM = "BatchNormalization <training_mode = 1>"
TEXT = f"""<ir_version: 8, opset_import: ["" : 18]>
g (float[N,3,8,8] x, int64[N] labels) => (float[N,5] logits, float loss) {{
    c1 = Conv <pads = [1, 1, 1, 1]> (x, w1) [bn1] n1, m1_new, v1_new = {BATCH_NORM} (c1, s1, b1, m1, v1)
    r1 = Relu (n1)
    c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2) [bn2] n2, m2_new, v2_new = {BATCH_NORM} (c2, s2, b2, m2, v2)
    a = Add (n2, r1) r2 = Relu (a) p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r2)
    c3 = Conv (p, w3) q = GlobalAveragePool (c3) h = Flatten (q)
    logits = Gemm (h, f, fb) loss = SoftmaxCrossEntropyLoss (logits, labels) }}"""


def network(seed=0):
    """The forward model in training mode, with random weights."""
    model, rng = onnx.parser.parse_model(TEXT), np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in SHAPES.items()}
    for norm in "12":
        arrays |= {f"s{norm}": rng.uniform(0.5, 1.5, 8), f"b{norm}": rng.standard_normal(8) / 4}
        arrays |= {f"m{norm}": np.zeros(8), f"v{norm}": np.ones(8)}
    for name, array in arrays.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
    return model


def batch(size=16, seed=0):
    """Images with one of five patterns, and the number of the pattern."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, size)
    patterns = np.random.default_rng(99).standard_normal((5, 3, 8, 8))
    return {"x": (patterns[labels] + rng.standard_normal((size, 3, 8, 8))).astype(np.float32), "labels": labels}
