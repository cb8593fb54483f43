"""Forward models with TensorFlow's own batch norm, as tf2onnx keeps it: differentiated without a rewrite first."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.runtime.session import IMPLEMENTATIONS
from bngrad.training.differentiate import differentiate
from bngrad.validation.float64 import evaluate
from bngrad.validation.options import ValidateOptions
from bngrad.validation.validate import validate

TF = "ai.onnx.converters.tensorflow"
VALUES = "float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0.5, 1}, float[2] v = {1, 2}"
X = "float[N, 2, 3, 2] x"


def model(attributes, *, values=VALUES, outputs="float loss", op="FusedBatchNormV3"):
    names = {"FusedBatchNormV3": "y, p, q, r, t, u", "FusedBatchNorm": "y, p, q, r, t"}[op]
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17, "{TF}" : 1]>
g ({X}) => ({outputs}) <{values}> {{
    [bn] {names} = {TF}.{op} <{attributes}> (x, s, b, m, v)
    h = Sigmoid (y)
    loss = ReduceMean <keepdims = 0> (h)
}}""")


def onnx_model(attributes):
    """The same network with ONNX's batch norm: its data has the channels in dimension 1."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
g ({X}) => (float loss) <{VALUES}> {{
    c = Transpose <perm = [0, 3, 1, 2]> (x)
    [bn] y{", p, q" if "training_mode" in attributes else ""} = BatchNormalization <{attributes}> (c, s, b, m, v)
    h = Sigmoid (y)
    loss = ReduceMean <keepdims = 0> (h)
}}""")


FACTOR = 0.25
# TensorFlow's and ONNX's attributes; ONNX's momentum is the weight of the old statistics
MODES = {
    "training": (f"is_training = 1, epsilon = 0.001, exponential_avg_factor = {FACTOR}", "training_mode = 1"),
    "frozen": ("is_training = 0, epsilon = 0.001", ""),
}


def both(mode):
    theirs, ours = MODES[mode]
    ours = ", ".join(filter(None, [ours, "epsilon = 0.001", f"momentum = {1 - FACTOR}"]))
    return differentiate(ir.from_proto(model(theirs))), differentiate(
        ir.from_proto(onnx_model(ours)), running_variance="unbiased"
    )


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("mode", MODES)
def test_as_onnx_batch_norm(mode, implementation, rng):
    theirs, ours = both(mode)
    assert list(theirs.gradients) == ["s", "b"] == list(ours.gradients)
    assert list(theirs.running_statistics) == list(ours.running_statistics)
    x = (2 * rng.standard_normal((4, 2, 3, 2)) + 1).astype(np.float32)
    got, want = (
        bngrad.session(graph.model, implementation).run(
            [graph.loss, *graph.gradients.values(), *graph.running_statistics.values()], {"x": x}
        )
        for graph in (theirs, ours)
    )
    for actual, other in zip(got, want, strict=True):
        np.testing.assert_allclose(actual, other, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("mode", MODES)
def test_central_differences(mode, rng):
    feeds = {"x": rng.standard_normal((3, 2, 3, 2)).astype(np.float32)}
    forward = ir.from_proto(model(MODES[mode][0]))
    options = ValidateOptions(against="numeric", implementation="function", wrt=["x", "s", "b"], inputs=feeds)
    report = validate(forward, options)
    (check,) = (check for check in report.checks if check.name == "central differences")
    assert len(check.rows) == 3
    assert not check.failures, check.failures


@pytest.mark.parametrize("outputs", ["float loss", "float loss, float[2] p, float[2] q"])
@pytest.mark.parametrize("factor", [0.25, 0.001])
def test_running_statistics(factor, outputs, rng):
    """1 - momentum cannot represent 0.001 in float32, so the average is spelled out."""
    forward = model(f"is_training = 1, exponential_avg_factor = {factor}", outputs=outputs)
    graph = differentiate(ir.from_proto(forward))
    assert graph.running_statistics == {"m": "p", "v": "q"}
    x = rng.standard_normal((4, 2, 3, 2)).astype(np.float32)
    got = evaluate(ir.to_proto(graph.model), {"x": x}, ["p", "q"])
    rows = x.reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(got["p"], np.array([0.5, 1]) * (1 - factor) + factor * rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(got["q"], np.array([1, 2]) * (1 - factor) + factor * rows.var(0, ddof=1), rtol=1e-6)


def test_statistics_of_one_channel_are_no_loss():
    values = "float[1] s = {1}, float[1] b = {0}, float[1] m = {0.5}, float[1] v = {1}"
    forward = model("is_training = 1, exponential_avg_factor = 0.001", values=values)
    forward.graph.input[0].type.tensor_type.shape.dim[3].dim_value = 1
    assert differentiate(ir.from_proto(forward)).loss == "loss"


def test_nothing_is_kept_with_a_factor_of_1():
    graph = differentiate(ir.from_proto(model("is_training = 1")))
    assert graph.running_statistics == {}
    assert "running statistics are not updated by 1 batch norm" in graph.warnings[0]


@pytest.mark.parametrize(("options", "training"), [({}, True), ({"frozen": ["bn"]}, False)])
def test_modes_can_be_chosen(options, training):
    graph = differentiate(ir.from_proto(model(MODES["training"][0])), **options)
    assert bool(graph.running_statistics) == training
    assert graph.warnings == []
    back = differentiate(
        ir.from_proto(model(MODES["frozen"][0] + f", exponential_avg_factor = {FACTOR}")), training=["*"]
    )
    assert back.running_statistics == {"m": "p", "v": "q"}


@pytest.mark.parametrize("target", ["stock", "training", "ort"])
def test_targets(target):
    graph = differentiate(ir.from_proto(model(MODES["training"][0])), target=target)
    domains = {node.domain for node in graph.model.graph}
    assert TF not in domains
    assert ("bngrad" in domains) == (target != "ort")


def test_a_model_that_was_rewritten_first(rng):
    forward = model(MODES["training"][0], outputs="float loss, float[2] p, float[2] q")
    x = rng.standard_normal((4, 2, 3, 2)).astype(np.float32)
    direct, rewritten = (differentiate(ir.from_proto(source)) for source in (forward, bngrad.rewrite(forward)))
    assert rewritten.gradients == direct.gradients
    assert rewritten.running_statistics == direct.running_statistics
    actual, other = (evaluate(ir.to_proto(graph.model), {"x": x}) for graph in (direct, rewritten))
    for name in direct.gradients.values():
        np.testing.assert_allclose(actual[name], other[name], rtol=1e-12)


REFUSED = {
    "a format that does not exist": (
        model('is_training = 1, data_format = "NWHC"'),
        {},
        UnsupportedNodeError,
        f"{TF}.FusedBatchNormV3 node 'bn' (outputs y, p, q, r, t, u) cannot be rewritten: ",
    ),
    "a pattern": (
        model("is_training = 1"),
        {"frozen": ["nb"]},
        ModelError,
        "'nb' is not a batch norm of this model",
    ),
    "a statistic": (
        model(MODES["training"][0]),
        {"wrt": ["m"]},
        ModelError,
        "does not depend on 'm' in a way that has a gradient: it is a running statistic of batch norm 'bn'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    forward, options, error, message = REFUSED[name]
    with pytest.raises(error, match=re.escape(message)):
        differentiate(ir.from_proto(forward), **options)
