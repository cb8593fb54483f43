"""MIOpen's fused backward of batch norm and activation, all ten activations, against its formulas done right."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.passes.imports.miopen.activation import ImportMiopenActivationPass
from dialects import node_model, rewritten
from miopen_reference import MODES, SHAPES, backward, check, ncs, of_ncs, parameter, run_node, tensors
from ort_values import DTYPES, IMPLEMENTATIONS, TOLERANCES
from pairwise import pairwise
from pass_models import find, ops

OP = "miopenFusionBatchNormActivBackward"
OUTPUTS = ("dx", "dscale", "dbias")
NUMBERS = {"activ_alpha": 0.75, "activ_beta": 0.5, "activ_gamma": 1.5}
TYPES = {
    "float": ("float",) * 4,
    "double": ("double",) * 4,
    "float16-mix": ("float16", "float16", "float", "float"),
    "float16": ("float16",) * 4,
    "bfloat16": ("bfloat16",) * 4,
    "bfloat16-x-float-dy": ("bfloat16", "float", "bfloat16", "float"),
}


NAMES = (
    "PASTHRU",
    "LOGISTIC",
    "TANH",
    "RELU",
    "SOFTRELU",
    "ABS",
    "POWER",
    "CLIPPEDRELU",
    "LEAKYRELU",
    "ELU",
)


def forward(name, u, a, b, c):
    """The activation."""
    base = np.maximum(a + b * u, 1e-6)
    return {
        "PASTHRU": u,
        "LOGISTIC": 1 / (1 + np.exp(-u)),
        "TANH": b * np.tanh(a * u),
        "RELU": np.maximum(u, 0),
        "SOFTRELU": np.log1p(np.exp(u)),
        "ABS": np.abs(u),
        "POWER": np.where(base > 1e-6, base**c, 0),
        "CLIPPEDRELU": np.minimum(np.maximum(u, 0), a),
        "LEAKYRELU": np.where(u > 0, u, a * u),
        "ELU": np.where(u > 0, u, a * np.expm1(u)),
    }[name]


def gradient(name, dy, u, y, a, b, c):
    """MIOpen's act_grad, with the dy that its POWER leaves out, and 0 for the slope of ABS at 0."""
    base = np.maximum(a + b * u, 1e-6)
    return {
        "PASTHRU": dy,
        "LOGISTIC": dy * y * (1 - y),
        "TANH": dy * a * (b - y * y / b),
        "RELU": np.where(u > 0, dy, 0),
        "SOFTRELU": dy * np.exp(u) / (np.exp(u) + 1),
        "ABS": dy * np.sign(u),
        "POWER": np.where(base > 1e-6, dy * b * c * y / base, 0),
        "CLIPPEDRELU": np.where((u > 0) & (u <= a), dy, 0),
        "LEAKYRELU": np.where(u > 0, dy, a * dy),
        "ELU": np.where(u > 0, dy, dy * (y + a)),
    }[name]


def preactivation(t, layout, mode):
    scale, bias, mean, inv = (parameter(t[name], layout, mode) for name in ("scale", "bias", "mean", "inv"))
    return of_ncs(scale * ((ncs(t["x"], layout) - mean) * inv) + bias, t["x"].shape, layout)


def make(rng, name, layout, mode, types, numbers=NUMBERS, form="full"):
    """Tensors with y, in the type of x; and what the node should give with y and without."""
    t = tensors(rng, layout, mode, types, form)
    u = preactivation(t, layout, mode)
    values = [float(np.float32(v)) for v in numbers.values()]
    exact = forward(name, u, *values)
    t["y"] = exact.astype(DTYPES[types[0]])

    def want(y):
        g = gradient(name, t["dy"].astype(np.float64), u, y, *values)
        return dict(zip(OUTPUTS, backward(t["x"], g, t["scale"], t["mean"], t["inv"], layout, mode), strict=True))

    return t, want(t["y"].astype(np.float64)), want(exact)


def run_fused(t, name, *, with_y=True, implementation="function", **attributes):
    inputs = {key: t[key] for key in ("dy", "x", "y", "scale", "bias", "mean", "inv")}
    if not with_y:
        inputs["y"] = None
    attributes = NUMBERS | {"activ_mode": name} | attributes
    return run_node(OP, ImportMiopenActivationPass(), inputs, OUTPUTS, implementation, **attributes)


def dtypes_of(types):
    return {"dx": types[1], "dscale": types[2], "dbias": types[2]}


WITH_Y = {"y": True, "no-y": False}


@pairwise(name=NAMES, mode=MODES, layout=list(SHAPES), with_y=WITH_Y, implementation=IMPLEMENTATIONS)
def test_every_activation(name, mode, layout, with_y, implementation, rng):
    t, given_y, computed_y = make(rng, name, layout, mode, TYPES["double"])
    got = run_fused(t, name, with_y=with_y, implementation=implementation, bn_mode=mode, layout=layout)
    want = given_y if with_y else computed_y
    for output in OUTPUTS:
        # Three elements a statistic cancel to a tenth of their size.
        np.testing.assert_allclose(got[output], want[output], rtol=1e-12, atol=1e-13)


@pairwise(name=NAMES, types=list(TYPES), with_y=WITH_Y)
def test_every_type(name, types, with_y, rng):
    t, given_y, computed_y = make(rng, name, "NCHW", "spatial", TYPES[types], form="flat")
    got = run_fused(t, name, with_y=with_y, bn_mode="spatial")
    want = given_y if with_y else computed_y
    for output, dtype in dtypes_of(TYPES[types]).items():
        assert got[output].dtype == DTYPES[dtype]
        # The sums cancel, and u has the error of its own terms: a few times the tolerance of one rounding.
        limit = 4 * TOLERANCES[dtype] * (1 + np.max(np.abs(want[output])))
        assert np.max(np.abs(got[output].astype(np.float64) - want[output])) <= limit


@pytest.mark.parametrize("index", range(10))
def test_an_activation_by_its_value_and_by_the_enumerators_name(index, rng):
    name = NAMES[index]
    t, want, _ = make(rng, name, "NCHW", "spatial", TYPES["double"])
    for activ_mode in (index, f"miopenActivation{name}"):
        check(run_fused(t, activ_mode, bn_mode=1), want, dtypes_of(TYPES["double"]))


def numeric(name, t, mode, step=1e-6):
    """dbias, the sum of the gradient with respect to u, from differences of only the forward pass."""
    u = preactivation(t, "NCHW", mode)
    numbers = [float(np.float32(v)) for v in NUMBERS.values()]
    slope = (forward(name, u + step, *numbers) - forward(name, u - step, *numbers)) / (2 * step)
    return (t["dy"] * slope).sum(axis=(0, 2, 3) if mode == "spatial" else 0, keepdims=True)


@pytest.mark.parametrize("name", NAMES)
def test_against_differences_of_the_forward_pass(name, rng):
    """POWER without dy, as MIOpen has it, would fail here."""
    t, _, _ = make(rng, name, "NCHW", "spatial", TYPES["double"])
    got = run_fused(t, name, bn_mode="spatial")
    np.testing.assert_allclose(got["dbias"], numeric(name, t, "spatial"), rtol=1e-6, atol=1e-6)


def at_zero(rng, **values):
    """Tensors with u = 0 everywhere, and dy = 1."""
    t, _, _ = make(rng, "ABS", "NCHW", "spatial", TYPES["float"])
    t["bias"] = np.zeros_like(t["bias"])
    t["x"] = np.broadcast_to(t["mean"], t["x"].shape).copy()
    t["dy"] = np.ones_like(t["dy"])
    t["y"] = np.full_like(t["y"], values.get("y", 0.0))
    return t


SLOPE_AT_ZERO = {
    "ABS": 0,  # MIOpen: -1
    "RELU": 0,
    "CLIPPEDRELU": 0,
    "LEAKYRELU": 0.75,
    "ELU": 0.75,
    "PASTHRU": 1,
    "SOFTRELU": 0.5,
}


@pytest.mark.parametrize("name", SLOPE_AT_ZERO)
def test_the_slope_at_0(name, rng):
    got = run_fused(at_zero(rng), name, bn_mode="spatial")
    np.testing.assert_array_equal(got["dbias"].ravel(), np.float32(40 * SLOPE_AT_ZERO[name]))


def test_tanh_of_beta_0_has_no_gradient(rng):
    t, _, _ = make(rng, "TANH", "NCHW", "spatial", TYPES["float"])
    t["y"] = np.zeros_like(t["y"])
    got = run_fused(t, "TANH", bn_mode="spatial", activ_beta=0.0)
    assert all((got[name] == 0).all() for name in OUTPUTS)


@pytest.mark.parametrize("name", ["RELU", "CLIPPEDRELU", "POWER"])
@pytest.mark.parametrize("with_y", [True, False], ids=["y", "no-y"])
def test_a_closed_gate_lets_no_infinity_through(name, with_y, rng):
    t, _, _ = make(rng, name, "NCHW", "spatial", TYPES["float"])
    t["bias"] = np.full_like(t["bias"], -1e3)
    t["y"] = np.zeros_like(t["y"])
    t["dy"] = np.full_like(t["dy"], np.inf)
    got = run_fused(t, name, with_y=with_y, bn_mode="spatial")
    assert all((got[output] == 0).all() for output in OUTPUTS)


def test_relu_with_y_is_one_op(rng):
    t, _, _ = make(rng, "RELU", "NCHW", "spatial", TYPES["float"], form="flat")
    inputs = {key: t[key] for key in ("dy", "x", "y", "scale", "bias", "mean", "inv")}
    model = node_model(OP, inputs, OUTPUTS, domain="miopen", bn_mode=1, activ_mode="RELU")
    result = rewritten(model, ImportMiopenActivationPass())
    assert ops(result) == ["Constant", "bngrad.BatchNormalizationReluGrad"]
    node = find(result, "BatchNormalizationReluGrad")
    assert [v.name for v in node.inputs[:6]] == ["dy", "y", "x", "scale", "mean", "inv"]
    without = node_model(OP, inputs | {"y": None}, OUTPUTS, domain="miopen", bn_mode=1, activ_mode="RELU")
    assert "bngrad.BatchNormalizationGrad" in ops(rewritten(without, ImportMiopenActivationPass()))


@pytest.mark.parametrize("outputs", [("dx",), ("", "dscale"), ("", "", "dbias")], ids=str)
def test_outputs_may_be_left_out(outputs, rng):
    t, want, _ = make(rng, "ELU", "NCHW", "spatial", TYPES["double"])
    inputs = {key: t[key] for key in ("dy", "x", "y", "scale", "bias", "mean", "inv")}
    attributes = NUMBERS | {"activ_mode": "ELU", "bn_mode": "spatial"}
    got = run_node(OP, ImportMiopenActivationPass(), inputs, outputs, **attributes)
    assert set(got) == set(filter(None, outputs))
    check(got, {name: want[name] for name in got}, dtypes_of(TYPES["double"]))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_shape_activation_and_numbers(data):
    draw = data.draw
    name, mode = draw(st.sampled_from(NAMES)), draw(st.sampled_from(MODES))
    layout = draw(st.sampled_from(sorted(SHAPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=len(layout), max_size=len(layout))))
    numbers = {key: draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])) for key in NUMBERS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, layout, shape)
        t, given_y, computed_y = make(rng, name, layout, mode, TYPES["double"], numbers)
    with_y = draw(st.booleans())
    got = run_fused(t, name, with_y=with_y, bn_mode=mode, layout=layout, **numbers)
    want = given_y if with_y else computed_y
    for output in OUTPUTS:
        np.testing.assert_allclose(got[output], want[output], rtol=1e-11, atol=1e-11)
