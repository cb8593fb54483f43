"""Models for CI jobs: one that passes, one with a wrong gradient, one with a hazard, one that cannot be read."""

from __future__ import annotations

import onnx

from bngrad.cli import run

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
PARAMETERS = "<float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 1}, float[2] v = {1, 2}>"
GOOD = f"""{HEADER}g (float[N,2,3] x) => (float loss, float[2] m2, float[2] v2) {PARAMETERS} {{
    [bn] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    q = Mul(y, y)  p = Mul(q, y)  loss = ReduceSum<keepdims = 0>(p) }}"""
HAZARD = GOOD.replace(", float[2] m2, float[2] v2)", ")")


def write_models(folder):
    """Writes models/{good,hazard,empty}.onnx, and wrong.onnx: a training graph, two inputs of a node swapped."""
    (folder / "models").mkdir()
    onnx.save(onnx.parser.parse_model(GOOD), folder / "models" / "good.onnx")
    onnx.save(onnx.parser.parse_model(HAZARD), folder / "models" / "hazard.onnx")
    (folder / "models" / "empty.onnx").write_bytes(b"")
    assert run(["differentiate", str(folder / "models" / "good.onnx"), "-o", str(folder / "wrong.onnx")]) == 0
    wrong = onnx.load(folder / "wrong.onnx")
    (node,) = (node for node in wrong.graph.node if node.op_type == "BatchNormalizationGrad")
    node.input[3], node.input[4] = node.input[4], node.input[3]
    onnx.save(wrong, folder / "wrong.onnx")
