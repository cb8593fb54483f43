"""StopGradient: a forward identity that no gradient passes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.autodiff.stop_gradient import DOMAIN, define, stop_nodes, stops_to_identity

HEADER = f'<ir_version: 8, opset_import: ["" : 18, "{DOMAIN}" : 1]> '
MODELS = {
    "a-factor": """g (float[3] x, float[3] w) => (float loss) <float[3] w = {1, 2, 3}> {
        s = bngrad.autodiff.StopGradient (w) p = Mul (s, w) q = Mul (p, x)
        loss = ReduceSum <keepdims = 0> (q) }""",
    "all-but-a-factor": """g (float[3] x, float[3] w) => (float loss) <float[3] w = {1, 2, 3}> {
        e = Exp (w) s = bngrad.autodiff.StopGradient (e) p = Mul (s, w) q = Mul (p, x)
        loss = ReduceSum <keepdims = 0> (q) }""",
}
WANTED = {"a-factor": lambda x, w: w * x, "all-but-a-factor": lambda x, w: np.exp(w) * x}


def proto(text, *, defined=True):
    model = ir.from_proto(onnx.parser.parse_model(HEADER + text))
    if defined:
        define(model)
    return ir.to_proto(model)


@pytest.mark.parametrize("defined", [True, False], ids=["defined", "without-definition"])
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name, defined):
    given = proto(MODELS[name], defined=defined)
    graph = bngrad.differentiate(given, wrt=["w"])
    assert DOMAIN not in {node.domain for node in graph.graph.node} | {one.domain for one in graph.opset_import}
    x, w = np.array([0.5, -1, 2], np.float32), np.array([1, 2, 3], np.float32)
    names = [one.name for one in graph.graph.output]
    got = dict(zip(names, bngrad.session(graph).run(None, {"x": x, "w": w}), strict=True))
    np.testing.assert_allclose(got["w_grad"], WANTED[name](x, w), rtol=1e-6)


def test_the_forward_model_runs_and_passes_the_checker():
    given = proto(MODELS["a-factor"])
    onnx.checker.check_model(given, full_check=True)
    x = np.ones(3, np.float32)
    (loss,) = bngrad.session(given, "function").run(None, {"x": x})
    assert loss == 14


def test_inference_models_have_an_identity():
    text = """g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> {
        s = bngrad.autodiff.StopGradient (w) y = Mul (s, x) }"""
    final = bngrad.finalize(proto(text), {"w": np.full(3, 4, np.float32)})
    assert {node.domain for node in final.graph.node} == {""}
    assert not final.functions
    (y,) = bngrad.session(final).run(None, {"x": np.ones(3, np.float32)})
    np.testing.assert_array_equal(y, 4)


def test_training_steps_have_none():
    step = bngrad.training_step(proto(MODELS["a-factor"]), wrt=["w"])
    for model in (step.model, step.evaluation):
        assert DOMAIN not in {node.domain for node in model.graph.node}


def test_a_loss_behind_one_alone_is_refused():
    text = """g (float[3] x, float[3] w) => (float loss) <float[3] w = {1, 2, 3}> {
        s = bngrad.autodiff.StopGradient (w) q = Mul (s, x) loss = ReduceSum <keepdims = 0> (q) }"""
    with pytest.raises(bngrad.ModelError, match="does not depend on 'w'"):
        bngrad.differentiate(proto(text), wrt=["w"])


def test_onnx_runtimes_builder_is_refused():
    with pytest.raises(bngrad.UnsupportedNodeError, match=r"StopGradient.*ONNX Runtime's gradient builder"):
        bngrad.differentiate(proto(MODELS["a-factor"]), wrt=["w"], builder="ort")


def test_validate_says_that_differences_do_not_show_it():
    report = bngrad.validate(proto(MODELS["a-factor"]), against="reference", wrt=["w"])
    (check,) = (one for one in report.checks if one.name == "central differences")
    assert "StopGradient" in check.skipped
    assert all(one.passed for one in report.checks if not one.skipped)


def test_stops_to_identity():
    model = ir.from_proto(proto(MODELS["a-factor"]))
    assert len(stop_nodes(model)) == 1
    stops_to_identity(model)
    assert stop_nodes(model) == []
    assert DOMAIN not in model.opset_imports
    assert not model.functions
