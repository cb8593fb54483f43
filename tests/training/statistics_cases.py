"""Two batch norms in a row, their statistics in NumPy, and batches of uneven sizes."""

from __future__ import annotations

import numpy as np
import onnx

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'
STACKED = """g (TYPE[N,3] x, int64[N] labels) => (float loss, TYPE[N,2] y)
        <TYPE[4] mean1 = {0, 0, 0, 0}, TYPE[4] var1 = {1, 1, 1, 1}, TYPE[2] mean2 = {0, 0}, TYPE[2] var2 = {1, 1},
        TYPE[4] s1 = {1, 2, 0.5, -1}, TYPE[4] b1 = {0.5, 0, -1, 0}, TYPE[2] s2 = {1, 1}, TYPE[2] b2 = {0, 1}> {
    h1 = MatMul (x, w1)
    [bn1] n1 = BatchNormalization <epsilon = 0.5> (h1, s1, b1, mean1, var1)
    r1 = Relu (n1)
    h2 = MatMul (r1, w2)
    [bn2] y = BatchNormalization (h2, s2, b2, mean2, var2)
    logits = Cast <to = 1> (y)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""


def stacked(dtype="double", text=STACKED, **values):
    """The model, with random weights w1 and w2 unless values are given."""
    model = onnx.parser.parse_model(HEADER + text.replace("TYPE", dtype))
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.name = f"layer{node.name[-1]}.bn"
    rng = np.random.default_rng(5)
    values = {"w1": rng.standard_normal((3, 4)), "w2": rng.standard_normal((4, 2)), **values}
    kind = {"double": np.float64, "float": np.float32, "float16": np.float16}[dtype]
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(value.astype(kind), name) for name, value in values.items()
    )
    return model


def uneven_batches(sizes=(7, 2, 16, 5), dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {"x": (rng.standard_normal((size, 3)) * [1, 5, 0.1] + [0, 100, -3]).astype(dtype), "labels": labels}
        for size, labels in ((size, rng.integers(0, 2, size)) for size in sizes)
    ]


def initializers(model):
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def reference(model, batches, *, train=(True, True), ddof=0):
    """The statistics of both inputs over all batches; one that does not train uses its running statistics."""
    values = {name: value.astype(np.float64) for name, value in initializers(model).items()}
    inputs = ([], [])
    for batch in batches:
        h = batch["x"].astype(np.float64) @ values["w1"]
        inputs[0].append(h)
        mean, var = (h.mean(0), h.var(0)) if train[0] else (values["mean1"], values["var1"])
        n = np.maximum((h - mean) / np.sqrt(var + 0.5) * values["s1"] + values["b1"], 0)
        inputs[1].append(n @ values["w2"])
    result = {}
    for number, arrays in enumerate(inputs, start=1):
        whole = np.concatenate(arrays)
        result |= {f"mean{number}": whole.mean(0), f"var{number}": whole.var(0, ddof=ddof)}
    return result
