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


CASES = [*cases()]
