"""The BatchNormalization of five or six outputs that tf2onnx makes of a forward node whose statistics are used."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from bngrad.errors import UnsupportedNodeError
from bngrad.passes.imports.tensorflow.fused_batch_norm import ImportTensorflowPass
from dialects import rewritten, run, worst_error
from pass_models import content, find
from tensorflow_formulas import forward, forward_inputs, gradient

# As tf2onnx 1.17.0 converts NHWC: the data is transposed before the node, not before the gradient.
# If nothing of the old averages is kept, their place is taken by the batch's own, in primitives.
TEXT = """
<ir_version: 8, opset_import: ["" : 17, "ai.onnx.converters.tensorflow" : 1]>
tf2onnx (float[2,4,5,3] dy, float[2,4,5,3] x, float[3] scale, float[3] offset, float[3] mean, float[3] variance)
    => (float[2,4,5,3] y OUTPUTS) <int64[3] over = {0, 2, 3}> {
    [transpose] x_nchw = Transpose<perm = [0, 3, 1, 2]>(x)
    STATISTICS
    [FusedBatchNormV3] y_nchw, bm, bv, r1, r2, r3 =
        BatchNormalization<epsilon = 0.001>(x_nchw, scale, offset, MEAN)
    [back] y = Transpose<perm = [0, 2, 3, 1]>(y_nchw)
    GRADIENT
}"""
OF_X = """
    shape = Shape(x_nchw)
    reduced = Gather(shape, over)
    count = ReduceProd<axes = [0], keepdims = 0>(reduced)
    mean_kept = ReduceMean<axes = [0, 2, 3], keepdims = 1>(x_nchw)
    centered = Sub(x_nchw, mean_kept)
    squares = ReduceSumSquare<axes = [0, 2, 3], keepdims = 0>(centered)
    mean_of_x = Squeeze(mean_kept, over)
    count_float = Cast<to = 1>(count)
    var_of_x = Div(squares, count_float)
"""
GRADIENT = """
    [gradient] dx, ds, do, r4, r5 = ai.onnx.converters.tensorflow.FusedBatchNormGradV3
        <data_format = "NHWC", epsilon = 0.001, is_training = MODE>(dy, x, scale, SAVED, r3)
"""
OUTPUTS = {"dx": "float[2,4,5,3]", "ds": "float[3]", "do": "float[3]"}
AVERAGES = {"bm": "float[3]", "bv": "float[3]"}


def converted_text(*, of_x, mode, outputs):
    gradient_node = "" if mode is None else GRADIENT.replace("MODE", str(mode))
    return (
        TEXT.replace("OUTPUTS", "".join(f", {of_type} {name}" for name, of_type in outputs.items()))
        .replace("STATISTICS", OF_X if of_x else "")
        .replace("MEAN", "mean_of_x, var_of_x" if of_x else "mean, variance")
        .replace("GRADIENT", gradient_node.replace("SAVED", "r1, r2" if mode else "mean, variance"))
    )


def model_of(text):
    return ir.from_proto(onnx.parser.parse_model(text))


def feeds_for(rng):
    inputs = forward_inputs(rng, (2, 4, 5, 3), "NHWC")
    return inputs | {"dy": rng.standard_normal((2, 4, 5, 3)).astype(np.float32)}


def check(model, feeds, *, is_training, averages):
    got = run(model, feeds)
    attributes = {"epsilon": 0.001, "is_training": is_training, "data_format": "NHWC"}
    arrays = [feeds[name] for name in ("x", "scale", "offset", "mean", "variance")]
    y, batch_mean, batch_variance, mean, variance = forward(*arrays, **attributes).values()
    expected = {"y": y}
    if averages:
        expected |= {"bm": batch_mean, "bv": batch_variance}
    if "dx" in got:
        grads = gradient(feeds["dy"], feeds["x"], feeds["scale"], mean, variance, **attributes)
        expected |= dict(zip(("dx", "ds", "do"), grads.values(), strict=True))
    assert set(got) == set(expected)
    for name, value in expected.items():
        assert worst_error(got[name], value) <= 1e-6, name


ACCEPTED = {
    "training": {"of_x": True, "mode": 1, "outputs": OUTPUTS | AVERAGES},
    "training-without-averages": {"of_x": True, "mode": 1, "outputs": OUTPUTS},
    "training-with-a-lost-factor": {"of_x": False, "mode": 1, "outputs": OUTPUTS},
    "training-without-a-gradient": {"of_x": True, "mode": None, "outputs": AVERAGES},
    "frozen": {"of_x": False, "mode": 0, "outputs": OUTPUTS | AVERAGES},
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_the_graph_still_tells(case, rng):
    told = ACCEPTED[case]
    model = rewritten(model_of(converted_text(**told)), ImportTensorflowPass())
    check(model, feeds_for(rng), is_training=told["mode"] != 0, averages="bm" in told["outputs"])


def test_the_gradient_takes_what_the_node_saved():
    model = rewritten(model_of(converted_text(**ACCEPTED["training"])), ImportTensorflowPass())
    training, backward = (find(model, f"BatchNormalization{op}") for op in ("Training", "Grad"))
    assert training.name == "FusedBatchNormV3"
    assert list(backward.inputs[3:5]) == list(training.outputs[3:5])


def test_version_2_has_five_outputs(rng):
    text = converted_text(**ACCEPTED["training"]).replace("FusedBatchNormGradV3", "FusedBatchNormGradV2")
    text = text.replace("r1, r2, r3 =", "r1, r2 =").replace("r1, r2, r3)", "r1, r2)")
    check(rewritten(model_of(text), ImportTensorflowPass()), feeds_for(rng), is_training=True, averages=True)


def test_the_default_epsilon_is_that_of_onnx():
    text = converted_text(**ACCEPTED["training-without-a-gradient"]).replace("<epsilon = 0.001>", "")
    model = rewritten(model_of(text), ImportTensorflowPass())
    assert find(model, "BatchNormalizationTraining").attributes["epsilon"].value == pytest.approx(1e-5)


TWO_MODES = converted_text(of_x=False, mode=1, outputs=OUTPUTS).replace(
    "[gradient]",
    "dx2, ds2, do2, r6, r7 = ai.onnx.converters.tensorflow.FusedBatchNormGradV3<is_training = 0>"
    "(dy, x, scale, mean, variance, r3)\n    [gradient]",
)
ADVICE = "; convert with custom_ops that keep the op FusedBatchNorm, V2 or V3"
NODE = "BatchNormalization node 'FusedBatchNormV3' (outputs y_nchw, bm, bv, r1, r2, r3) cannot be rewritten: "
REFUSED = {
    "no-gradient-tells": (
        converted_text(of_x=False, mode=None, outputs=AVERAGES),
        f"{NODE}its is_training was lost, and no gradient that reads a reserve output determines it{ADVICE}",
    ),
    "gradients-of-both-modes": (
        TWO_MODES,
        f"{NODE}its is_training was lost, and gradients of both modes read its reserve outputs{ADVICE}",
    ),
    "averages-by-a-lost-factor": (
        converted_text(of_x=False, mode=1, outputs=OUTPUTS | {"bv": "float[3]"}),
        f"{NODE}its exponential_avg_factor was lost, and its output 'bm' or 'bv', a running average, is used"
        + ADVICE,
    ),
    "a-mean-of-other-data": (
        converted_text(of_x=True, mode=None, outputs=AVERAGES).replace(
            "keepdims = 1>(x_nchw)", "keepdims = 1>(dy)"
        ),
        f"{NODE}its is_training was lost",
    ),
    "a-mean-of-arithmetic": (
        converted_text(of_x=True, mode=None, outputs=AVERAGES).replace("Squeeze(mean_kept, over)", "Neg(mean)"),
        f"{NODE}its is_training was lost",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_nothing_tells_is_refused(case):
    text, reason = REFUSED[case]
    model = model_of(text)
    before = content(model)
    with pytest.raises(UnsupportedNodeError) as error:
        ImportTensorflowPass()(model)
    assert reason in str(error.value)
    assert content(model) == before


def test_a_batch_norm_that_onnx_knows_is_left_alone():
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2,3,4] x, float[3] p) => (float[2,3,4] y, float[2,3,4] z) {
        y = BatchNormalization(x, p, p, p, p)
        z, m, v = BatchNormalization<training_mode = 1>(x, p, p, p, p)
    }"""
    model = model_of(text)
    assert not ImportTensorflowPass()(model).modified
