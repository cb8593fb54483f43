"""Gradients through sequences and optionals: those of the tensors in them."""

from __future__ import annotations

import numpy as np
import pytest

from autodiff.small_models import X, gradients, summed
from bngrad.errors import UnsupportedNodeError

INDICES = "int64 zero = {0}, int64 last = {-1}, int64[2] sizes = {1, 2}"
E = np.exp(X)
PARTS = "e = Exp (x) n = Neg (x)"
MAP = """m = SequenceMap <body = b (float[3] p, float[3] q) => (float[6] r) {
    s2 = SequenceConstruct (p, q)  r = ConcatFromSequence <axis = 0> (s2) }> (s, n)"""

CASES = {
    "constructed": (f"{PARTS} s = SequenceConstruct (e, n, x) y = SequenceAt (s, zero)", E),
    "inserted and erased": (
        f"""{PARTS} s = SequenceEmpty () t = SequenceInsert (s, e) u = SequenceInsert (t, n, zero)
        v = SequenceErase (u, last) w = SequenceInsert (v, x) z = SequenceInsert (w, e, last)
        y = ConcatFromSequence <axis = 0, new_axis = 1> (z)""",
        E,
    ),
    "read twice": (
        f"""{PARTS} s = SequenceConstruct (e, n) a = SequenceAt (s, last) c = ConcatFromSequence <axis = 0> (s)
        d = ReduceSum <keepdims = 0> (c) y = Mul (a, d)""",
        (X - E).sum() - X.sum() * (E - 1),
    ),
    "weighted by the length": (
        """e = Exp (x) s = SplitToSequence (e, sizes) l = SequenceLength (s) f = CastLike (l, x)
        a = SequenceAt (s, last) y = Mul (a, f)""",
        2 * E * [0, 1, 1],
    ),
    "mapped": (f"{PARTS} s = SequenceConstruct (e, x) {MAP} y = ConcatFromSequence <axis = 0> (m)", E - 1),
    "an optional decides": (
        """e = Exp (x) o = Optional (e) h = OptionalHasElement (o)
        y = If (h) <then_branch = t () => (float[3] p) { p = OptionalGetElement (o) },
                    else_branch = f () => (float[3] q) { q = Neg (x) }>""",
        E,
    ),
    "in the body of a Loop": (
        """k = Constant <value_int = 2> () y = Loop (k, , x) <body = b (int64 i, bool c, float[3] a)
        => (bool d, float[3] r) { d = Identity (c) t = Add (a, x) s = SplitToSequence (t, sizes)
            f = SequenceAt (s, zero) g = SequenceAt (s, last) u = SequenceConstruct (g, f)
            r = ConcatFromSequence <axis = 0> (u) }>""",
        3 * np.ones(3),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients(case):
    body, expected = CASES[case]
    forward = summed("float[3] x", body, initializers=INDICES)
    actual = gradients(forward, {"x": X}, wrt=["x"])["x_grad"]
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


REFUSED = {
    "a position of tensors of different shapes": (
        "z = Concat <axis = 0> (x, x) s = SequenceConstruct (x, z) y = SequenceAt (s, i)",
        "SequenceConstruct node 's' .*: it has no gradient rule for dynamic sequences and optionals",
    ),
    "a sequence to which a Loop inserts at a position": (
        """e = SequenceEmpty () t = Loop (i, , e) <body = b (int64 k, bool c, seq(float[3]) a)
        => (bool d, seq(float[3]) r) { d = Identity (c) j = Sub (k, k) r = SequenceInsert (a, x, j) }>
        y = ConcatFromSequence <axis = 0> (t)""",
        "Loop node 't' .* cannot be differentiated: .* is no tensor",
    ),
    "a position outside": ("s = SequenceConstruct (x, x) y = SequenceAt (s, two)", "SequenceConstruct node 's'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    body, message = REFUSED[case]
    forward = summed("float[3] x, int64 i", body, initializers="int64 two = {2}")
    with pytest.raises(UnsupportedNodeError, match=message):
        gradients(forward, {}, wrt=["x"])
