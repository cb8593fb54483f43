"""TensorFlow's batch norms -> bngrad's: matches, names that are kept, refusals."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.graph.nodes import all_nodes
from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from dialects import node_model, rewritten, run, worst_error
from pass_models import attributes_of, axes_of, content, find, ops
from tensorflow_formulas import (
    DOMAIN,
    FORWARD_OUTPUTS,
    FORWARDS,
    GRADIENT_OUTPUTS,
    GRADIENTS,
    attributes_with_defaults,
    check_gradient,
    compare,
    converted,
    forward,
    forward_inputs,
    gradient,
    gradient_inputs,
    parsed,
    shape_of,
)

DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "reference" / "dialects" / "tensorflow.md"


# ---- what is matched ----


@pytest.mark.parametrize("domain", [DOMAIN, "com.example", ""])
def test_any_domain(domain, rng):
    inputs = gradient_inputs(rng, (2, 4, 5, 3), "NHWC")
    check_gradient(inputs, domain=domain)


@pytest.mark.parametrize(
    ("data_format", "axes"),
    [("NHWC", [0, 1, 2]), ("NCHW", [0, 2, 3]), ("NDHWC", [0, 1, 2, 3]), ("NCDHW", [0, 2, 3, 4])],
)
def test_axes_and_attributes(data_format, axes, rng):
    shape = shape_of(data_format)
    inputs, forward = gradient_inputs(rng, shape, data_format), forward_inputs(rng, shape, data_format)
    node = find(converted("FusedBatchNormGradV3", inputs, data_format=data_format), "BatchNormalizationGrad")
    assert (axes_of(node), attributes_of(node)) == (axes, {"training_mode": 1})
    attributes = {"data_format": data_format, "exponential_avg_factor": 0.25, "epsilon": 0.5}
    node = find(converted("FusedBatchNormV3", forward, ["y"], **attributes), "BatchNormalizationTraining")
    assert axes_of(node) == axes
    assert attributes_of(node) == {"epsilon": 0.5, "momentum": 0.75, "unbiased_running_var": 1}


@pytest.mark.parametrize("extra", [{"T": 1, "U": 1}, {"_class": "loc:@x"}], ids=["types", "another"])
def test_other_attributes_are_not_looked_at(extra, rng):
    inputs = gradient_inputs(rng, (2, 4, 5, 3), "NHWC")
    got = run(converted("FusedBatchNormGradV3", inputs, **extra), inputs)
    compare(got, gradient(*list(inputs.values())[:5], **attributes_with_defaults({})), np.float32)


def test_sizes_that_have_only_names(rng):
    inputs = gradient_inputs(rng, (2, 4, 5, 3), "NHWC")
    model = node_model("FusedBatchNormGradV3", inputs, GRADIENT_OUTPUTS[:3], domain=DOMAIN)
    for value in model.graph.inputs[:2]:
        value.shape = ir.Shape(["N", "H", None, "C"])
    for value in model.graph.inputs[2:5]:
        value.shape = ir.Shape([None])
    got = run(rewritten(model, ImportTensorflowPass()), inputs)
    compare(got, gradient(*list(inputs.values())[:5], **attributes_with_defaults({})), np.float32)


FUNCTION = """
<ir_version: 8, opset_import: ["" : 17, "tf" : 1, "f" : 1]>
g (float[2,4,5,3] dy, float[2,4,5,3] x, float[3] scale, float[3] offset, float[3] mean, float[3] variance)
    => (float[2,4,5,3] y, float[2,4,5,3] dx) {
    y, dx = f.Block(dy, x, scale, offset, mean, variance)
}
<domain: "f", opset_import: ["" : 17, "tf" : 1]>
Block (dy, x, scale, offset, mean, variance) => (y, dx) {
    y, a, b, r1, r2, r3 = tf.FusedBatchNormV3<is_training: int = MODE>(x, scale, offset, mean, variance)
    dx, c, d, r4, r5 = tf.FusedBatchNormGradV3<is_training: int = MODE>(dy, x, scale, SAVED, r3)
}"""


@pytest.mark.parametrize(("mode", "saved"), [(1, "r1, r2"), (0, "mean, variance")], ids=["training", "frozen"])
def test_in_a_function(mode, saved, rng):
    """The types and ranks of its values are unknown, and its outputs are the function's own."""
    model = parsed(FUNCTION.replace("MODE", str(mode)).replace("SAVED", saved))
    result = rewritten(model, ImportTensorflowPass())
    assert [v.name for v in result.functions["f", "Block", ""].outputs] == ["y", "dx"]
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    dy = rng.standard_normal((2, 4, 5, 3)).astype(np.float32)
    got = run(result, inputs | {"dy": dy})
    attributes = attributes_with_defaults({"is_training": mode})
    y, _, _, mean, variance = forward(*inputs.values(), **attributes).values()
    want = gradient(dy, inputs["x"], inputs["scale"], mean, variance, **attributes)["x_backprop"]
    assert worst_error(got["y"], y) <= 1e-6
    assert worst_error(got["dx"], want) <= 1e-6


IN_A_BRANCH = """g (bool c, float[2,4,5,3] dy, float[2,4,5,3] x, float[3] s) => (float[2,4,5,3] dx) {
    dx = If(c) <
        then_branch = t () => (float[2,4,5,3] u) {
            [inner] u, a, b, d, e = tf.FusedBatchNormGradV2(dy, x, s, s, s) },
        else_branch = e () => (float[2,4,5,3] v) { v = Identity(dy) }>
}"""


def test_in_a_subgraph(rng):
    result = rewritten(parsed(IN_A_BRANCH), ImportTensorflowPass())
    inner = find(result, "BatchNormalizationGrad")
    assert (inner.name, inner.graph.name) == ("inner", "t")
    dy, x = (rng.standard_normal((2, 4, 5, 3)).astype(np.float32) for _ in range(2))
    s = rng.uniform(0.5, 1.5, 3).astype(np.float32)
    want = gradient(dy, x, s, s, s, **attributes_with_defaults({}))["x_backprop"]
    for condition, expected in ((True, want), (False, dy)):
        got = run(result, {"c": np.array(condition), "dy": dy, "x": x, "s": s})
        assert worst_error(got["dx"], expected) <= 1e-6


@pytest.mark.parametrize("op_type", [*GRADIENTS, *FORWARDS])
def test_a_second_run_changes_nothing(op_type, rng):
    of_gradient = op_type in GRADIENTS
    inputs = (
        gradient_inputs(rng, (2, 4, 5, 3), "NHWC") if of_gradient else forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    )
    inputs = dict(list(inputs.items())[: GRADIENTS.get(op_type, 5)])
    outputs = GRADIENT_OUTPUTS[:3] if of_gradient else FORWARD_OUTPUTS[: FORWARDS[op_type]]
    for mode in (0, 1):
        model = node_model(op_type, inputs, outputs, domain=DOMAIN, is_training=mode)
        assert ImportTensorflowPass()(model).modified
        after = content(model)
        assert not ImportTensorflowPass()(model).modified
        assert content(model) == after


def test_what_is_not_tensorflows_is_left_alone():
    model = parsed(
        """g (float[2,3] x) => (float[2,3] y) {
            z = tf.ReluGrad(x, x)
            y = bngrad.FusedBatchNormGrad(z) }""",
        "bngrad",
    )
    before = content(model)
    assert not ImportTensorflowPass()(model).modified
    assert content(model) == before


# ---- what is kept ----


@pytest.mark.parametrize(
    ("op_type", "mode", "successor"),
    [
        ("FusedBatchNormGradV3", 1, "BatchNormalizationGrad"),
        ("FusedBatchNormGradV3", 0, "BatchNormalizationGrad"),
        ("FusedBatchNormV3", 1, "BatchNormalizationTraining"),
        ("FusedBatchNormV3", 0, "Add"),
    ],
)
def test_names_and_texts_survive(op_type, mode, successor, rng):
    of_gradient = op_type in GRADIENTS
    inputs = (gradient_inputs if of_gradient else forward_inputs)(rng, (2, 4, 5, 3), "NHWC")
    outputs = GRADIENT_OUTPUTS if of_gradient else FORWARD_OUTPUTS
    model = node_model(op_type, inputs, outputs, domain=DOMAIN, is_training=mode)
    (node,) = model.graph
    node.doc_string = "a layer"
    node.metadata_props["from"] = "here"
    result = rewritten(model, ImportTensorflowPass())
    (kept,) = (n for n in all_nodes(result) if n.name == "foreign")
    assert (kept.op_type, kept.doc_string, kept.metadata_props) == (successor, "a layer", {"from": "here"})
    assert [v.name for v in result.graph.inputs] == [v.name for v in model.graph.inputs]
    assert [v.name for v in result.graph.outputs] == list(outputs)


LEFT_OUT = {
    "gradient-of-x-alone": ("FusedBatchNormGradV3", ["x_backprop"]),
    "gradient-of-scale-alone": ("FusedBatchNormGradV3", ["", "scale_backprop", ""]),
    "y-alone": ("FusedBatchNormV3", ["y"]),
    "saved-variance-alone": ("FusedBatchNormV3", ["", "", "", "", "reserve_space_2"]),
}


@pytest.mark.parametrize("mode", [1, 0])
@pytest.mark.parametrize("case", LEFT_OUT)
def test_outputs_that_are_left_out(case, mode, rng):
    op_type, outputs = LEFT_OUT[case]
    of_gradient = op_type in GRADIENTS
    inputs = (gradient_inputs if of_gradient else forward_inputs)(rng, (2, 4, 5, 3), "NHWC")
    got = run(converted(op_type, inputs, outputs, is_training=mode), inputs)
    attributes = attributes_with_defaults({"is_training": mode})
    want = (gradient if of_gradient else forward)(*list(inputs.values())[:5], **attributes)
    assert set(got) == {name for name in outputs if name}
    compare(got, {name: want[name] for name in got}, np.float32)


def test_the_example_of_the_documentation(rng):
    """The text in the document is a model, and becomes what the document shows."""
    before, after = re.findall(r"```onnx\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    model = ir.from_proto(onnx.parser.parse_model(before))
    result = rewritten(model, ImportTensorflowPass())
    shown = ir.from_proto(onnx.parser.parse_model(after))
    assert ops(result) == ops(shown)
    assert [n.name for n in all_nodes(result)] == [n.name for n in all_nodes(shown)]
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    dy = rng.standard_normal((2, 4, 5, 3)).astype(np.float32)
    attributes = attributes_with_defaults({"epsilon": 0.001})
    averaged = forward(*inputs.values(), **attributes, exponential_avg_factor=0.25)
    y, batch_mean, batch_variance, mean, variance = averaged.values()
    grads = gradient(dy, inputs["x"], inputs["scale"], mean, variance, **attributes)
    expected = {"y": y, "batch_mean": batch_mean, "batch_variance": batch_variance}
    expected |= dict(zip(("dx", "dscale", "doffset"), grads.values(), strict=True))
    got = run(result, inputs | {"dy": dy})
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert worst_error(got[name], value) <= 1e-6, name
