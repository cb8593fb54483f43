"""MIOpen's forward, training and inference: every mode, layout, type and blend against MIOpen's own formula."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bngrad.passes.imports.miopen.forward import ImportMiopenForwardPass
from dialects import node_model, rewritten, run
from miopen_reference import (
    FORMS,
    MODES,
    SHAPES,
    batch_statistics,
    check,
    ncs,
    of_ncs,
    of_parameter,
    parameter,
    run_node,
    tensors,
)
from ort_values import DTYPES, IMPLEMENTATIONS
from pairwise import pairwise
from pass_models import attributes_of, find, ops

TRAINING = ("miopenBatchNormalizationForwardTraining", "miopenBatchNormalizationForwardTraining_V2")
INFERENCE = ("miopenBatchNormalizationForwardInference", "miopenBatchNormalizationForwardInference_V2")
TRAINED = ("y", "new_mean", "new_var", "saved_mean", "saved_inv")
TYPES = {
    "float": ("float", "float", "float"),
    "double": ("double", "double", "double"),
    "double-float-parameters": ("double", "float", "float"),
    "float16-mix": ("float16", "float", "float"),
    "float16": ("float16", "float16", "float16"),
    "float16-CK": ("float16", "float16", "float"),
    "bfloat16-CK": ("bfloat16", "bfloat16", "float"),
    "bfloat16": ("bfloat16", "bfloat16", "bfloat16"),
}
EPSILON = 1e-2
FACTOR = 0.1


def forward_tensors(rng, layout, mode, types, form="full"):
    """x, scale, bias, and a mean and variance."""
    of_x, of_scale, of_statistics = types
    t = tensors(rng, layout, mode, (of_x, of_x, of_scale, of_statistics), form)
    return {"x": t["x"], "scale": t["scale"], "bias": t["bias"], "mean": t["mean"], "var": t["inv"]}


def normalize(t, layout, mode, mean, variance, epsilon=EPSILON):
    """Scale * (x - mean) / sqrt(variance + epsilon) + bias, from statistics that broadcast with (N, C, S)."""
    scale, bias = (parameter(t[name], layout, mode) for name in ("scale", "bias"))
    y = scale * (ncs(t["x"], layout) - mean) / np.sqrt(variance + float(np.float32(epsilon))) + bias
    return of_ncs(y, t["x"].shape, layout)


def want_trained(t, layout, mode, factor=FACTOR, epsilon=EPSILON):
    """The outputs of forward training; the factor weights the new value, and the running variance is unbiased."""
    mean, variance = batch_statistics(t["x"], layout, mode)
    n = t["x"].size // variance.size
    f = float(np.float32(factor))
    old_mean, old_var = (parameter(t[name], layout, mode) for name in ("mean", "var"))
    small = {
        "new_mean": (1 - f) * old_mean + f * mean,
        "new_var": (1 - f) * old_var + f * variance * n / max(n - 1, 1),
        "saved_mean": mean,
        "saved_inv": 1 / np.sqrt(variance + float(np.float32(epsilon))),
    }
    result = {name: of_parameter(value, t["scale"].shape, layout, mode) for name, value in small.items()}
    return {"y": normalize(t, layout, mode, mean, variance, epsilon), **result}


def run_training(t, *, op_type=TRAINING[0], outputs=TRAINED, old=None, implementation="function", **attributes):
    attributes = {"epsilon": EPSILON, "expAvgFactor": FACTOR} | attributes
    return run_node(op_type, ImportMiopenForwardPass(), t | (old or {}), outputs, implementation, **attributes)


def run_inference(t, *, op_type=INFERENCE[0], old=None, implementation="function", **attributes):
    attributes = {"epsilon": EPSILON} | attributes
    return run_node(op_type, ImportMiopenForwardPass(), t | (old or {}), ["y"], implementation, **attributes)


def dtypes_of(types):
    return {"y": types[0], **dict.fromkeys(TRAINED[1:], types[2])}


# ---- training ----


@pairwise(mode=MODES, layout=list(SHAPES), form=FORMS, implementation=IMPLEMENTATIONS)
def test_training(mode, layout, form, implementation, rng):
    t = forward_tensors(rng, layout, mode, TYPES["float"], form)
    got = run_training(t, implementation=implementation, bn_mode=mode, layout=layout)
    check(got, want_trained(t, layout, mode), dtypes_of(TYPES["float"]))


@pairwise(types=list(TYPES), mode=MODES, op_type=TRAINING)
def test_training_types(types, mode, op_type, rng):
    t = forward_tensors(rng, "NCHW", mode, TYPES[types])
    got = run_training(t, op_type=op_type, bn_mode=mode)
    check(got, want_trained(t, "NCHW", mode), dtypes_of(TYPES[types]))


@pytest.mark.parametrize("factor", [0.0, 1e-9, 0.001, 1 / 3, 0.5, 1.0])
@pytest.mark.parametrize("types", ["float", "double"])
def test_the_factor_is_the_weight_of_the_new_value(types, factor, rng):
    """In double too, where 1 - factor is no float32."""
    t = forward_tensors(rng, "NCHW", "spatial", TYPES[types])
    got = run_training(t, bn_mode="spatial", expAvgFactor=factor)
    check(got, want_trained(t, "NCHW", "spatial", factor), dtypes_of(TYPES[types]))


@pytest.mark.parametrize("factor", [1e-9, 1e-5, 0.001, 0.01, 0.1])
@pytest.mark.parametrize("types", ["float", "double"])
def test_the_first_average_has_all_its_digits(types, factor, rng):
    """1 - (1 - factor) has not, in float."""
    t = forward_tensors(rng, "NCHW", "spatial", TYPES[types])
    t |= {name: np.zeros_like(t[name]) for name in ("mean", "var")}
    got = run_training(t, bn_mode="spatial", expAvgFactor=factor)
    want = want_trained(t, "NCHW", "spatial", factor)
    for name in ("new_mean", "new_var"):
        error = np.max(np.abs(got[name].astype(np.float64) - want[name]))
        assert error <= {"float": 2e-6, "double": 1e-13}[types] * np.max(np.abs(want[name]))


def test_the_factor_by_its_other_name(rng):
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["float"])
    inputs, attributes = t, {"bn_mode": "spatial", "epsilon": EPSILON, "exponentialAverageFactor": 0.25}
    got = run_node(TRAINING[1], ImportMiopenForwardPass(), inputs, TRAINED, **attributes)
    check(got, want_trained(t, "NCHW", "spatial", 0.25), dtypes_of(TYPES["float"]))


@pytest.mark.parametrize("mode", MODES)
def test_one_element_has_no_bessel_correction(mode, rng, monkeypatch):
    monkeypatch.setitem(SHAPES, "NCHW", (1, 3, 1, 1))
    t = forward_tensors(rng, "NCHW", mode, TYPES["double"])
    got = run_training(t, bn_mode=mode)
    check(got, want_trained(t, "NCHW", mode), dtypes_of(TYPES["double"]))


@pytest.mark.parametrize("left_out", [("mean",), ("var",), ("mean", "var")], ids="-".join)
@pytest.mark.parametrize("types", ["float", "double", "float16-CK"])
def test_without_running_statistics(types, left_out, rng):
    """One of the two is as none, and the factor has no use."""
    t = forward_tensors(rng, "NCHW", "per_activation", TYPES[types])
    outputs = ("y", "", "", "saved_mean", "saved_inv")
    inputs = t | dict.fromkeys(left_out)
    attributes = {"bn_mode": "per_activation", "epsilon": EPSILON}
    got = run_node(TRAINING[1], ImportMiopenForwardPass(), inputs, outputs, **attributes)
    assert set(got) == {"y", "saved_mean", "saved_inv"}
    want = want_trained(t, "NCHW", "per_activation")
    check(got, {name: want[name] for name in got}, dtypes_of(TYPES[types]))


@pytest.mark.parametrize("outputs", [("y",), ("", "new_mean"), ("y", "", "", "saved_mean"), TRAINED[:3]], ids=str)
def test_training_outputs_may_be_left_out(outputs, rng):
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["float"], "flat")
    got = run_training(t, outputs=outputs, bn_mode="spatial")
    want = want_trained(t, "NCHW", "spatial")
    assert set(got) == set(filter(None, outputs))
    check(got, {name: want[name] for name in got}, dtypes_of(TYPES["float"]))


def test_running_outputs_that_nobody_reads_need_no_inputs(rng):
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["double"]) | {"mean": None, "var": None}
    model = node_model(TRAINING[0], t, TRAINED, domain="miopen", bn_mode=1, epsilon=EPSILON)
    del model.graph.outputs[1:]
    got = run(rewritten(model, ImportMiopenForwardPass()), t)
    assert set(got) == {"y"}


def test_the_type_of_saved_statistics_is_what_the_graph_says(rng):
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["float16"])
    model = node_model(TRAINING[1], t, TRAINED, domain="miopen", bn_mode=1, epsilon=EPSILON, expAvgFactor=FACTOR)
    for output in model.graph.outputs[3:]:
        output.dtype = ir.DataType.FLOAT
    got = run(rewritten(model, ImportMiopenForwardPass()), t)
    want = want_trained(t, "NCHW", "spatial")
    dtypes = dtypes_of(TYPES["float16"]) | {"saved_mean": "float", "saved_inv": "float"}
    check(got, want, dtypes)


def test_what_becomes_of_training(rng):
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["float"], "flat")
    model = node_model(
        TRAINING[0], t, TRAINED, domain="miopen", bn_mode="spatial", epsilon=EPSILON, expAvgFactor=0.25
    )
    result = rewritten(model, ImportMiopenForwardPass())
    assert ops(result) == ["Constant", "bngrad.BatchNormalizationTraining"]
    attributes = attributes_of(find(result, "BatchNormalizationTraining"))
    assert attributes == pytest.approx({"epsilon": EPSILON, "momentum": 0.75, "unbiased_running_var": 1})


# ---- inference ----


@pairwise(mode=MODES, layout=list(SHAPES), form=FORMS, implementation=IMPLEMENTATIONS)
def test_inference(mode, layout, form, implementation, rng):
    t = forward_tensors(rng, layout, mode, TYPES["float"], form)
    got = run_inference(t, implementation=implementation, bn_mode=mode, layout=layout)
    mean, variance = (parameter(t[name], layout, mode) for name in ("mean", "var"))
    check(got, {"y": normalize(t, layout, mode, mean, variance)}, {"y": "float"})


@pytest.mark.parametrize("op_type", INFERENCE)
@pytest.mark.parametrize("types", TYPES)
def test_inference_types(types, op_type, rng):
    t = forward_tensors(rng, "NCHW", "spatial", TYPES[types])
    got = run_inference(t, op_type=op_type, bn_mode="spatial")
    mean, variance = (parameter(t[name], "NCHW", "spatial") for name in ("mean", "var"))
    check(got, {"y": normalize(t, "NCHW", "spatial", mean, variance)}, {"y": TYPES[types][0]})


@pytest.mark.parametrize("left_out", [("mean",), ("var",), ("mean", "var")], ids="-".join)
@pytest.mark.parametrize("mode", MODES)
def test_inference_without_both_estimates_is_that_of_the_batch(mode, left_out, rng):
    t = forward_tensors(rng, "NHWC", mode, TYPES["double"])
    got = run_inference(t | dict.fromkeys(left_out), bn_mode=mode, layout="NHWC")
    want = normalize(t, "NHWC", mode, *batch_statistics(t["x"], "NHWC", mode))
    check(got, {"y": want}, {"y": "double"})


def test_no_variance_and_no_epsilon_is_not_a_number(rng):
    """As MIOpen documents it."""
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["float"])
    t["var"][0, 1] = 0
    t["x"][:, 1] = t["mean"][0, 1]
    got = run_inference(t, bn_mode="spatial", epsilon=0.0)["y"]
    assert np.isnan(got[:, 1]).all()
    assert np.isfinite(got[:, [0, 2]]).all()


def test_a_large_mean(rng):
    """x * a + b, as ONNX Runtime computes BatchNormalization, would lose three digits."""
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["float"])
    t["x"], t["mean"] = ((t[name] + 3000).astype(np.float32) for name in ("x", "mean"))
    mean, variance = (parameter(t[name], "NCHW", "spatial") for name in ("mean", "var"))
    check(run_inference(t, bn_mode=1), {"y": normalize(t, "NCHW", "spatial", mean, variance)}, {"y": "float"})


# ---- blending ----


@pytest.mark.parametrize("weights", [(0.5, 0.0), (1.0, 1.0), (-2.0, 0.25), (0.0, 1.0)], ids=str)
@pytest.mark.parametrize("types", TYPES)
def test_blending(types, weights, rng):
    """MIOpen documents it, and refuses every alpha but 1 and every beta but 0."""
    t = forward_tensors(rng, "NDHWC", "spatial", TYPES[types])
    alpha, beta = weights
    old = {"y_old": rng.standard_normal(t["x"].shape).astype(t["x"].dtype)}
    blended = beta * old["y_old"].astype(np.float64)
    attributes = {"bn_mode": "spatial", "layout": "NDHWC", "alpha": alpha, "beta": beta}
    want = want_trained(t, "NDHWC", "spatial")
    want["y"] = alpha * want["y"] + blended
    check(run_training(t, old=old, **attributes), want, dtypes_of(TYPES[types]))

    mean, variance = (parameter(t[name], "NDHWC", "spatial") for name in ("mean", "var"))
    inferred = alpha * normalize(t, "NDHWC", "spatial", mean, variance) + blended
    check(run_inference(t, old=old, **attributes), {"y": inferred}, dtypes_of(TYPES[types]))


def test_old_contents_of_weight_0_are_not_read(rng):
    t = forward_tensors(rng, "NCHW", "spatial", TYPES["float"])
    old = {"y_old": np.full_like(t["x"], np.nan)}
    check(run_training(t, old=old, bn_mode=1), want_trained(t, "NCHW", "spatial"), dtypes_of(TYPES["float"]))


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_shape_type_and_weights(data):
    draw = data.draw
    layout, mode = draw(st.sampled_from(sorted(SHAPES))), draw(st.sampled_from(MODES))
    types = TYPES[draw(st.sampled_from(sorted(TYPES)))]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = tuple(draw(st.lists(st.integers(2, 4), min_size=len(layout), max_size=len(layout))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SHAPES, layout, shape)
        t = forward_tensors(rng, layout, mode, types, draw(st.sampled_from(["full", "flat"])))
    factor, epsilon = draw(st.floats(0, 1, width=32)), draw(st.sampled_from([0.25, 1.0]))
    got = run_training(t, bn_mode=mode, layout=layout, expAvgFactor=factor, epsilon=epsilon)
    for name, want in want_trained(t, layout, mode, factor, epsilon).items():
        dtype = dtypes_of(types)[name]
        assert got[name].dtype == DTYPES[dtype]
        limit = {"float": 1e-5, "double": 1e-13, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
        # A result that cancels has an error of the size of its terms, which are about 1.
        scale_of = 1 + float(np.max(np.abs(want)))
        assert np.max(np.abs(got[name].astype(np.float64) - want)) <= limit * scale_of
