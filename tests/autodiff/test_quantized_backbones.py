"""A quantized backbone before a float head: the head has the weights, and the backbone is not trained."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import ModelError

HEAD = "z = Gemm (h, w, b) loss = SoftmaxCrossEntropyLoss (z, labels)"
VALUES = {
    "sx": np.float32(0.05),
    "sw": np.float32(0.1),
    "sr": np.float32(0.02),
    "sv": np.full(4, 0.1, "f"),
    "zero": np.int8(0),
    "uzero": np.uint8(128),
    "fzero": np.float32(1),
    "b": np.zeros(3, "f"),
    "b2": np.ones(2, "f"),
    "c": np.arange(4, dtype="f"),
    "c8": np.arange(4, dtype=np.int32),
    "f": np.ones((2, 4), "f"),
}
IN = "q = QuantizeLinear (X, sx, zero) d = DequantizeLinear (q, sx, zero)"
LAYER = f"{IN} w8 = DequantizeLinear (wq, sw, zero) m = MatMul (d, w8)"
OUT = "q2 = QuantizeLinear (r, sr, zero) h = DequantizeLinear (q2, sr, zero)"
DYNAMIC = "q, s, n = DynamicQuantizeLinear (X) i = MatMulInteger (q, wq, n) v = Cast <to = 1> (i)"
BACKBONES = {
    "QDQ": f"{LAYER} r = Relu (m) {OUT}",
    "QDQ for each channel": f"{IN} w8 = DequantizeLinear <axis = 1> (wq, sv) h = MatMul (d, w8)",
    "QDQ behind a Transpose": f"{IN} t = Transpose (wt) w8 = DequantizeLinear (t, sw, zero) h = MatMul (d, w8)",
    "QDQ and then Transpose": f"{IN} w8 = DequantizeLinear (wt, sw, zero) t = Transpose (w8) h = MatMul (d, t)",
    "a scale behind Identity": f"{IN} si = Identity (sw) w8 = DequantizeLinear (wq, si, zero) h = MatMul (d, w8)",
    "a scale behind Cast": f"{IN} si = Cast <to = 1> (sw) w8 = DequantizeLinear (wq, si, zero) h = MatMul (d, w8)",
    "integer bias": (f"{LAYER} c1 = DequantizeLinear (c8, sw) h = Add (m, c1)"),
    "QLinearMatMul": (
        "q = QuantizeLinear (X, sx, uzero) m = QLinearMatMul (q, sx, uzero, wq, sw, zero, sr, uzero) "
        "h = DequantizeLinear (m, sr, uzero)"
    ),
    "MatMulInteger": f"{DYNAMIC} p = Mul (s, sw) h = Mul (v, p)",
    "MatMulInteger, scaled twice": f"{DYNAMIC} p = Mul (v, s) h = Mul (p, sv)",
    "MatMulInteger of static data": (
        "q = QuantizeLinear (X, sx, zero) i = MatMulInteger (q, wq) v = Cast <to = 1> (i) h = Mul (v, sv)"
    ),
    "integers that are cast": "v = Cast <to = 1> (wq) w8 = Mul (v, sw) h = MatMul (X, w8)",
    "integers less a zero point": "v = Cast <to = 1> (wq) u = Sub (v, fzero) w8 = Mul (u, sv) h = MatMul (X, w8)",
}


def model(backbone, head=HEAD, **values):
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N, 2] X, int64[N] labels) => (float loss) {{ {backbone} {head} }}"""
    result = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    wq = random.integers(-9, 9, (2, 4)).astype(np.int8)
    arrays = VALUES | {"wq": wq, "wt": wq.T.copy(), "w": random.normal(size=(4, 3)).astype("f")} | values
    for name, value in arrays.items():
        if re.search(rf"[(, ]{name}[,)]", backbone + head):
            result.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return result


def gradients(forward, **options):
    """The gradients, and the feeds."""
    graph = bngrad.differentiate(forward, **options)
    names = bngrad.read_training_graph(graph).gradients
    rng = np.random.default_rng(1)
    feeds = {"X": rng.standard_normal((5, 2)).astype("f"), "labels": np.array([0, 1, 2, 0, 1])}
    return dict(zip(names, bngrad.session(graph).run(list(names.values()), feeds), strict=True)), feeds


@pytest.mark.parametrize("how", BACKBONES)
def test_the_head_trains(how):
    """The gradients are those of only the head, applied to the output of the backbone."""
    forward = model(BACKBONES[how])
    got, feeds = gradients(forward)
    assert set(got) == {"w", "b"}
    forward.graph.output.append(onnx.ValueInfoProto(name="h"))
    (h,) = bngrad.session(forward).run(["h"], feeds)
    w = onnx.numpy_helper.to_array(next(tensor for tensor in forward.graph.initializer if tensor.name == "w"))
    p = np.exp(h @ w)
    p /= p.sum(1, keepdims=True)
    p[np.arange(5), feeds["labels"]] -= 1
    np.testing.assert_allclose(got["w"], h.T @ p / 5, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["b"], p.mean(0), rtol=1e-4, atol=1e-6)


BEFORE = {
    "a float bias": (
        f"{LAYER} r = Add (m, c) {OUT}",
        "'c'",
    ),
    "a weight that is quantized in the graph": (
        f"{IN} wf = QuantizeLinear (f, sw, zero) w8 = DequantizeLinear (wf, sw, zero) h = MatMul (d, w8)",
        "'f'",
    ),
    "a float layer": (
        "m = MatMul (X, f) r = Add (m, c) q2, sq, n = DynamicQuantizeLinear (r) h = DequantizeLinear (q2, sq, n)",
        "'c' and 'f'",
    ),
    "a float bias before QLinearMatMul": (
        f"a = Add (X, b2) {BACKBONES['QLinearMatMul'].replace('(X,', '(a,')}",
        "'b2'",
    ),
}


@pytest.mark.parametrize("how", BEFORE)
def test_what_is_in_front_of_quantized_layers_stays_with_a_warning(how):
    body, kept = BEFORE[how]
    verb = "keep their values" if " and " in kept else "keeps its value"
    options = {"straight_through": "QLinear" in body}
    with pytest.warns(bngrad.BngradWarning, match=f"^{kept} {verb}: .*gives input . no gradient"):
        got, _ = gradients(model(body), **options)
    assert set(got) == {"w", "b"}
    assert list(gradients(model(body), wrt=["w"], **options)[0]) == ["w"]


@pytest.mark.parametrize("how", [how for how, (body, _) in BEFORE.items() if "QLinear" not in body])
def test_what_is_in_front_of_a_rounding_trains(how):
    body, others = BEFORE[how]
    got, _ = gradients(model(body))
    assert set(got) == {"w", "b", *re.findall(r"'(\w+)'", others)}
    assert all(np.any(gradient) for gradient in got.values())


def test_a_float_bias_behind_the_last_quantized_layer_trains():
    got, _ = gradients(model(f"{LAYER} h = Add (m, c)"))
    assert set(got) == {"w", "b", "c"}


def test_positions_are_no_quantized_values():
    got, _ = gradients(model("p = Cast <to = 1> (c8) t = Mul (p, sv) m = MatMul (X, f) h = Add (m, t)"))
    assert "sv" in got


REFUSED = {
    "a weight that is quantized in the graph, by name": (
        model(f"{IN} wf = QuantizeLinear (f, sw, zero) w8 = DequantizeLinear (wf, sw, zero) h = MatMul (d, w8)"),
        {"wrt": ["f"], "straight_through": False},
        ModelError,
        "does not depend on 'f': QuantizeLinear node .* gives input 0 no gradient",
    ),
    "a scale of integers by name": (
        model(BACKBONES["QLinearMatMul"]),
        {"wrt": ["sw"]},
        ModelError,
        "does not depend on 'sw': QLinearMatMul node .* gives input 4 no gradient",
    ),
    "a scale that is a weight": (
        model(BACKBONES["QDQ"], HEAD.replace("loss =", "u = Mul (z, sr) loss =").replace("(z, l", "(u, l")),
        {},
        ModelError,
        "'sr' is a weight and a scale of .*give each an initializer of its own",
    ),
    "no head": (
        model(BACKBONES["QDQ"], "loss = ReduceMean <keepdims = 0> (h)"),
        {},
        ModelError,
        "depends on no weights",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refusals(why):
    forward, options, kind, message = REFUSED[why]
    with pytest.raises(kind, match=message):
        bngrad.differentiate(forward, **options)
