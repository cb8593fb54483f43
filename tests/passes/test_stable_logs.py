"""Logarithms of sigmoids and of sums of exponentials, as exporters write log_sigmoid and logaddexp."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import bngrad
from bngrad.passes.prepare.stable_logs import StableLogsPass
from pass_models import header, model, ops, proto, run

INF = np.inf
A = [-300.0, -200, -95, -20, 0, 0, 3, 50, 95, 200, -1e9, 1e30, -INF, -INF, 1, INF, INF, -INF]
B = [-301.0, 100, -95, -25, 0, 9, 2, -50, 96, 200, 1.5, 1e30, -INF, 7, -INF, INF, 3, INF]
FORMS = {
    "sigmoid": "p = Sigmoid (a) z = Log (p)",
    "copied-sigmoid": "p = Sigmoid (a) q = Identity (p) z = Log (q)",
    "complement": """o = Constant <value_float = 1.0> () i = CastLike (o, a) p = Sigmoid (a) q = Sub (i, p)
        z = Log (q)""",
    "exponentials": "u = Exp (a) v = Exp (b) s = Add (u, v) z = Log (s)",
    "powers": """t = Constant <value_float = 2.0> () c = CastLike (t, a) u = Pow (c, a) v = Pow (c, b)
        s = Add (u, v) m = Log (s) d = Log (c) z = Div (m, d)""",
}
OF_TWO = ("exponentials", "powers")
SIGN = {"complement": 1}
OTHERS = {
    "softmax": "p = Softmax (a) z = Log (p)",
    "other-complement": """o = Constant <value_float = 2.0> () i = CastLike (o, a) p = Sigmoid (a) q = Sub (i, p)
        z = Log (q)""",
    "difference": "u = Exp (a) v = Exp (b) s = Sub (u, v) z = Log (s)",
    "one-exponential": "u = Exp (a) s = Add (u, b) z = Log (s)",
    "computed-base": "c = Abs (a) u = Pow (c, a) v = Pow (c, b) s = Add (u, v) z = Log (s)",
    "negative-base": """c = Constant <value_float = -2.0> () u = Pow (c, a) v = Pow (c, b)
        s = Add (u, v) z = Log (s)""",
}
TYPES = {np.float32: "float", np.float64: "double"}


def log_model(form, dtype="float", opset=18):
    return model(header(opset) + f"g ({dtype}[18] a, {dtype}[18] b) => ({dtype}[18] z) {{ {form} }}")


def exact(name, a, b):
    if name not in OF_TWO:
        return -np.logaddexp(0, SIGN.get(name, -1) * a)
    return (np.logaddexp2 if name == "powers" else np.logaddexp)(a, b)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FORMS)
def test_values(name, dtype):
    changed = log_model(FORMS[name], TYPES[dtype])
    assert StableLogsPass()(changed).modified
    assert not {"Sigmoid", "Pow", "Identity"} & set(ops(changed))
    a, b = np.array(A, dtype), np.array(B, dtype)
    expected = exact(name, a.astype(np.float64), b.astype(np.float64))
    bound = 1e-6 if dtype == np.float32 else 1e-13
    results = run(ir.to_proto(changed), {"a": a, "b": b})
    np.testing.assert_allclose(results["z"], expected, rtol=bound, atol=1e-40)


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name):
    assert not StableLogsPass()(log_model(OTHERS[name])).modified


def test_an_opset_without_where_keeps_sums():
    assert StableLogsPass()(log_model(FORMS["sigmoid"], opset=8)).modified
    assert not StableLogsPass()(log_model(FORMS["exponentials"], opset=8)).modified


def test_terms_that_others_read_stay():
    text = """g (float[18] a, float[18] b) => (float[18] z, float[18] y, float[18] s) {
        u = Exp (a) v = Exp (b) s = Add (u, v) z = Log (s) y = Log (s) }"""
    changed = model(header(18) + text)
    StableLogsPass()(changed)
    assert [name for name in ops(changed) if name in ("Exp", "Log")] == ["Exp", "Exp"]
    a, b = np.array(A[:9] * 2, np.float32), np.array(B[:9] * 2, np.float32)
    results = run(ir.to_proto(changed), {"a": a, "b": b})
    np.testing.assert_array_equal(results["z"], results["y"])
    np.testing.assert_allclose(results["z"], np.logaddexp(a, b), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:jax2onnx does not record")
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "jax", None])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", FORMS)
def test_gradients(name, dtype, framework):
    """The gradients of both operands, also of equal ones, by the convention of each framework."""
    kind = TYPES[dtype]
    text = f"""g ({kind}[9] a, {kind}[9] b) => ({kind} loss) {{ {FORMS[name]} k = Mul (b, b) l = Add (z, k)
        loss = ReduceSum <keepdims = 0> (l) }}"""
    forward = proto(header(18) + text)
    if framework is not None:
        forward.metadata_props.add(key="bngrad.framework", value=framework)
    a, b = np.array(A[:9], dtype), np.array(B[:9], dtype)
    results = run(bngrad.differentiate(forward, wrt=["a", "b"]), {"a": a, "b": b})
    x, y = a.astype(np.float64), b.astype(np.float64)
    slope = {"powers": np.log(2)}.get(name, 1.0) * (x - y) if name in OF_TWO else SIGN.get(name, -1) * x
    share = np.exp(-np.logaddexp(0, -slope)) * -SIGN.get(name, -1)
    np.testing.assert_allclose(results["a_grad"], share, rtol=3e-6, atol=1e-30)
    rest = np.exp(-np.logaddexp(0, slope)) if name in OF_TWO else 0
    np.testing.assert_allclose(results["b_grad"], 2 * y + rest, rtol=3e-6)
