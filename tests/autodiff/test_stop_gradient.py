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
    forward = proto(MODELS[name], defined=defined)
    graph = bngrad.differentiate(forward, wrt=["w"])
    assert DOMAIN not in {node.domain for node in graph.graph.node} | {
        opset.domain for opset in graph.opset_import
    }
    x, w = np.array([0.5, -1, 2], np.float32), np.array([1, 2, 3], np.float32)
    names = [output.name for output in graph.graph.output]
    got = dict(zip(names, bngrad.session(graph).run(None, {"x": x, "w": w}), strict=True))
    np.testing.assert_allclose(got["w_grad"], WANTED[name](x, w), rtol=1e-6)


def test_the_forward_model_runs_and_passes_the_checker():
    forward = proto(MODELS["a-factor"])
    onnx.checker.check_model(forward, full_check=True)
    x = np.ones(3, np.float32)
    (loss,) = bngrad.session(forward, "function").run(None, {"x": x})
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
    (check,) = (candidate for candidate in report.checks if candidate.name == "central differences")
    assert "StopGradient" in check.skipped
    assert all(other.passed for other in report.checks if not other.skipped)


def test_stops_to_identity():
    model = ir.from_proto(proto(MODELS["a-factor"]))
    assert len(stop_nodes(model)) == 1
    stops_to_identity(model)
    assert stop_nodes(model) == []
    assert DOMAIN not in model.opset_imports
    assert not model.functions


def of_jax(body, *, producer="jax2onnx", outputs="float loss", functions="", recorded=True):
    text = f"""<ir_version: 10, opset_import: ["" : 18, "custom" : 1], producer_name: "{producer}">
        g (float[3] x) => ({outputs}) <float[3] w = {{1, 2, 3}}> {{ {body} q = Mul (p, x)
        loss = ReduceSum <keepdims = 0> (q) }} {functions}"""
    model = onnx.parser.parse_model(text)
    if recorded:
        model.metadata_props.add(key="bngrad.custom_gradients", value="none")
    return model


OF_A_FUNCTION = """<domain: "custom", opset_import: ["" : 18]> block (f_in) => (r) {
    stop_out_0 = Identity (f_in) r = Mul (stop_out_0, f_in) }"""
JAX = {
    "a stop": (of_jax("stop_out_0 = Identity (w) p = Mul (stop_out_0, w)"), lambda x, w: w * x),
    "the second": (of_jax("stop_out_1 = Identity (w) p = Mul (stop_out_1, w)"), lambda x, w: w * x),
    "in a function": (of_jax("p = custom.block (w)", functions=OF_A_FUNCTION), lambda x, w: w * x),
    "straight through": (
        of_jax("r = Round (w) d = Sub (r, w) stop_out_0 = Identity (d) p = Add (stop_out_0, w)"),
        lambda x, _w: x,
    ),
    "an output of its own": (
        of_jax("stop_out_0 = Identity (w) p = Mul (stop_out_0, w)", outputs="float loss, float[3] stop_out_0"),
        lambda x, w: w * x,
    ),
    "a copy": (of_jax("copy_out_0 = Identity (w) p = Mul (copy_out_0, w)"), lambda x, w: 2 * w * x),
    "another exporter": (
        of_jax("stop_out_0 = Identity (w) p = Mul (stop_out_0, w)", producer="other"),
        lambda x, w: 2 * w * x,
    ),
    "an output that nothing reads": (
        of_jax("p = Mul (w, w) z = Identity (w)", outputs="float loss, float[3] z"),
        lambda x, w: 2 * w * x,
    ),
    "an output of integers": (
        of_jax(
            "i = Cast <to = 7> (x) z = Identity (i) c = Cast <to = 1> (z) p = Mul (c, w)",
            outputs="float loss, int64[3] z",
        ),
        lambda x, _w: np.trunc(x) * x,
    ),
}


TENSORFLOW = {
    f"kept in {domain}": (
        onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17, "{domain}" : 1]>
            g (float[3] x) => (float loss) <float[3] w = {{1, 2, 3}}> {{ s = {domain}.StopGradient <T: int = 1> (w)
            p = Mul (s, w) q = Mul (p, x) loss = ReduceSum <keepdims = 0> (q) }}"""),
        lambda x, w: w * x,
    )
    for domain in ("ai.onnx.converters.tensorflow", "mine")
}


@pytest.mark.parametrize("name", [*JAX, *TENSORFLOW])
def test_stops_that_exporters_record(name):
    model, expected = (JAX | TENSORFLOW)[name]
    before = model.SerializeToString(deterministic=True)
    graph = bngrad.differentiate(model, loss="loss", wrt=["w"])
    assert model.SerializeToString(deterministic=True) == before
    x, w = np.array([0.5, -1, 2], np.float32), np.array([1, 2, 3], np.float32)
    (got,) = bngrad.session(graph).run(["w_grad"], {"x": x, "w": w})
    np.testing.assert_allclose(got, expected(x, w), rtol=1e-6)
    (loss,) = bngrad.session(bngrad.finalize(model, {"w": 2 * w}, outputs=["loss"])).run(["loss"], {"x": x})
    assert np.isfinite(loss)


def test_an_output_that_may_be_a_stop_is_refused():
    model = of_jax("z = Identity (w) p = Mul (z, w)", outputs="float loss, float[3] z")
    with pytest.raises(
        bngrad.ModelError, match=r"Identity node \(outputs z\) may be jax.lax.stop_gradient, .*; leave this"
    ):
        bngrad.differentiate(model, loss="loss")


def test_recorded_stops_and_the_other_builder_and_validate():
    model, _ = JAX["a stop"]
    with pytest.raises(bngrad.UnsupportedNodeError, match=r"StopGradient node .* is unsupported by ONNX"):
        bngrad.differentiate(model, loss="loss", builder="ort")
    assert not bngrad.validate(model, against="numeric", loss="loss").passed  # differences see through a stop


def test_custom_gradients_that_are_not_recorded_are_said():
    with pytest.warns(bngrad.BngradWarning, match="jax2onnx does not record custom gradients"):
        bngrad.differentiate(of_jax("p = Mul (w, w)", recorded=False), loss="loss")


CHOSEN = {
    # The graph, the value that is stopped, and the same graph with the value of an input in its place.
    "computed": ("float[3] w = {1, 2, 3}", "s = Exp (w) y = Mul (s, w)", "s", "y = Mul (given, w)"),
    "also an output": ("float[3] w = {1, 2, 3}", "s = Exp (w) y = Mul (s, w)", "s", "y = Mul (given, w)"),
    "initializer": (
        "float[3] w = {1, 2, 3}, float[3] s = {2, 3, 4}",
        "t = Mul (s, s) y = Mul (t, w)",
        "s",
        "t = Mul (given, given) y = Mul (t, w)",
    ),
    "in a branch": (
        "float[3] w = {1, 2, 3}, bool c = {1}",
        """y = If (c) <then_branch = t () => (float[3] p) { s = Exp (w) p = Mul (s, w) },
            else_branch = e () => (float[3] q) { q = Neg (w) }>""",
        "s",
        "y = Mul (given, w)",
    ),
    "result of a branch": (
        "float[3] w = {1, 2, 3}, bool c = {1}",
        """z = If (c) <then_branch = t () => (float[3] s) { s = Exp (w) },
            else_branch = e () => (float[3] q) { q = Neg (w) }> y = Mul (z, w)""",
        "s",
        "y = Mul (given, w)",
    ),
    "read in a branch": (
        "float[3] w = {1, 2, 3}, bool c = {1}",
        """s = Exp (w) y = If (c) <then_branch = t () => (float[3] p) { p = Mul (s, w) },
            else_branch = e () => (float[3] q) { q = Neg (w) }>""",
        "s",
        "y = Mul (given, w)",
    ),
}


def with_loss(initializers, body, *, inputs="", outputs=""):
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[3] x{inputs}) => (float loss{outputs}) <{initializers}> {{
        {body} q = Mul (y, x) loss = ReduceSum <keepdims = 0> (q) }}""")


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_stops_are_constants_of_the_gradient(name):
    initializers, body, stopped, replaced = CHOSEN[name]
    outputs = f", float[3] {stopped}" if name == "also an output" else ""
    model = with_loss(initializers, body, outputs=outputs)
    before = model.SerializeToString(deterministic=True)
    x = np.array([0.5, -1, 2], np.float32)
    graph = bngrad.differentiate(model, stop_gradient=[stopped])
    assert model.SerializeToString(deterministic=True) == before
    assert {output.name for output in graph.graph.output} == {output.name for output in model.graph.output} | {
        "w_grad"
    }
    value = np.array([2, 3, 4], np.float32) if name == "initializer" else np.exp(np.float32([1, 2, 3]))
    constant = bngrad.differentiate(
        with_loss(initializers, replaced, inputs=", float[3] given"), loss="loss", wrt=["w"]
    )
    expected = bngrad.session(constant).run(["loss", "w_grad"], {"x": x, "given": value})
    for got, of_constant in zip(bngrad.session(graph).run(["loss", "w_grad"], {"x": x}), expected, strict=True):
        np.testing.assert_allclose(got, of_constant, rtol=1e-6)


def test_a_step_trains_nothing_through_a_chosen_stop():
    initializers, body, stopped, _ = CHOSEN["initializer"]
    step = bngrad.training_step(with_loss(initializers, body), stop_gradient=[stopped])
    assert list(step.state) == ["w", "step"]
    assert DOMAIN not in {node.domain for model in (step.model, step.evaluation) for node in model.graph.node}


STATISTICS = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[N, 2, 3] x, int64 k) => (float loss, float[2] nm)
    <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 0}, float[2] v = {1, 1}> {
    copy = Identity (m) y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, copy, v)
    loss = ReduceSum <keepdims = 0> (y) }"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coppy", "'coppy' is not a value of this model; did you mean 'copy'?"),
        (
            "loss",
            r"'loss' is the loss, so that no gradient would be left; leave it out of --stop-gradient \(stop_",
        ),
        ("k", r"'k' \(int64\[\]\) has no gradient to stop; expected a float"),
        (
            "m",
            r"'m' is a running statistic of BatchNormalization node \(outputs y, nm, nv\), which is no weight",
        ),
        ("y", "depends on no weights"),
    ],
)
def test_chosen_stops_that_are_refused(name, message):
    with pytest.raises(bngrad.ModelError, match=message):
        bngrad.differentiate(onnx.parser.parse_model(STATISTICS), stop_gradient=[name])


def test_a_chosen_stop_and_the_other_builder_and_validate():
    initializers, body, stopped, _ = CHOSEN["computed"]
    model = with_loss(initializers, body)
    with pytest.raises(bngrad.UnsupportedNodeError, match=r"StopGradient.*ONNX Runtime's gradient builder"):
        bngrad.differentiate(model, stop_gradient=[stopped], builder="ort")
    report = bngrad.validate(model, against="reference", stop_gradient=[stopped])
    (check,) = (candidate for candidate in report.checks if candidate.name == "central differences")
    assert "StopGradient" in check.skipped
    assert all(other.passed for other in report.checks if not other.skipped)
