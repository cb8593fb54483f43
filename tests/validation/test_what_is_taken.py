"""`validate` takes what `differentiate` takes, and needs the oracle for nothing but ``ort``."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import bngrad
from bngrad.errors import OracleError
from bngrad.oracle import client

BATCH_NORM = """<float[3] s = {1.0, 2.0, 0.5}, float[3] b = {0.1, -0.2, 0.3}, float[3] m = {0.5, -0.5, 0.1},
                 float[3] v = {1.5, 0.5, 2.0}>"""
LOSS = "q = Mul(y, y)  p = Mul(q, y)  loss = ReduceSum<keepdims = 0>(p)"


def parse(text, opset=17, ir_version=8, more=""):
    model = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : {opset}{more}]>\n{text}')
    onnx.checker.check_model(model)
    return model


def with_initializers(model, **arrays):
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def copy(model):
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def aliased():
    """One initializer is scale and running variance, another one bias and running mean."""
    batch_norm = "y, r0, r1 = BatchNormalization<training_mode = 1>(x, one, zero, zero, one)"
    text = f"g (float[2,4,3] x) => (float loss) {{ {batch_norm}  {LOSS} }}"
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)
    return with_initializers(model, one=np.ones(4, np.float32), zero=np.zeros(4, np.float32))


def half(text):
    """A model in float16, with float parameters."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\n' + text)
    rng = np.random.default_rng(0)
    return with_initializers(model, w=rng.standard_normal((3, 3)).astype(np.float16))


TRAINING = f"y, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)  {LOSS}"
FROZEN = f"y = BatchNormalization(x, s, b, m, v)  {LOSS}"
TAKEN = {
    "training": parse(f"g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{ {TRAINING} }}"),
    "frozen": parse(f"g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{ {FROZEN} }}"),
    "frozen-opset-9": parse(f"g (float[2,3,4] x) => (float loss) {BATCH_NORM} {{ {FROZEN} }}", 9, 6),
    "frozen-opset-11": parse(f"g (float[2,3,4] x) => (float loss) {BATCH_NORM} {{ {FROZEN} }}", 11, 6),
    "opset-7-pad-and-clip": parse(
        """g (float[2,3,4] x, float[2,3,4] w) => (float loss) {
             a = Mul(x, w)  c = Pad<pads = [0, 0, 1, 0, 0, 2], value = 0.5>(a)  y = Clip<min = -0.7, max = 0.9>(c)
             q = Mul(y, y)  loss = ReduceSum<keepdims = 0>(q) }""",
        7,
        4,
    ),
    "no-rule-in-ort": parse(
        f"g (float[2,3,5] x) => (float loss) {BATCH_NORM} {{ y = InstanceNormalization(x, s, b)  {LOSS} }}"
    ),
    "no-batch-norm": parse(
        """g (float[N,3] x) => (float loss) <float[3] w = {1, 2, 3}> {
             h = Mul(x, w)  loss = ReduceMean<keepdims = 0>(h) }"""
    ),
    "a-loss-that-is-zero": parse(
        f"""g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{
             y, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
             z, r2, r3 = BatchNormalization<training_mode = 1>(y, s, b, m, v)
             loss = ReduceMean<keepdims = 0>(z) }}"""
    ),
    "aliased": aliased(),
    "half": half(
        "g (float16[4,3] x) => (float loss) { h = MatMul(x, w)  r = Tanh(h)  f = Cast<to = 1>(r)  y = Mul(f, f)"
        "  loss = ReduceSum<keepdims = 0>(y) }"
    ),
    "half-data-float-parameters": parse(
        f"""g (float16[6,3] x) => (float loss) {BATCH_NORM} {{
             h, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)  y = Cast<to = 1>(h)  {LOSS} }}"""
    ),
    "double": parse(
        """g (double[6,3] x, double[3] s, double[3] b, double[3] m, double[3] v) => (double loss) {
             y, r0, r1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
             q = Mul(y, y)  p = Mul(q, y)  loss = ReduceSum<keepdims = 0>(p) }"""
    ),
    "bfloat16": parse(
        "g (bfloat16[4,3] x, bfloat16[3] w) => (bfloat16 loss) { h = Mul(x, w)  r = Tanh(h)"
        "  y = Mul(r, r)  loss = ReduceSum<keepdims = 0>(y) }"
    ),
    "function": parse(
        f"""g (float[2,3,4] x) => (float loss) {BATCH_NORM} {{ y = f.Block(x, s, b, m, v)  {LOSS} }}
        <domain: "f", opset_import: ["" : 17]>
        Block (x, s, b, m, v) => (y) {{ y, q, p = BatchNormalization<training_mode = 1>(x, s, b, m, v) }}""",
        more=', "f" : 1',
    ),
    "constant-weight": parse(
        """g (float[2,3] x) => (float loss) { w = Constant<value = float[3] {1.0, -2.0, 3.0}>()  h = Mul(x, w)
             y = Mul(h, h)  loss = ReduceSum<keepdims = 0>(y) }"""
    ),
    "dropout": parse(
        """g (float[20,30] x) => (float loss) <float ratio = {0.5}, bool on = {1}, float[30] w> {
             h = Mul(x, w)  y, mask = Dropout(h, ratio, on)  q = Mul(y, y)  loss = ReduceSum<keepdims = 0>(q) }"""
        .replace("float[30] w>", f"float[30] w = {{{', '.join(['1.5'] * 30)}}}>")
    ),
    "domain-by-its-other-name": onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx" : 17]>\n'
        f"g (float[N,3,4] x) => (float loss) {BATCH_NORM} {{ {TRAINING} }}"
    ),
    "kinks-at-the-inputs": parse(
        """g (float[4,3] x) => (float loss) <float[3] w = {1.0, -2.0, 3.0}, float[3] zero = {0, 0, 0}> {
             h = Mul(x, w)  z = Mul(h, zero)  r = Relu(z)  a = Abs(z)  t = Add(r, a)  u = Add(t, h)  y = Mul(u, u)
             loss = ReduceSum<keepdims = 0>(y) }"""
    ),
}  # fmt: skip
WRT = {name: ["x", "w"] for name in ("constant-weight", "bfloat16", "opset-7-pad-and-clip")}


@pytest.fixture
def no_oracle(monkeypatch):
    def refuse(*_arguments, **_options):
        raise OracleError("no oracle here")

    monkeypatch.setattr(client.Oracle, "__enter__", refuse)


@pytest.mark.usefixtures("no_oracle")
@pytest.mark.parametrize("against", ["numeric", "reference"])
@pytest.mark.parametrize("case", TAKEN)
def test_taken_without_an_oracle(case, against):
    training = bngrad.differentiate(copy(TAKEN[case]), wrt=WRT.get(case))
    report = bngrad.validate(copy(TAKEN[case]), against=against, wrt=WRT.get(case))
    assert report.passed, report.reason
    checks = {check.name: check for check in report.checks}
    expected = {output.name for output in training.graph.output if output.name.endswith("_grad")}
    found = {row.subject for row in checks["central differences"].rows}
    assert expected | {"x_grad"} == found
    assert {row.kind for row in checks["forward in float64"].rows} >= {"loss"}
