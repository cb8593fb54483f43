"""Gradients of scales of DequantizeLinear, and of MatMulNBits."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import NO_RULE, Case

CONSTANT = "ORT's builder takes the scale for a constant"


def integers(dtype, low, high):
    """A draw of integers of a type."""
    return lambda rng, shape: rng.integers(low, high, shape).astype(dtype)


def dequantize(name, q, scale, attributes="", *, dtype="int8", low=-9, high=9, zero="", **more):
    inputs, values = f"{dtype}[{q}] q, float{scale} s", {"q": integers(dtype, low, high)}
    if zero:
        inputs, values = f"{inputs}, {dtype}{zero} z", values | {"z": integers(dtype, low, high)}
    return Case(
        f"dequantize {name}",
        inputs,
        f"y = DequantizeLinear {attributes} (q, s{', z' * bool(zero)})",
        ("s",),
        draw=values,
        oracle=CONSTANT,
        **more,
    )


def nbits(name, bits, columns, *, zero="", bias="", a="N, 3", **more):
    """A product with a weight of 5 rows, in blocks of 16 columns."""
    blocks = -(-columns // 16)
    inputs = [f"float[{a}, {columns}] a", f"uint8[5, {blocks}, {2 * bits}] b", f"float[5, {blocks}] s"]
    values = {"b": integers(np.uint8, 0, 256)}
    if zero == "packed":
        inputs.append(f"uint8[5, {-(-blocks * bits // 8)}] z")
        values["z"] = integers(np.uint8, 0, 256)
    elif zero:
        inputs.append(f"float[5, {blocks}] z")
    if bias:
        inputs.append("float[5] c")
    operands = f"a, b, s, {'z' if zero else ''}, , {'c' if bias else ''}".rstrip(", ")
    return Case(
        f"matmul of {bits} bits{name}",
        ", ".join(inputs),
        f"y = com.microsoft.MatMulNBits <K = {columns}, N = 5, bits = {bits}, block_size = 16> ({operands})",
        ("a", "c") if bias else ("a",),
        draw=values,
        oracle=NO_RULE,
        float_limit=3e-5,
        **more,
    )


CASES = [
    dequantize("", "N, 3", ""),
    dequantize("for each channel", "N, 3, 4", "[3]", zero="[3]"),
    dequantize("for each row, 32 bits", "3, N", "[3]", "<axis = -2>", dtype="int32", opset=19, is_long=True),
    dequantize(
        "in blocks",
        "N, 6",
        "[N, 3]",
        "<axis = 1, block_size = 2>",
        dtype="uint16",
        low=0,
        high=999,
        zero="[N, 3]",
        opset=21,
    ),
    nbits("", 4, 32),
    nbits(", zero points, a part of a block, bias", 4, 40, zero="packed", bias="c"),
    nbits(", zero points", 8, 16, zero="packed", a="N", is_long=True),
    nbits(" and float zero points", 4, 32, zero="float", opset=21, is_long=True),
    nbits(" and zero points", 2, 48, zero="packed", is_long=True),
]
