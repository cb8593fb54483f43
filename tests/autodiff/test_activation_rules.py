"""Gradients of activations."""

from __future__ import annotations

import pytest

from autodiff.gradient_cases import Case, check_against_differences, check_against_oracle, check_on_stock

NO_RULE = "ORT's builder has no gradient for it"
WIDE = {"x": lambda rng, shape: 4 * rng.standard_normal(shape)}
"""Past the points at which the hard functions are cut off."""
X, X3 = "float[N, 3] x", "float[N, 2, 3] x"

CASES = [
    Case("relu", X, "y = Relu(x)"),
    Case("relu-opset-13", X, "y = Relu(x)", opset=13),
    Case("relu-opset-26", X, "y = Relu(x)", opset=26),
    Case("relu-scalar", "float x", "y = Relu(x)", dims=({"x": ()},)),
    Case("leaky-relu", X, "y = LeakyRelu <alpha = 0.2> (x)"),
    Case("leaky-relu-default", X, "y = LeakyRelu(x)"),
    Case("leaky-relu-opset-13", X, "y = LeakyRelu(x)", opset=13),
    Case("leaky-relu-alpha-0", X, "y = LeakyRelu <alpha = 0.0> (x)"),
    Case("leaky-relu-negative", X, "y = LeakyRelu <alpha = -0.5> (x)", oracle="ORT's kernel takes the sign of y"),
    Case("sigmoid", X, "y = Sigmoid(x)"),
    Case("tanh", X, "y = Tanh(x)"),
    Case("elu", X, "y = Elu(x)", oracle=NO_RULE),
    Case("elu-opset-26", X, "y = Elu(x)", opset=26, oracle=NO_RULE),
    Case("elu-alpha", X, "y = Elu <alpha = 0.3> (x)", oracle=NO_RULE),
    Case("elu-negative", X, "y = Elu <alpha = -0.3> (x)", oracle=NO_RULE),
    Case("selu", X, "y = Selu(x)", oracle=NO_RULE),
    Case("selu-opset-26", X, "y = Selu <alpha = 1.2, gamma = 0.7> (x)", opset=26, oracle=NO_RULE),
    Case("celu", X, "y = Celu(x)", oracle=NO_RULE),
    Case("celu-alpha", X, "y = Celu <alpha = 0.3> (x)", oracle=NO_RULE),
    Case("thresholded-relu", X, "y = ThresholdedRelu <alpha = 0.3> (x)", oracle=NO_RULE),
    Case("thresholded-relu-default", X, "y = ThresholdedRelu(x)", draw=WIDE, oracle=NO_RULE),
    Case("softsign", X, "y = Softsign(x)", oracle=NO_RULE),
    Case("mish", X, "y = Mish(x)", draw=WIDE, oracle=NO_RULE),
    Case("mish-opset-26", X, "y = Mish(x)", opset=26, oracle=NO_RULE),
    Case("softplus", X, "y = Softplus(x)", oracle=NO_RULE),
    Case("hard-sigmoid", X, "y = HardSigmoid(x)", draw=WIDE, oracle=NO_RULE),
    Case("hard-sigmoid-opset-26", X, "y = HardSigmoid(x)", draw=WIDE, opset=26, oracle=NO_RULE),
    Case("hard-sigmoid-alpha", X, "y = HardSigmoid <alpha = 0.4, beta = 0.1> (x)", draw=WIDE, oracle=NO_RULE),
    Case("hard-sigmoid-falling", X, "y = HardSigmoid <alpha = -0.4> (x)", draw=WIDE, oracle=NO_RULE),
    Case("hard-swish", X, "y = HardSwish(x)", draw=WIDE, oracle=NO_RULE),
    Case("hard-swish-opset-14", X, "y = HardSwish(x)", draw=WIDE, opset=14, oracle=NO_RULE),
    Case("hard-swish-opset-26", X, "y = HardSwish(x)", draw=WIDE, opset=26, oracle=NO_RULE),
    Case("prelu", f"{X3}, float[2, 1] s", "y = PRelu(x, s)", ("x", "s"), oracle=NO_RULE),
    Case("prelu-opset-13", f"{X3}, float[2, 1] s", "y = PRelu(x, s)", ("x", "s"), opset=13, oracle=NO_RULE),
    Case("prelu-one-slope", f"{X3}, float[1] s", "y = PRelu(x, s)", ("x", "s"), oracle=NO_RULE),
    Case("prelu-full", f"{X3}, float[N, 2, 3] s", "y = PRelu(x, s)", ("x", "s"), oracle=NO_RULE),
    Case("prelu-slope-only", f"{X3}, float[2, 1] s", "y = PRelu(x, s)", ("s",), oracle=NO_RULE),
    Case(
        "prelu-unknown-slope",
        f"{X}, float[M] s",
        "y = PRelu(x, s)",
        ("x", "s"),
        dims=({"N": 2, "M": 1}, {"N": 2, "M": 3}),
        oracle=NO_RULE,
    ),
    Case("gelu", X, "y = Gelu(x)", opset=20),
    Case("gelu-opset-26", X, "y = Gelu(x)", opset=26),
    Case("gelu-none", X, 'y = Gelu <approximate = "none"> (x)', opset=20),
    Case("gelu-tanh", X, 'y = Gelu <approximate = "tanh"> (x)', opset=20, oracle="ORT ignores approximate"),
    Case("gelu-of-ort", X, "y = com.microsoft.Gelu(x)"),
    Case("gelu-of-ort-twice", X, "h = com.microsoft.Gelu(x) g = com.microsoft.Gelu(h) y = Relu(g)"),
    Case("fast-gelu", X, "y = com.microsoft.FastGelu(x)"),
    Case("fast-gelu-bias", f"{X}, float[3] b", "y = com.microsoft.FastGelu(x, b)", ("x", "b")),
    Case("fast-gelu-bias-only", f"{X}, float[3] b", "y = com.microsoft.FastGelu(x, b)", ("b",)),
    Case("quick-gelu", X, "y = com.microsoft.QuickGelu(x)"),
    Case("quick-gelu-alpha", X, "y = com.microsoft.QuickGelu <alpha = 0.7> (x)"),
    Case("bias-gelu", f"{X}, float[3] b", "y = com.microsoft.BiasGelu(x, b)", ("x", "b")),
    Case("bias-gelu-bias-only", f"{X}, float[3] b", "y = com.microsoft.BiasGelu(x, b)", ("b",)),
]
PARAMETERS = [pytest.param(case, dims, id=f"{case}-{dims}") for case in CASES for dims in case.dims]
EACH = pytest.mark.parametrize(("case", "dims"), PARAMETERS)


@EACH
def test_central_differences(case, dims):
    check_against_differences(case, dims)


@EACH
def test_stock(case, dims):
    check_on_stock(case, dims)


@EACH
def test_oracle(case, dims, oracle):
    if case.oracle:
        pytest.skip(case.oracle)
    check_against_oracle(case, dims, oracle)
