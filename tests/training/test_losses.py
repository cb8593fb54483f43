"""Appended losses: values and gradients against float64 NumPy, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import bngrad
from bngrad import L1, MSE, BCEWithLogits, CrossEntropy, Huber, SigmoidFocal
from bngrad.errors import InputError, ModelError
from bngrad.training.loss_functions import LOSS_FUNCTIONS, loss_function
from bngrad.training.losses import append_loss
from pairwise import every_value
from training.loss_cases import CASES, ELEMENTWISE, WEIGHT, case_id, cases_of, cross_entropy, reference

EPS = 2.0**-24
"""The unit roundoff of float."""


def scaled(shape, dtype="float", opset=18, more=""):
    """A model whose prediction is its input times a weight of 1, so that the gradient by it is known."""
    bits = {"float16": 15360, "bfloat16": 16256}.get(dtype, 1)  # bits, where the parser takes them
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g ({dtype}[{shape}] x) => ({dtype}[{shape}] logits) <{dtype} weight = {{{bits}}}> {{
            logits = Mul (x, weight) {more}
        }}"""
    )


def run(model, feeds):
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


SHAPES = {"2-D": (6, 5), "3-D": (4, 5, 3), "4-D": (2, 5, 3, 2)}
SYMBOLIC = {"2-D": "N, 5", "3-D": "N, 5, L", "4-D": "N, C, H, W"}


def test_every_loss_function_has_cases():
    assert set(CASES) == set(LOSS_FUNCTIONS)


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["moderate", "extreme"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("options", CASES["cross_entropy"], ids=str)
def test_cross_entropy(options, shape, scale, rng):
    size = SHAPES[shape]
    x = (scale * rng.uniform(-1, 1, size)).astype(np.float32)
    labels = rng.integers(0, 5, (size[0], *size[2:]))
    labels.flat[::4] = options.get("ignore_index", -100)
    model = bngrad.differentiate(
        scaled(SYMBOLIC[shape]), loss_fn=loss_function("cross_entropy", **options), wrt=["x"]
    )
    check(run(model, {"x": x, "labels": labels}), reference("cross_entropy", x, labels, options), scale)


@pytest.mark.parametrize("scale", [1.0, 1e4], ids=["moderate", "extreme"])
@pytest.mark.parametrize("size", [(5, 4), (2, 3, 4), (1, 4)], ids=str)
@pytest.mark.parametrize("case", cases_of(*ELEMENTWISE), ids=case_id)
def test_elementwise(case, size, scale, rng):
    name, options = case
    x = (scale * rng.uniform(-1, 1, size)).astype(np.float32)
    x.flat[:2] = 0  # |x| and max(x, 0) are not differentiable there, the loss is
    target = rng.uniform(0, 1, size).astype(np.float32)
    target.flat[1::3] = 1
    shape = ", ".join(["N", *map(str, size[1:])])
    model = bngrad.differentiate(scaled(shape), loss_fn=loss_function(name, **options), wrt=["x"])
    check(run(model, {"x": x, "target": target}), reference(name, x, target, options), scale)


def check(outputs, want, scale):
    """The bound: a few roundings of terms of the scale, for each of at most 60 terms."""
    loss, gradient = want
    assert outputs["loss"].shape == ()
    terms = max(1.0, np.abs(gradient).sum()) * scale
    assert abs(outputs["loss"] - loss) <= 64 * EPS * max(abs(loss), terms)
    assert outputs["x_grad"].dtype == np.float32
    absolute = 32 * EPS * max(1.0, np.abs(gradient).max())
    np.testing.assert_allclose(outputs["x_grad"], gradient, rtol=64 * EPS * np.sqrt(scale), atol=absolute)


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"weight": WEIGHT}], ids=str)
def test_all_labels_ignored_is_nan(options):
    """As in PyTorch: the mean over no sample is NaN, its gradient 0."""
    model = bngrad.differentiate(scaled("N, 5"), loss_fn=CrossEntropy(**options), wrt=["x"])
    outputs = run(model, {"x": np.ones((2, 5), np.float32), "labels": np.int64([-100, -100])})
    assert np.isnan(outputs["loss"])


@pytest.mark.parametrize("label", [-1, -5, -101, 5, 100])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1, "weight": WEIGHT}], ids=str)
def test_a_label_out_of_bounds_fails(label, options):
    """Negative ones, too, which ONNX's ops count from the last class."""
    model = append_loss(ir.from_proto(scaled("N, 5")), CrossEntropy(**options)).model
    with pytest.raises(Exception, match=r"out of data bounds|Out of range value in index"):
        run(model, {"x": np.ones((2, 5), np.float32), "labels": np.int64([0, label])})


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_a_target_is_not_broadcast(name):
    model = append_loss(ir.from_proto(scaled("N, 4")), name).model
    with pytest.raises(Exception, match=r"[Rr]eshape"):
        run(model, {"x": np.ones((3, 4), np.float32), "target": np.ones((1, 4), np.float32)})


@every_value(point=[(0, 0), (-1e-3, 1), (-50, 0), (50, 1), (800, 0), (800, 1), (-800, 1)], opset=[17, 18, 22])
def test_bce_of_double_logits(point, opset):
    """It neither overflows nor cancels, in the step and in its evaluation graph."""
    x, target = point
    model, data = scaled("N, 1", "double", opset), {"x": np.float64([[x]]), "target": np.float64([[target]])}
    loss, gradient = reference("bce_with_logits", *data.values(), {})
    outputs = run(bngrad.differentiate(model, loss_fn="bce_with_logits", wrt=["x"]), data)
    np.testing.assert_allclose(outputs["loss"], loss, rtol=1e-14)
    np.testing.assert_allclose(outputs["x_grad"], gradient, rtol=1e-14, atol=1e-17)
    trainer = bngrad.Trainer(bngrad.training_step(model, loss_fn="bce_with_logits"), learning_rate=0)
    assert trainer.step(**data) == outputs["loss"] == trainer.evaluate(**data)["loss"]


TYPES = {
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


@pytest.mark.parametrize("name", LOSS_FUNCTIONS)
@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype, name):
    """The target has the prediction's type; 16 bits are computed in float."""
    appended = append_loss(ir.from_proto(scaled("N, 5", dtype)), name)
    inputs = {value.name: value for value in appended.model.graph.inputs}
    (loss,) = (value for value in appended.model.graph.outputs if value.name == appended.loss)
    assert loss.dtype == (ir.DataType.DOUBLE if dtype == "double" else ir.DataType.FLOAT)
    of_target = ir.DataType.INT64 if name == "cross_entropy" else ir.DataType[dtype.upper()]
    assert inputs[appended.target].dtype == of_target
    onnx.checker.check_model(ir.to_proto(appended.model), full_check=True)
    if dtype != "bfloat16":  # which ONNX Runtime's CPU kernels lack
        x = np.linspace(-2, 2, 10).reshape(2, 5).astype(TYPES[dtype])
        target = np.int64([1, 4]) if name == "cross_entropy" else np.full_like(x, 0.25)
        model = bngrad.differentiate(scaled("N, 5", dtype), loss_fn=name, wrt=["x"])
        outputs = run(model, {"x": x, appended.target: target})
        loss, gradient = reference(name, x, target, {})
        tolerance = 1e-13 if dtype == "double" else 2**-10
        np.testing.assert_allclose(outputs["loss"], loss, rtol=min(tolerance, 1e-6))
        np.testing.assert_allclose(outputs["x_grad"].astype(float), gradient, rtol=tolerance, atol=tolerance / 8)


def test_shapes_and_names():
    """Symbolic dimensions stay, taken names get a number, and the user's model is untouched."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 5, L] x, int64[N] labels) => (float[N, 5, L] y, int64[N] loss) {
        y = Neg (x)
        loss = Neg (labels)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    before = ir.to_proto(model).SerializeToString()
    appended = append_loss(model, "cross_entropy")
    assert (appended.loss, appended.target, appended.warnings) == ("loss_1", "labels_1", [])
    new = appended.model.graph.inputs[-1]
    assert [str(size) for size in new.shape] == ["N", "L"]
    assert ir.to_proto(model).SerializeToString() == before


def test_functions_stay():
    text = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
    g (float[N, 5] x) => (float[N, 5] y) { y = local.twice (x) }
    <domain: "local", opset_import: ["" : 18]> twice (a) => (b) { b = Add (a, a) }"""
    model = append_loss(ir.from_proto(onnx.parser.parse_model(text)), "mse").model
    assert [key[1] for key in model.functions] == ["twice"]
    assert run(model, {"x": np.ones((1, 5), np.float32), "target": np.zeros((1, 5), np.float32)})["loss"] == 4


@pytest.mark.parametrize("opset", [7, 11, 13, 15, 18, 21])
def test_opsets(opset):
    model = bngrad.differentiate(scaled("N, 5", opset=opset), loss_fn=CrossEntropy(label_smoothing=0.1))
    outputs = run(model, {"x": np.eye(5, dtype=np.float32), "labels": np.arange(5)})
    want, _ = cross_entropy(np.eye(5), np.arange(5), {"label_smoothing": 0.1})
    assert abs(outputs["loss"] - want) < 1e-6


ENDS = {
    "softmax": ("Softmax (a)", {"cross_entropy", "bce_with_logits"}),
    "sigmoid": ("Sigmoid (a)", {"cross_entropy", "bce_with_logits"}),
    "log-softmax": ("LogSoftmax <axis = 1> (a)", {"bce_with_logits"}),
    "softmax, reshaped": ("Identity (b)\n s = Softmax (a)\n", {"cross_entropy", "bce_with_logits"}),
    "no softmax": ("Relu (a)", set()),
}


@pytest.mark.parametrize("name", ["cross_entropy", "mse", "bce_with_logits"])
@pytest.mark.parametrize("end", ENDS)
def test_normalized_twice(end, name):
    """Cross entropy of log-probabilities is right: the log-softmax of a log-softmax is itself."""
    last, warned = ENDS[end]
    last = "s = Softmax (a) b = Cast <to = 1> (s) y = Identity (b)" if "(b)" in last else f"y = {last}"
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[N, 5] x) => (float[N, 5] y) {{ a = Neg (x) {last} }}"""
    appended = append_loss(ir.from_proto(onnx.parser.parse_model(text)), name)
    assert bool(appended.warnings) == (name in warned)
    assert append_loss(ir.from_proto(onnx.parser.parse_model(text)), name, prediction="a").warnings == []
    for warning in appended.warnings:
        assert "'y' is the output of S" in warning or "'y' is the output of L" in warning


def test_normalized_in_a_function():
    text = """<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
    g (float[N, 5] x) => (float[N, 5] y) { y = local.probabilities (x) }
    <domain: "local", opset_import: ["" : 18]> probabilities (a) => (b) { b = Softmax (a) }"""
    (warning,) = append_loss(ir.from_proto(onnx.parser.parse_model(text)), "cross_entropy").warnings
    assert "Softmax" in warning


def test_a_warning_is_issued():
    model = scaled("N, 5", more="p = Softmax (logits)")
    model.graph.output[0].name = "p"
    with pytest.warns(bngrad.BngradWarning, match="expects logits") as caught:
        training_graph = bngrad.differentiate(model, loss_fn="cross_entropy", wrt=["x"])
    assert bngrad.read_training_graph(training_graph).warnings == [str(warning.message) for warning in caught]


TWO = """g (float[N, 5] x, float[N, 1] s) => (float[N, 5] y, float[N, 1] z, float[N, 2] t, float q) {
    y = Neg (x)
    z = Neg (s)
    o = Constant <value_ints = [0, 1]> ()
    t = Gather <axis = 1> (x, o)
    q = ReduceSum <keepdims = 0> (x)
}"""
REFUSED = {
    "several outputs": (TWO, "mse", None, ModelError, r"4 float outputs.*--prediction.*'y' \(float\[N, 5\]\)"),
    "unknown prediction": (TWO, "mse", "yy", ModelError, r"'yy' is not a value.*did you mean 'y'"),
    "an input": (TWO, "mse", "x", ModelError, "'x' is not a value"),
    "integers": (TWO, "mse", "o", ModelError, r"prediction 'o' \(int64\[2\]\).*expected a float"),
    "a scalar": (TWO, "mse", "q", ModelError, r"prediction 'q' \(float\[\]\) is a scalar"),
    "one class": (TWO, "cross_entropy", "z", ModelError, r"'z' \(float\[N, 1\]\) has one class.*bce_with_logits"),
    "no classes": (
        "g (float[N] x) => (float[N] y) { y = Neg (x) }",
        "cross_entropy", None, ModelError, r"'y' \(float\[N\]\) has no classes",
    ),
    "no output": (
        "g (int64[N] x) => (int64[N] y) { y = Neg (x) }",
        "mse", None, ModelError,
        r"no float outputs \(its outputs are 'y' \(int64\[N\]\)\); name the value that .* --prediction",
    ),
    "unknown rank": (
        "g (float[N] x, int64[n] s) => (float[] y) { y = Reshape (x, s) }",
        "mse", "y", ModelError, "scalar|unknown rank",
    ),
    "unknown loss": (TWO, "hinge", "y", InputError, "loss function is 'hinge'; expected one of cross_entropy"),
    "not a loss": (TWO, 3, "y", InputError, "loss_fn has type int"),
    "weights of another model": (TWO, CrossEntropy(weight=[1, 2]), "y", InputError, "2 elements; expected 5"),
    "pos_weight of another model": (
        TWO, BCEWithLogits(pos_weight=[1, 2]), "y", InputError, r"pos_weight has shape \[2\].*\[N, 5\]",
    ),
    "weights that enlarge": (
        TWO, BCEWithLogits(weight=np.ones((2, 1, 5))), "y", InputError, r"weight has shape \[2, 1, 5\]",
    ),
    "a training graph": (
        "g (float[4] dy, float[4] y) => (float[4] x) { x = com.microsoft.ReluGrad (dy, y) }",
        "mse", None, ModelError, "training graph already",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case):
    text, loss_fn, prediction, error, message = REFUSED[case]
    header = '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
    with pytest.raises(error, match=message):
        append_loss(ir.from_proto(onnx.parser.parse_model(header + text)), loss_fn, prediction=prediction)


OPTIONS = {
    "reduction": (CrossEntropy, {"reduction": "none"}, "reduction is 'none'; expected one of mean, sum"),
    "smoothing above 1": (CrossEntropy, {"label_smoothing": 1.5}, "label_smoothing is 1.5; expected"),
    "smoothing NaN": (CrossEntropy, {"label_smoothing": float("nan")}, "label_smoothing is nan"),
    "index a float": (CrossEntropy, {"ignore_index": 1.0}, "ignore_index is 1.0; expected an integer"),
    "weights of two dimensions": (CrossEntropy, {"weight": [[1.0]]}, r"weight is float64\[1, 1\]; expected"),
    "weights NaN": (CrossEntropy, {"weight": [np.nan, 1]}, "expected a vector of finite numbers"),
    "weights of text": (BCEWithLogits, {"weight": ["a"]}, "expected finite numbers"),
    "pos_weight infinite": (BCEWithLogits, {"pos_weight": np.inf}, "pos_weight is float64"),
    "delta 0": (Huber, {"delta": 0}, "delta is 0.0; expected a finite number above 0"),
    "delta infinite": (Huber, {"delta": float("inf")}, "delta is inf; expected a finite number above 0"),
    "delta text": (Huber, {"delta": "1"}, "delta is '1'; expected a number"),
    "alpha": (SigmoidFocal, {"alpha": 1.5}, "alpha is 1.5; expected a number from 0 to 1, or -1 for no weights"),
    "gamma": (SigmoidFocal, {"gamma": -1}, "gamma is -1.0; expected a finite number, at least 0"),
    "mse": (MSE, {"reduction": "avg"}, "reduction is 'avg'"),
    "l1": (L1, {"reduction": None}, "reduction is None"),
}  # fmt: skip


@pytest.mark.parametrize("case", OPTIONS)
def test_option_refusals(case):
    loss, options, message = OPTIONS[case]
    with pytest.raises(InputError, match=message):
        loss(**options)


def test_an_option_of_another_loss():
    with pytest.raises(InputError, match="loss function mse has no label_smoothing; its options are reduction"):
        loss_function("mse", label_smoothing=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "loss", "loss_fn": "mse"}, "expected either --loss"),
        ({"prediction": "logits"}, "without a loss function"),
    ],
    ids=["two losses", "no loss function"],
)
def test_options_that_exclude_each_other(options, message):
    with pytest.raises(InputError, match=message):
        bngrad.differentiate(scaled("N, 5"), **options)
