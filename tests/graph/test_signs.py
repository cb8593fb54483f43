"""Sign analysis, for the guards of gradients."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

from bngrad.graph.signs import is_nonnegative, is_nonzero, is_positive, is_singular, may_overflow

CONSTANTS = """e = Constant <value_float = 0.1> () minus = Constant <value_float = -0.1> ()
    zero = Constant <value_float = 0.0> () two = Constant <value_float = 2.0> ()
    half = Constant <value_float = 0.5> () three = Constant <value_float = 3.0> ()"""


def value(body):
    """The value v of a model that reads x, z and w, where w has a default that can be overridden."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 18]> g
        (float[2, 3] x, float[2, 3] z, float w) => (float[A, B] v) <float w = {{1.0}}> {{ {CONSTANTS} {body} }}"""
    )
    return ir.from_proto(model).graph.outputs[0]


POSITIVE = [
    "v = Identity (e)",
    "q = Mul (x, x) v = Add (q, e)",
    "q = Abs (x) s = Add (e, q) v = Sqrt (s)",
    "q = Pow (x, two) m = ReduceMean (q) a = Add (m, e) v = Pow (a, half)",
    "v = Max (x, e)",
    "v = Clip (x, e)",
    "v = Clip (x, e, two)",
    "q = Exp (x) s = Add (q, e) v = Cast <to = 11> (s)",
    "r = Relu (x) s = Softplus (z) p = Mul (r, s) v = Add (p, e)",
]
NOT_POSITIVE = [
    "v = Identity (x)",
    "v = Add (x, e)",
    "v = Identity (zero)",
    "v = Mul (x, x)",
    "q = Mul (x, z) v = Add (q, e)",
    "q = Mul (x, x) v = Add (q, minus)",
    "q = Mul (x, x) v = Sub (e, q)",
    "v = Exp (x)",
    "v = Sigmoid (x)",
    "v = Max (x, zero)",
    "v = Clip (x, , e)",
    "v = Clip (x, e, minus)",
    "v = Clip (x, e, w)",
    "q = Pow (x, three) v = Add (q, e)",
    "q = Abs (x) s = Add (q, e) v = Cast <to = 10> (s)",
    "q = Abs (x) v = Add (q, w)",
]


@pytest.mark.parametrize("body", POSITIVE)
def test_is_positive(body):
    assert is_positive(value(body))
    assert is_nonnegative(value(body))
    assert is_nonzero(value(body))


@pytest.mark.parametrize("body", NOT_POSITIVE)
def test_may_be_zero_or_less(body):
    assert not is_positive(value(body))


@pytest.mark.parametrize(
    ("body", "singular"),
    [
        ("v = Sqrt (x)", True),
        ("v = Log (x)", True),
        ("v = Reciprocal (x)", True),
        ("v = Div (x, z)", True),
        ("v = Div (x, zero)", True),
        ("v = Pow (x, half)", True),
        ("v = Pow (x, z)", True),
        ("v = Pow (x, minus)", True),
        ("v = Div (x, two)", False),
        ("v = Div (x, minus)", False),
        ("v = Pow (x, two)", False),
        ("v = Pow (x, zero)", False),
        ("q = Mul (x, x) s = Add (q, e) v = Log (s)", False),
        ("v = Exp (x)", False),
        ("v = Mul (x, z)", False),
    ],
)
def test_is_singular(body, singular):
    v = value(body)
    assert is_singular(v.producer()) == singular
    assert may_overflow(v) == (singular or body == "v = Exp (x)")
    assert may_overflow(value(body.replace("v =", "u =") + " v = Transpose (u)")) == may_overflow(v)


def test_a_graph_of_any_depth():
    body = " ".join(f"a{i + 1} = Abs (a{i})" for i in range(100))
    assert is_nonnegative(value(f"a0 = Neg (x) {body} v = Identity (a100)"))
    moved = " ".join(f"a{i + 1} = Identity (a{i})" for i in range(100))
    assert not is_nonnegative(value(f"a0 = Abs (x) {moved} v = Identity (a100)"))
