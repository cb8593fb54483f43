"""MIOpen's backward -> BatchNormalizationGrad: every mode, layout, type and blend against MIOpen's own formula."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.passes.imports.miopen.backward import ImportMiopenBackwardPass
from dialects import node_model, rewritten, run
from miopen_reference import (
    FORMS,
    MODES,
    SHAPES,
    backward,
    batch_statistics,
    check,
    of_parameter,
    parameter_shape,
    run_node,
    tensors,
)
from ort_values import DTYPES, IMPLEMENTATIONS
from pairwise import pairwise
from pass_models import attributes_of, axes_of, find, ops

OPS = ("miopenBatchNormalizationBackward", "miopenBatchNormalizationBackward_V2")
OUTPUTS = ("dx", "dscale", "dbias")
TYPES = {
    "float": ("float",) * 4,
    "double": ("double",) * 4,
    "double-float-parameters": ("double", "double", "float", "float"),
    "float16-mix": ("float16", "float16", "float", "float"),
    "float16": ("float16",) * 4,
    "float16-CK": ("float16", "float", "float16", "float"),
    "bfloat16": ("bfloat16",) * 4,
    "bfloat16-CK": ("bfloat16", "float", "bfloat16", "float"),
    "half-scale-alone": ("float16", "float16", "float16", "float"),
    "half-statistics-alone": ("float16", "float16", "float", "float16"),
    "dy-narrower-than-x": ("float", "float16", "float", "float"),
    "two-kinds-of-16-bits": ("float16", "bfloat16", "bfloat16", "float"),
}


def node_inputs(t, *, saved=True, old=None):
    inputs = {"x": t["x"], "dy": t["dy"], "scale": t["scale"]}
    inputs |= {"mean": t["mean"] if saved else None, "inv": t["inv"] if saved else None}
    return inputs | (old or {})


def run_backward(t, *, op_type=OPS[0], saved=True, old=None, implementation="function", **attributes):
    inputs = node_inputs(t, saved=saved, old=old)
    return run_node(op_type, ImportMiopenBackwardPass(), inputs, OUTPUTS, implementation, **attributes)


def want_of(t, layout, mode, mean=None, inv=None):
    mean, inv = (t["mean"], t["inv"]) if mean is None else (mean, inv)
    return dict(zip(OUTPUTS, backward(t["x"], t["dy"], t["scale"], mean, inv, layout, mode), strict=True))


def recomputed(t, layout, mode, epsilon):
    mean, variance = batch_statistics(t["x"], layout, mode)
    inv = 1 / np.sqrt(variance + np.float32(epsilon).astype(np.float64))
    return want_of(t, layout, mode, *(of_parameter(s, t["scale"].shape, layout, mode) for s in (mean, inv)))


def dtypes_of(types):
    return {"dx": types[1], "dscale": types[2], "dbias": types[2]}


def layout_attribute(layout):
    return {} if layout in ("NCHW", "NCDHW") else {"layout": layout}


@pairwise(mode=MODES, layout=list(SHAPES), form=FORMS, implementation=IMPLEMENTATIONS)
def test_saved_statistics(mode, layout, form, implementation, rng):
    t = tensors(rng, layout, mode, TYPES["float"], form)
    got = run_backward(t, implementation=implementation, bn_mode=mode, **layout_attribute(layout))
    check(got, want_of(t, layout, mode), dtypes_of(TYPES["float"]))


@pytest.mark.parametrize("op_type", OPS)
@pytest.mark.parametrize("types", TYPES)
def test_types(types, op_type, rng):
    t = tensors(rng, "NCHW", "spatial", TYPES[types])
    got = run_backward(t, op_type=op_type, bn_mode="spatial")
    check(got, want_of(t, "NCHW", "spatial"), dtypes_of(TYPES[types]))


@pytest.mark.parametrize("types", TYPES)
def test_types_per_activation_without_statistics(types, rng):
    t = tensors(rng, "NHWC", "per_activation", TYPES[types])
    got = run_backward(t, saved=False, bn_mode="per_activation", layout="NHWC", epsilon=1e-2)
    check(got, recomputed(t, "NHWC", "per_activation", 1e-2), dtypes_of(TYPES[types]))


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_statistics_are_computed_with_the_epsilon_of_the_call(mode, layout, rng):
    """MIOpen's composable-kernel solver takes 1e-5 whatever it is told."""
    t = tensors(rng, layout, mode, TYPES["double"])
    got = run_backward(t, saved=False, bn_mode=mode, epsilon=0.5, layout=layout)
    check(got, recomputed(t, layout, mode, 0.5), dtypes_of(TYPES["double"]))


@pytest.mark.parametrize("left_out", ["mean", "inv"])
def test_one_saved_statistic_is_none(left_out, rng):
    t = tensors(rng, "NCHW", "spatial", TYPES["double"])
    got = run_backward(t | {left_out: None}, bn_mode="spatial", epsilon=1e-3)
    check(got, recomputed(t, "NCHW", "spatial", 1e-3), dtypes_of(TYPES["double"]))


@pairwise(mode=MODES, layout=["NCHW", "NDHWC"], types=list(TYPES))
def test_blending(mode, layout, types, rng):
    """MIOpen documents it, and refuses every alpha but 1 and every beta but 0."""
    t = tensors(rng, layout, mode, TYPES[types])
    old = {
        "dx_old": rng.standard_normal(t["dy"].shape).astype(t["dy"].dtype),
        "dscale_old": rng.standard_normal(t["scale"].shape).astype(t["scale"].dtype),
        "dbias_old": rng.standard_normal(t["scale"].shape).astype(t["scale"].dtype),
    }
    weights = {"alphaDataDiff": 0.5, "betaDataDiff": -2.0, "alphaParamDiff": 3.0, "betaParamDiff": 0.25}
    got = run_backward(t, old=old, bn_mode=mode, layout=layout, **weights)
    want = want_of(t, layout, mode)
    want["dx"] = 0.5 * want["dx"] - 2.0 * old["dx_old"].astype(np.float64)
    for name in ("dscale", "dbias"):
        want[name] = 3.0 * want[name] + 0.25 * old[f"{name}_old"].astype(np.float64)
    check(got, want, dtypes_of(TYPES[types]))


def test_old_contents_of_weight_0_are_not_read(rng):
    t = tensors(rng, "NCHW", "spatial", TYPES["float"])
    old = {
        "dx_old": np.full_like(t["dy"], np.nan),
        "dscale_old": None,
        "dbias_old": np.full_like(t["scale"], np.nan),
    }
    got = run_backward(t, old=old, bn_mode="spatial", betaDataDiff=0.0, betaParamDiff=0)
    check(got, want_of(t, "NCHW", "spatial"), dtypes_of(TYPES["float"]))


def test_data_and_parameters_blend_apart(rng):
    t = tensors(rng, "NCHW", "spatial", TYPES["double"])
    old = {"dx_old": rng.standard_normal(t["dy"].shape)}
    got = run_backward(t, old=old, bn_mode="spatial", betaDataDiff=1, alphaParamDiff=-1)
    want = want_of(t, "NCHW", "spatial")
    want = {"dx": want["dx"] + old["dx_old"], "dscale": -want["dscale"], "dbias": -want["dbias"]}
    check(got, want, dtypes_of(TYPES["double"]))


def test_a_gradient_that_nobody_asks_for_needs_no_old_contents(rng):
    t = tensors(rng, "NCHW", "spatial", TYPES["double"])
    inputs = node_inputs(t, old={"dx_old": None, "dscale_old": rng.standard_normal(t["scale"].shape)})
    attributes = {"bn_mode": "spatial", "betaParamDiff": 1.0}
    got = run_node(OPS[0], ImportMiopenBackwardPass(), inputs, ["dx", "dscale"], **attributes)
    want = want_of(t, "NCHW", "spatial")
    check(got, {"dscale": want["dscale"] + inputs["dscale_old"]}, {"dscale": "double"})


@pytest.mark.parametrize("outputs", [("dx",), ("", "dscale"), ("", "", "dbias"), ("dx", "", "dbias")], ids=str)
def test_outputs_may_be_left_out(outputs, rng):
    t = tensors(rng, "NCHW", "spatial", TYPES["float"])
    got = run_node(OPS[0], ImportMiopenBackwardPass(), node_inputs(t), outputs, bn_mode="spatial")
    want = want_of(t, "NCHW", "spatial")
    assert set(got) == set(filter(None, outputs))
    check(got, {name: want[name] for name in got}, dtypes_of(TYPES["float"]))


def test_nothing_is_made_for_a_gradient_that_nobody_reads(rng):
    t = tensors(rng, "NCHW", "spatial", TYPES["float"])
    model = node_model(OPS[0], node_inputs(t), OUTPUTS, domain="miopen", bn_mode=1, alphaParamDiff=2.0)
    del model.graph.outputs[1:]
    op_types = ops(rewritten(model, ImportMiopenBackwardPass()))
    assert op_types[-1] == "bngrad.BatchNormalizationGrad"
    assert "Mul" not in op_types


DECLARED = {
    "float-gradients-of-float16": ("float16", "float"),
    "float16-gradients-of-float": ("float", "float16"),
}


@pytest.mark.parametrize("case", DECLARED)
def test_a_gradient_has_the_type_that_the_graph_says(case, rng):
    """MIOpen's solvers for 16 bits write dscale and dbias in float beside a scale in 16 bits."""
    of_scale, of_gradient = DECLARED[case]
    t = tensors(rng, "NCHW", "spatial", ("float16", "float16", of_scale, "float"))
    model = node_model(OPS[1], node_inputs(t), OUTPUTS, domain="miopen", bn_mode="spatial")
    for output in model.graph.outputs[1:]:
        output.dtype = ir.DataType[of_gradient.upper()]
        output.shape = ir.Shape(t["scale"].shape)
    got = run(rewritten(model, ImportMiopenBackwardPass()), t)
    check(got, want_of(t, "NCHW", "spatial"), {"dx": "float16", "dscale": of_gradient, "dbias": of_gradient})


def test_what_becomes_of_it(rng):
    t = tensors(rng, "NHWC", "spatial", TYPES["float"], "flat")
    model = node_model(OPS[0], node_inputs(t), OUTPUTS, domain="miopen", bn_mode=1, layout="NHWC", epsilon=1e-5)
    result = rewritten(model, ImportMiopenBackwardPass())
    assert ops(result) == ["Constant", "bngrad.BatchNormalizationGrad"]
    node = find(result, "BatchNormalizationGrad")
    assert [v.name for v in node.inputs[:5]] == ["dy", "x", "scale", "mean", "inv"]
    assert axes_of(node) == [0, 1, 2]
    assert attributes_of(node) == {"training_mode": 1}


MODE_NAMES = {
    "spatial": ("spatial", "miopenBNSpatial", 1),
    "per_activation": ("per_activation", "miopenBNPerActivation", 0),
}


@pytest.mark.parametrize(("mode", "named"), [(mode, name) for mode, names in MODE_NAMES.items() for name in names])
def test_a_mode_by_each_of_its_names(mode, named, rng):
    t = tensors(rng, "NCHW", mode, TYPES["float"])
    got = run_backward(t, bn_mode=named)
    check(got, want_of(t, "NCHW", mode), dtypes_of(TYPES["float"]))


def test_true_batch_statistics_give_the_derivative(rng):
    """The formula against a finite difference, so that reference and pass are not wrong together."""
    t = tensors(rng, "NCHW", "spatial", TYPES["double"])
    got = run_backward(t, saved=False, bn_mode="spatial", epsilon=1e-3)

    def loss(x):
        mean, variance = batch_statistics(x, "NCHW", "spatial")
        xhat = (x.reshape(*x.shape[:2], -1) - mean) / np.sqrt(variance + np.float64(np.float32(1e-3)))
        return float((t["dy"].reshape(xhat.shape) * xhat * t["scale"].reshape(1, -1, 1)).sum())

    step = 1e-6
    for index in [(0, 0, 0, 0), (3, 2, 1, 4), (1, 1, 0, 2)]:
        up, down = t["x"].copy(), t["x"].copy()
        up[index] += step
        down[index] -= step
        assert got["dx"][index] == pytest.approx((loss(up) - loss(down)) / (2 * step), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("mode", MODES)
def test_a_large_mean(mode, rng):
    """x about 1000 standard deviations from 0: sum(dy * x) - mean * sum(dy) would lose every digit."""
    t = tensors(rng, "NCHW", mode, TYPES["float"])
    t["x"] = (t["x"] + 3000).astype(np.float32)
    t["mean"] = (t["mean"] + 3000).astype(np.float32)
    got = run_backward(t, bn_mode=mode)
    check(got, want_of(t, "NCHW", mode), dtypes_of(TYPES["float"]))


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1, 3, 2, 2), (2, 3, 1, 1), (0, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_extents_of_0_and_1(mode, shape, rng, monkeypatch):
    monkeypatch.setitem(SHAPES, "NCHW", shape)
    t = tensors(rng, "NCHW", mode, TYPES["double"])
    got = run_backward(t, bn_mode=mode)
    want = want_of(t, "NCHW", mode) if shape[0] else {n: np.zeros_like(t["scale"]) for n in ("dscale", "dbias")}
    check(got, want, dtypes_of(TYPES["double"]))


@pytest.mark.parametrize("shape", [(2, 3, 0, 2), (2, 3, 2, 0), (2, 0, 2, 2)], ids=str)
@pytest.mark.parametrize("form", ["full", "flat"])
@pytest.mark.parametrize("mode", MODES)
def test_no_elements(mode, form, shape, rng, monkeypatch):
    monkeypatch.setitem(SHAPES, "NCHW", shape)
    t = tensors(rng, "NCHW", mode, TYPES["float"], form)
    got = run_backward(t, bn_mode=mode)
    assert got["dx"].shape == shape
    for name in ("dscale", "dbias"):
        np.testing.assert_array_equal(got[name], np.zeros_like(t["scale"]))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_shape_type_and_weights(data):
    draw = data.draw
    layout, mode = draw(st.sampled_from(sorted(SHAPES))), draw(st.sampled_from(MODES))
    types = TYPES[draw(st.sampled_from(sorted(TYPES)))]
    form, saved = draw(st.sampled_from(["full", "flat"])), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = tuple(draw(st.lists(st.integers(2, 4), min_size=len(layout), max_size=len(layout))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, layout, shape)
        t = tensors(rng, layout, mode, types, form)
        assert t["scale"].shape == parameter_shape(layout, mode, form)
    alpha, beta = draw(st.sampled_from([(1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (0.25, 2.0)]))
    old = {"dx_old": rng.standard_normal(shape).astype(DTYPES[types[1]])}
    weights = {"alphaDataDiff": alpha, "betaDataDiff": beta}
    got = run_backward(t, saved=saved, old=old, bn_mode=mode, layout=layout, epsilon=0.5, **weights)
    want = want_of(t, layout, mode) if saved else recomputed(t, layout, mode, 0.5)
    want["dx"] = alpha * want["dx"] + beta * old["dx_old"].astype(np.float64)
    for name, dtype in dtypes_of(types).items():
        assert got[name].dtype == DTYPES[dtype]
        limit = {"float": 2e-5, "double": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
        # A sum that cancels has an error of the size of its terms, which are about 1.
        scale_of = 1 + float(np.max(np.abs(want[name])))
        assert np.max(np.abs(got[name].astype(np.float64) - want[name])) <= limit * scale_of
