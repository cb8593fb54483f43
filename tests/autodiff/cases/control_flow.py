"""Gradients of If, Loop and Scan."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import NO_RULE, Case, positive

INPUTS = "float[N, 3] x, float[3] w, float[3] v, bool c, bool d"
BRANCHES = """y = If (c) <
    then_branch = t () => (float[N, 3] p) { q = Mul (x, w) p = Exp (q) },
    else_branch = e () => (float[N, 3] r) { q = Sqrt (v) r = Mul (x, q) }>"""
NESTED = """z = Exp (x) y, u = If (c) <
    then_branch = t () => (float[N, 3] p, float[3] s) {
        q = Mul (z, w) s = Neg (w)
        p = If (d) <then_branch = f () => (float[N, 3] a) { a = Mul (q, z) },
                    else_branch = g () => (float[N, 3] b) { b = Identity (z) }> },
    else_branch = e () => (float[N, 3] r, float[3] s2) { q = Sqrt (v) r = Mul (z, q) s2 = Identity (v) }>"""
CONSTANTS = """z = Exp (x) y = If (c) <
    then_branch = t () => (float[N, 3] p) <float[3] k = {1, 2, 3}> { p = Mul (k, z) },
    else_branch = e () => (float[N, 3] r) <float[3] k = {4, 5, 6}> { r = Mul (z, k) }>"""

STEP = """h, y = Scan <num_scan_inputs = 1, body = f (float[N, 3] s, float[N, 2] a)
        => (float[N, 3] t, float[N, 3] u) {
    p = MatMul (a, w) q = Mul (s, r) z = Add (p, q) t = Tanh (z) u = Mul (t, s) }> (h0, x)"""
OF_STEP = "float[T, N, 2] x, float[N, 3] h0, float[2, 3] w, float[3] r"
MANY = """h, k, i, y, z = Scan <num_scan_inputs = 2, scan_input_axes = [1, 0], scan_input_directions = [1, 0],
    scan_output_axes = [0, -1], scan_output_directions = [1, 0],
    body = f (float[B, 3] s, float c, int64 n, float[B, 2] a, float[B, 3] b)
        => (float[B, 3] t, float c2, int64 n2, float[B, 3] u, float[B] v) {
    p = MatMul (a, w) q = Mul (s, r) o = Add (p, q) z = Add (o, b) t = Tanh (z) u = Mul (t, s)
    one = Constant <value_ints = [1]> () v = ReduceSum <keepdims = 0> (u, one)
    m = ReduceMean <keepdims = 0> (b) f = Cast <to = 1> (n) e = Mul (f, m) c2 = Mul (e, c)
    unit = Constant <value_int = 1> () n2 = Add (n, unit) }> (h0, k0, i0, x, b)"""
OF_MANY = "float[B, T, 2] x, float[T, B, 3] b, float[B, 3] h0, float k0, int64 i0, float[2, 3] w, float[3] r"
RESET = """z = Exp (x) h, k = Scan <num_scan_inputs = 1, body = f (float[2] s, float[2] o, float[2] a) =>
    (float[2] t, float[2] o2) { p = Mul (s, r) t = Identity (a) u = Add (p, o) o2 = Mul (u, a) }> (h0, k0, z)"""
DOUBLED = """h = Scan <num_scan_inputs = 1, body = f (float[2] s, float[2] a) => (float[2] t) { t = Add (s, s) }>
    (h0, x)"""
NESTED_SCAN = """h, y = Scan <num_scan_inputs = 1, body = f (float[2] s, float[2, 2] a)
        => (float[2] t, float[2] u) {
    k, j = Scan <num_scan_inputs = 1, body = g (float[2] l, float[2] e) => (float[2] m, float[2] n) {
        o = Mul (l, e) m = Add (o, r) n = Mul (m, s) }> (s, a)
    zero = Constant <value = float {0}> () top = ReduceMax <keepdims = 0> (k) c = Greater (top, zero)
    t = If (c) <then_branch = d () => (float[2] d1) { d1 = Mul (k, r) },
                else_branch = b () => (float[2] b1) { b1 = Sin (k) }>
    one = Constant <value_ints = [0]> () u = ReduceSum <keepdims = 0> (j, one) }> (h0, x)"""
ROOTS = """h, y = Scan <num_scan_inputs = 1, body = f (float[2] s, float[2] a) => (float[2] t, float[2] u) {
    q = Sqrt (a) t = Add (s, q) u = Mul (t, s) }> (h0, x)"""

LOOP = """h, y, j = Loop <body = f (int64 i, bool go, float[N, 3] s)
        => (bool on, float[N, 3] t, float[N, 3] u, float k) {
    p = MatMul (s, w) q = Mul (p, r) f = Cast <to = 1> (i) b = Mul (f, x) z = Add (q, b) t = Tanh (z)
    u = Mul (t, s) n = Reshape (f, none) on = Less (n, most) k = ReduceMean <keepdims = 0> (u) }> (m, go, h0)"""
OF_LOOP = "int64 m, bool go, float[N, 3] x, float[N, 3] h0, float[3, 3] w, float[3] r, float most"
SUMMED = """h = Loop <body = f (int64 i, bool go, float[N] s) => (bool on, float[N] t) {
    on = Identity (go) t = Sub (s, x) }> (m, , h0)"""
IN_LOOP = """h, e = Loop <body = f (int64 i, bool go, s) => (bool on, float[2, 2] t, float[2] u) {
    on = Identity (go) row = Gather (x, i)
    k, j = Loop <body = g (int64 i2, bool go2, float[2] l) => (bool on2, float[2] l2, float[2] l3) {
        on2 = Identity (go2) o = Mul (l, r) l2 = Add (o, row) l3 = Sin (l2) }> (m, , h0)
    last = Sub (m, i) one = Constant <value_int = 1> () even = Equal (last, one)
    t = If (even) <then_branch = d () => (float[2, 2] d1) { d1 = Mul (s, k) },
                   else_branch = b () => (float[2, 2] b1) { b1 = Add (s, j) }>
    axis = Constant <value_ints = [0]> () u = ReduceSum <keepdims = 0> (t, axis) }> (m, , s0)"""


def number(value):
    return lambda _rng, _shape: value


def flag(value):
    return lambda _rng, _shape: np.bool_(value)


def cases():
    for c in (True, False):
        flags = {"v": positive, "c": flag(c), "d": flag(not c)}
        yield Case(f"if {c}", INPUTS, BRANCHES, ("x", "w", "v"), draw=flags, oracle=NO_RULE)
        yield Case(f"nested if {c}", INPUTS, NESTED, ("x", "w", "v"), ("y", "u"), draw=flags, oracle=NO_RULE)
    yield Case(
        "if, a constant of a branch",
        INPUTS,
        CONSTANTS,
        draw={"c": flag(True), "d": flag(True)},
        oracle=NO_RULE,
    )
    sizes = ({"T": 3, "N": 2}, {"T": 1, "N": 3})
    common = {"dims": sizes, "oracle": NO_RULE}
    yield Case("scan", OF_STEP, STEP, ("x", "h0", "w", "r"), ("h", "y"), **common)
    yield Case("scan, last state", OF_STEP, STEP, ("w", "r"), ("h",), **common)
    yield Case("scan, elements", OF_STEP, STEP, ("x", "h0"), ("y",), **common)
    # ONNX Runtime's Scan along another axis ends the process where a batch is empty.
    draw = {"i0": number(2)}
    wrt = ("x", "b", "h0", "k0", "w", "r")
    yield Case(
        "scan, many", OF_MANY, MANY, wrt, ("h", "k", "y", "z"), dims=({"T": 3, "B": 2},), draw=draw, oracle=NO_RULE
    )
    states = "float[T, 2] x, float[2] h0, float[2] k0, float[2] r"
    yield Case("scan, a state that is replaced", states, RESET, ("x", "h0", "k0", "r"), ("h", "k"), **common)
    yield Case("scan, no sequence", states, DOUBLED, ("h0",), ("h",), **common)
    yield Case("scan, roots", states, ROOTS, ("x", "h0"), ("h", "y"), draw={"x": positive}, **common)
    nested = states.replace("float[T, 2] x", "float[T, 2, 2] x")
    yield Case("nested scan", nested, NESTED_SCAN, ("x", "h0", "r"), ("h", "y"), **common)
    for name, limit, most, go in (
        ("", 3, 9, True),
        (", until a condition", 9, 1, True),
        (", no step", 0, 9, True),
        (", a condition that is false", 3, 9, False),
    ):
        draw = {"m": number(limit), "most": number(most), "go": flag(go)}
        outputs = ("h", "y", "j") if name in ("", ", until a condition") else ("h",)
        yield Case(
            f"loop{name}",
            OF_LOOP,
            LOOP,
            ("x", "h0", "w", "r"),
            outputs,
            "int64[0] none = {}",
            draw=draw,
            oracle=NO_RULE,
        )
    of_sum = "int64 m, float[N] x, float[N] h0"
    yield Case("loop, no sequence", of_sum, SUMMED, ("x", "h0"), ("h",), draw={"m": number(3)}, oracle=NO_RULE)
    of_nested = "int64 m, float[2, 2] x, float[2] h0, float[2, 2] s0, float[2] r"
    yield Case(
        "nested loop",
        of_nested,
        IN_LOOP,
        ("x", "h0", "s0", "r"),
        ("h", "e"),
        dims=({},),
        draw={"m": number(2)},
        oracle=NO_RULE,
    )


CASES = [*cases()]
