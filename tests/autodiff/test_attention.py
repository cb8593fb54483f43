"""Attention: refusals, also of RotaryEmbedding, present keys that nothing reads, a mask without a kernel."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from autodiff.gradient_cases import Case
from autodiff.gradient_checks import CheckedCase, against_differences, check_gradients
from autodiff.small_models import differentiated, summed
from bngrad.errors import UnsupportedNodeError

QKV = "float[2, 1, 3, 4] q, float[2, 1, 5, 4] k, float[2, 1, 5, 3] v"
PAST = "float[2, 1, 2, 4] pk, float[2, 1, 2, 3] pv"
PRODUCTS = """a, b, c, d = Attention <is_causal = 1, qk_matmul_output_mode = 1> (q, k, v, , pk, pv)
    t = ReduceSum <keepdims = 0> (d) y = Add (a, t)"""
# name: (inputs, nodes that make y, message)
REFUSALS = {
    "products of past keys with positions": (
        f"{QKV}, {PAST}",
        PRODUCTS,
        "it has past keys, positions and qk_matmul_output_mode = 1; expected 3$",
    ),
    "products of an unknown number of keys": (
        f"{QKV}, {PAST}".replace("1, 5,", "1, K,"),
        PRODUCTS,
        "the loss depends on its fourth output, for an unknown number of keys; expected a number$",
    ),
    "values of another type": (
        QKV.replace("float[2, 1, 5, 3]", "double[2, 1, 5, 3]"),
        "z = Attention (q, k, v) y = Cast <to = 1> (z)",
        "its input 2 is DOUBLE; expected FLOAT, as its first input$",
    ),
    "angles of no positions and no batch": (
        "float[1, 1, 2, 4] q, float[2, 2] k, float[2, 2] v",
        "y = RotaryEmbedding (q, k, v)",
        r"its input 1 has the shape \[2,2\], without positions; expected 3 dimensions$",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    inputs, body, message = REFUSALS[name]
    with pytest.raises(UnsupportedNodeError, match=message):
        differentiated(summed(inputs, body, opset=24), wrt=["q", "k", "v"])


PRESENT = {
    "values of keys": ("a, nk, nv = Attention (q, k, v, , pk, pv) y = Identity (a)", ("pv",)),
    "present values": ("a, nk, nv = Attention (q, k, v, , pk, pv) y = Identity (nv)", ("v", "pv")),
    "present keys": ("a, nk, nv = Attention (q, k, v, , pk, pv) y = Identity (nk)", ("pk",)),
    "a sum beside them": ("a, nk, nv = Attention (q, k, v, , pk, pv) n = ReduceSum (nv) y = Mul (m, n)", ("m",)),
    "in a branch": (
        """y = If (c) <then_branch = t () => (float[2, 1, 3, 3] p) { p, nk, nv = Attention (q, k, v, , pk, pv) },
        else_branch = e () => (float[2, 1, 3, 3] r) { r = Identity (o) }>""",
        ("pv",),
    ),
}
"""The nodes that make y, and the values to differentiate with respect to."""


@pytest.mark.parametrize("name", PRESENT)
def test_present_keys_that_nothing_reads(name):
    """ONNX Runtime has no kernel for past keys without present ones, which nothing reads in the gradient."""
    body, wrt = PRESENT[name]
    inputs = f"{QKV}, {PAST}, float[2] m, bool c, float[2, 1, 3, 3] o"
    check_gradients(Case(name, inputs, body, wrt, dims=({},), opset=23))


def test_a_step_with_present_keys_that_nothing_reads():
    model = summed(f"{QKV}, {PAST}", "a, nk, nv = Attention (q, k, v, , pk, pv) y = Mul (a, w)", opset=23)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), "w"))
    step = bngrad.training_step(model, loss="loss", optimizer=bngrad.SGD())
    shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in model.graph.input}
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    before = trainer.step(**feeds)
    assert trainer.evaluate(**feeds)["loss"] < before


def test_keys_beyond_the_end_of_a_mask():
    """ONNX Runtime takes no such mask."""
    wrt = ("q", "k", "v", "m")
    case = Case("short mask", f"{QKV}, float[3, 2] m", "y = Attention (q, k, v, m)", wrt, dims=({},), opset=24)
    CheckedCase(case).run(against_differences, {})
