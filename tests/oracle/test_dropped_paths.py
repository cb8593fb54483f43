"""Paths from x to the loss that ORT's gradient builder drops, and neighbours of them that it does not.

x reaches the loss a second way, so that the builder has a gradient to give in any case.
"""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from autodiff.gradient_cases import in_standard_onnx
from bngrad.autodiff.training_graph import training_graph
from bngrad.cli import run
from bngrad.errors import ModelError, OracleError, UnsupportedNodeError
from bngrad.oracle import preparation, prepare_forward
from bngrad.validation.float64 import evaluate
from oracle_cases import gradients, parse

pytestmark = pytest.mark.usefixtures("shared_oracle")

X = np.array([[0.5, -1.5, 2.1], [0.3, 0.7, -0.4]], np.float32)
MEAN = "m = ReduceMean <keepdims = 0> (x)"
MEANS = "a = Constant <value_ints = [0]> () m = ReduceMean <keepdims = 0> (x, a)"
LABELS = "int64[2] t = {0, 2}"
SCALE = "float[3] s = {1, 2, 3}"
NORM = f"{SCALE}, float[3] b = {{4, 5, 6}}"
STATISTICS = "float[3] rm = {0.1, 0.2, 0.3}, float[3] rv = {1.5, 2.5, 3.5}"
BATCH_NORM = "n, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, rm, rv)"
LAYER_NORM = "n, mean, inv = LayerNormalization (x, s, b)"
RMS_NORM = "n, inv = SimplifiedLayerNormalization <axis = -1> (x, s)"
K = "float[2, 3] k = {1.5, 2, 3, 4, 5, 6}"
VALUES = "n = Neg (m) i = Unsqueeze (m, z) j = Unsqueeze (n, z) v = Concat <axis = 0> (i, j)"
CORNERS = "i = Unsqueeze (m, z) v = Concat <axis = 0> (i, i, i, i)"
QUANTIZED = "uint8 z = {128}"
IN_BRANCH = """y = If (flag) <
    then_branch = g () => (float[2, 3] p) {{ {} p = Clip (x, v) }},
    else_branch = h () => (float[2, 3] q) {{ q = Neg (x) }}>"""

EACH = "<body = g (float[2, 3] e, float[2, 3] w) => (float[2, 3] r) { r = Mul (e, w) }>"


def two_ways(body, initializers="float u = {0.5}", opset=18):
    weight = "float[2, 3] xc = {1, 1, 1, 2, 2, 2}"
    return parse(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g (float[2, 3] x) => (float loss) <{initializers}, {weight}> {{
            {body}
            sine = Sin (y) one = ReduceSum <keepdims = 0> (sine)
            product = Mul (x, xc) other = ReduceSum <keepdims = 0> (product)
            loss = Add (one, other)
        }}"""
    )


INPUT = "has input {}, '{}', which is a value of --wrt or depends on one .* takes it for a constant; {}"
OURS = "use --builder bngrad"
ALONE = "leave out what it depends on"


def dropped(body, initializers, op, index, name, remedy=OURS, *, opset=18):
    return two_ways(body, initializers, opset), f"^{op} node '.+' .* {INPUT.format(index, name, remedy)}"


def sends_nothing(body, initializers, op, index, name, remedy=OURS):
    message = f"^{op} node '.+' .* has output {index}, '{name}', which the loss depends on: .*; {remedy}"
    return two_ways(body, initializers), message


def rounding(body):
    message = "^QuantizeLinear node 'q' .* rounds 'x', .* ignores the rounding; use --builder bngrad"
    return two_ways(body, f"{QUANTIZED}, float u = {{0.05}}"), message


REFUSED = {
    "value of Pad": dropped(f"{MEAN} y = Pad (x, p, m)", "int64[4] p = {1, 0, 0, 1}", "Pad", 2, "m"),
    "value of Pad, older": dropped(
        "a = ReduceMean <keepdims = 0> (x) y = Pad (x, p, a)", "int64[4] p = {1, 0, 0, 1}", "Pad", 2, "a", opset=13
    ),
    "lower limit": dropped(f"{MEAN} y = Clip (x, m)", QUANTIZED, "Clip", 1, "m"),
    "upper limit": dropped(f"{MEAN} y = Clip (x, , m)", QUANTIZED, "Clip", 2, "m"),
    "exponent": dropped("e = Exp (x) y = Pow (e, x)", QUANTIZED, "Pow", 1, "x"),
    "start of Range": dropped(f"{MEAN} y = Range (m, l, d)", "float l = {3}, float d = {1}", "Range", 0, "m"),
    "step of Range": dropped(
        f"{MEAN} e = Exp (m) y = Range (f, l, e)", "float f = {0}, float l = {4}", "Range", 2, "e"
    ),
    "values of OneHot": dropped(
        f"{MEAN} {VALUES} y = OneHot (t, d, v)",
        f"{LABELS}, int64 d = {{3}}, int64[1] z = {{0}}",
        "OneHot",
        2,
        "v",
    ),
    "class weights": dropped(
        f'{MEANS} w = Exp (m) y = SoftmaxCrossEntropyLoss <reduction = "sum"> (x, t, w)',
        LABELS,
        "SoftmaxCrossEntropyLoss",
        2,
        "w",
    ),
    "ratio": dropped(
        f"{MEAN} r = Sigmoid (m) y, mask = Dropout <seed = 1> (x, r, on)",
        "bool on = {1}",
        "Dropout",
        1,
        "r",
        ALONE,
    ),
    "scales of Resize": dropped(
        f"{MEAN} i = Unsqueeze (m, z) j = Exp (i) v = Concat <axis = 0> (j, j) y = Resize (x, , v)",
        "int64[1] z = {0}",
        "Resize",
        2,
        "v",
        ALONE,
    ),
    "region of Resize": dropped(
        f"""{MEAN} {CORNERS}
        y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, v, scales)""",
        "int64[1] z = {0}, float[2] scales = {2, 2}",
        "Resize",
        1,
        "v",
        ALONE,
    ),
    "scale of DequantizeLinear": dropped(
        f"{MEAN} e = Exp (m) q = QuantizeLinear (k, e, z) y = DequantizeLinear (q, e, z)",
        f"{K}, {QUANTIZED}",
        "DequantizeLinear",
        1,
        "e",
    ),
    "a sequence": dropped(
        "q = SequenceConstruct (u, x) y = SequenceAt (q, i)",
        "int64 i = {1}, float[2, 3] u = {1, 1, 1, 1, 1, 1}",
        "SequenceConstruct",
        1,
        "x",
        ALONE,
    ),
    "a sequence grown": dropped(
        "o = SequenceEmpty () q = SequenceInsert (o, x) y = SequenceAt (q, i)",
        "int64 i = {0}",
        "SequenceInsert",
        1,
        "x",
        ALONE,
    ),
    "a sequence of parts": dropped(
        "q = SplitToSequence <axis = 0> (x) y = SequenceAt (q, i)",
        "int64 i = {1}",
        "SplitToSequence",
        0,
        "x",
        ALONE,
    ),
    "a sequence, element by element": dropped(
        f"p = SequenceConstruct (k, k) q = SequenceMap (p, x) {EACH} y = SequenceAt (q, i)",
        f"int64 i = {{1}}, {K}",
        "SequenceMap",
        1,
        "x",
        ALONE,
        opset=17,
    ),
    "an optional": dropped("q = Optional (x) y = OptionalGetElement (q)", QUANTIZED, "Optional", 0, "x", ALONE),
    "log probabilities": sends_nothing(
        "l, p = SoftmaxCrossEntropyLoss (x, t) y = Add (p, l)", LABELS, "SoftmaxCrossEntropyLoss", 1, "p"
    ),
    "only log probabilities": sends_nothing(
        "l, y = SoftmaxCrossEntropyLoss (x, t)", LABELS, "SoftmaxCrossEntropyLoss", 1, "y"
    ),
    "new running mean": sends_nothing(
        f"{BATCH_NORM} y = Add (n, nm)", f"{NORM}, {STATISTICS}", "BatchNormalization", 1, "nm"
    ),
    "new running variance": sends_nothing(
        f"{BATCH_NORM} y = Add (n, nv)", f"{NORM}, {STATISTICS}", "BatchNormalization", 2, "nv"
    ),
    "only new running variance": sends_nothing(
        f"{BATCH_NORM} y = Mul (x, nv)", f"{NORM}, {STATISTICS}", "BatchNormalization", 2, "nv"
    ),
    "mean of LayerNormalization": sends_nothing(
        f"{LAYER_NORM} y = Add (n, mean)", NORM, "LayerNormalization", 1, "mean"
    ),
    "deviation of LayerNormalization": sends_nothing(
        f"{LAYER_NORM} y = Add (n, inv)", NORM, "LayerNormalization", 2, "inv"
    ),
    "only deviation of LayerNormalization": sends_nothing(
        f"{LAYER_NORM} y = Mul (x, inv)", NORM, "LayerNormalization", 2, "inv"
    ),
    "deviation of SimplifiedLayerNormalization": sends_nothing(
        f"{RMS_NORM} y = Add (n, inv)", SCALE, "SimplifiedLayerNormalization", 1, "inv", ALONE
    ),
    "rounding": rounding("q = QuantizeLinear (x, u, z) y = DequantizeLinear (q, u, z)"),
    "rounding before more": rounding("q = QuantizeLinear (x, u, z) d = DequantizeLinear (q, u, z) y = Exp (d)"),
    "limit in a branch": (
        two_ways(IN_BRANCH.format("v = ReduceMean <keepdims = 0> (x)"), "bool flag = {1}"),
        "^Clip node 'y' .* has input 1, 'v', .* takes it for a constant; use --builder bngrad, or leave out",
    ),
    "product of updates": (
        two_ways(
            'y = ScatterElements <axis = 0, reduction = "mul"> (k, i, x)',
            f"{K}, int64[2, 3] i = {{1, 1, 1, 0, 1, 0}}",
        ),
        "ScatterElements .* has reduction = mul: .* is wrong",
    ),
    "sum of updates, by the data": (
        two_ways('y = ScatterND <reduction = "add"> (x, i, k)', f"{K}, int64[2, 1] i = {{1, 0}}"),
        "ScatterND .* has reduction = add: .* is wrong",
    ),
}
NOT_IN_DOUBLE = (
    "an optional",
    "deviation of SimplifiedLayerNormalization",
    "rounding",
    "ratio",
    "scale of Deq",
)
"""Beginnings of the names of models that only ORT's float kernels compute as they are."""


@pytest.mark.parametrize("name", REFUSED)
def test_dropped_is_refused(name):
    forward, message = REFUSED[name]
    before = forward.SerializeToString()
    with pytest.raises(ModelError, match=message) as caught:
        prepare_forward(forward, "loss", ["x"])
    assert "\n" not in str(caught.value)
    assert forward.SerializeToString() == before


@pytest.mark.parametrize("name", REFUSED)
def test_the_builder_is_wrong_there(name, oracle, monkeypatch):
    for refuse in ("refuse_dropped", "refuse_path"):
        monkeypatch.setattr(preparation, refuse, lambda *_: None)
    forward, _ = REFUSED[name]
    exact = slope(forward, oracle if name.startswith(NOT_IN_DOUBLE) else None)
    prepared = prepare_forward(forward, "loss", ["x"])
    try:
        got = gradients(oracle, prepared, x=X)["x"]
    except OracleError as error:
        # The graph reads a gradient that no node makes.
        assert re.search("_grad' is not a graph input|input exponent", str(error))  # noqa: PT017
        return
    assert np.abs(np.array(got) - exact).max() > 0.02


def slope(forward, oracle=None):
    """The gradient by x, by central differences: in float64, or on the oracle's float kernels."""
    step = 1e-6 if oracle is None else 1e-2

    def loss(x):
        values = (
            evaluate(forward, {"x": x}, ["loss"]) if oracle is None else oracle.run(forward, {"x": x}, ["loss"])
        )
        return float(np.squeeze(values["loss"]))

    x = X.astype(np.float64 if oracle is None else np.float32)
    steps = [step * np.eye(1, x.size, index).reshape(x.shape).astype(x.dtype) for index in range(x.size)]
    return np.reshape([(loss(x + h) - loss(x - h)) / (2 * step) for h in steps], x.shape)


ACCEPTED = {
    "constant value of Pad": two_ways("y = Pad (x, p, u)", "int64[4] p = {1, 0, 0, 1}, float u = {0.5}"),
    "constant limits": two_ways("y = Clip (x, l, u)", "float l = {-1}, float u = {0.6}"),
    "limits that are attributes": two_ways("y = Clip <min = -1.0, max = 0.6> (x)", opset=10),
    "constant exponent": two_ways("e = Exp (x) y = Pow (e, u)"),
    "limit of Range": two_ways(f"{MEAN} y = Range (f, m, d)", "float f = {-3}, float d = {1}"),
    "depth of OneHot": two_ways(
        f"{MEAN} e = Add (m, u) y = OneHot (t, e, v)", f"{LABELS}, float[2] v = {{0.2, 0.7}}, float u = {{3.1}}"
    ),
    "constant class weights": two_ways("y = SoftmaxCrossEntropyLoss (x, t, s)", f"{LABELS}, {SCALE}"),
    "log probabilities that are not read": two_ways("y, p = SoftmaxCrossEntropyLoss (x, t)", LABELS),
    "ratio of a Dropout that drops nothing": two_ways(f"{MEAN} r = Sigmoid (m) y = Dropout (x, r)"),
    "mean of a frozen batch norm": two_ways(
        f"{MEANS} y = BatchNormalization (x, s, b, m, rv)", f"{NORM}, float[3] rv = {{1, 2, 3}}"
    ),
    "variance of a frozen batch norm": two_ways(
        f"{MEANS} v = Exp (m) y = BatchNormalization (x, s, b, rm, v)", f"{NORM}, float[3] rm = {{1, 2, 3}}"
    ),
    "running mean that moves": two_ways(
        f"{MEANS} y, nm, nv = BatchNormalization <training_mode = 1> (x, s, b, m, rv)",
        f"{NORM}, float[3] rv = {{1, 2, 3}}",
    ),
    "parameters of a batch norm": two_ways(
        f"{MEANS} e = Exp (m) y, nm, nv = BatchNormalization <training_mode = 1> (x, e, m, rm, rv)", STATISTICS
    ),
    "parameters of LayerNormalization": two_ways(
        f"{MEANS} e = Exp (m) y, mean, inv = LayerNormalization (x, e, m)"
    ),
    "condition of Where": two_ways("e = Exp (x) c = Greater (x, u) y = Where (c, x, e)", "float u = {0.1}"),
    "indices of Gather": two_ways("i = ArgMax <axis = 1> (x) y = GatherElements <axis = 1> (x, i)"),
    "sum of updates": two_ways(
        'y = ScatterElements <axis = 0, reduction = "add"> (k, i, x)',
        f"{K}, int64[2, 3] i = {{1, 1, 1, 0, 1, 0}}",
    ),
    "bias of Gemm": two_ways(
        f"{MEANS} y = Gemm (x, k, m)", "float[3, 3] k = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}"
    ),
    "constant limit in a branch": two_ways(
        IN_BRANCH.format("v = Constant <value_float = 0.4> ()"), "bool flag = {1}"
    ),
    "normalization in a branch": two_ways(
        """y = If (flag) <
            then_branch = g () => (float[2, 3] p) { p, mean, inv = LayerNormalization (x, s, b) },
            else_branch = h () => (float[2, 3] q) { q = Neg (x) }>""",
        f"{NORM}, bool flag = {{1}}",
    ),
    "a sequence of constants": two_ways(
        "q = SequenceConstruct (k, k) h = SequenceAt (q, i) y = Mul (x, h)", f"{K}, int64 i = {{1}}"
    ),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_builder_is_right_there(name, oracle):
    got = gradients(oracle, prepare_forward(ACCEPTED[name], "loss", ["x"]), x=X)["x"]
    np.testing.assert_allclose(got, slope(ACCEPTED[name]), atol=1e-3, rtol=1e-3)


TEXT = "e = Exp (x) q = Cast <to = 8> ({}) h = Cast <to = 1> (q) y = Mul (x, h)"


def test_text():
    with pytest.raises(
        UnsupportedNodeError, match=r"\(outputs q\) cannot be differentiated: .* expected a constant"
    ):
        prepare_forward(two_ways(TEXT.format("e")), "loss", ["x"])
    assert prepare_forward(two_ways(TEXT.format("k"), K), "loss", ["x"]).wrt == ["x"]


LIMITS = """float[2] w = {2, 3}, float limit = {0.5}, float factor = {3},
    int64[1] begin = {0}, int64[1] end = {2}, int64[1] axis = {1}"""


def by_limits(limit):
    scaled = "f = Mul (limit, factor)" if limit == "f" else ""
    return two_ways(f"c = Slice (x, begin, end, axis) n = Mul (c, w) {scaled} y = Clip (n, , {limit})", LIMITS)


def test_numbers_are_no_weights_by_default():
    """As for our own builder."""
    forward = by_limits("limit")
    assert prepare_forward(forward, "loss").wrt == ["w", "xc"]
    assert list(of(forward).gradients) == ["w", "xc"]


def test_weights_that_are_dropped_are_not_left_out_by_default():
    forward = by_limits("f")
    assert list(of(forward).gradients) == ["w", "limit", "factor", "xc"]
    with pytest.raises(ModelError, match=r"Clip .* has input 2, 'f', .*by default the weights"):
        prepare_forward(forward, "loss")
    assert prepare_forward(forward, "loss", ["w"]).wrt == ["w"]


@pytest.mark.parametrize("name", ["limit", "factor"])
def test_a_name_that_only_a_dropped_path_leads_from(name):
    with pytest.raises(ModelError, match=r"Clip .* has input 2, 'f', .*; use --builder bngrad"):
        prepare_forward(by_limits("f"), "loss", [name])


def test_statistics_of_a_frozen_batch_norm_by_name(oracle):
    forward = two_ways("y = BatchNormalization (x, s, b, rm, rv)", f"{NORM}, {STATISTICS}")
    assert prepare_forward(forward, "loss").wrt == ["s", "b", "xc"]
    got = gradients(oracle, prepare_forward(forward, "loss", ["rm", "rv"]), x=X)
    exact = evaluate(in_standard_onnx(of(forward, ["rm", "rv"]).model), {"x": X}, ["rm_grad", "rv_grad"])
    for name in ("rm", "rv"):
        np.testing.assert_allclose(got[name], exact[f"{name}_grad"], rtol=1e-4)


def test_running_statistics_by_name():
    forward = two_ways(f"{BATCH_NORM} y = Add (n, nm)", f"{NORM}, {STATISTICS}")
    with pytest.raises(ModelError, match="has output 1, 'nm', which the loss depends on"):
        prepare_forward(forward, "loss", ["rm"])


def of(forward, wrt=None):
    return training_graph(ir.from_proto(forward), loss="loss", wrt=wrt)


WITH_A_RULE = ["value of Pad", "class weights", "new running variance", "deviation of LayerNormalization"]


@pytest.mark.parametrize("name", WITH_A_RULE)
def test_differentiate_refuses_and_names_the_builder_that_is_right(name):
    forward, message = REFUSED[name]
    with pytest.raises(ModelError, match=message):
        bngrad.differentiate(forward, loss="loss", wrt=["x"], builder="ort")
    ours = bngrad.differentiate(forward, loss="loss", wrt=["x"])
    np.testing.assert_allclose(evaluate(ours, {"x": X}, ["x_grad"])["x_grad"], slope(forward), rtol=1e-5)


@pytest.mark.parametrize("name", WITH_A_RULE)
def test_validate_compares_otherwise_and_says_so(name):
    forward, _ = REFUSED[name]
    report = bngrad.validate(forward, loss="loss", wrt=["x"], implementation="function")
    assert report.passed, report.reason
    assert (report.against, report.instead_of) == ("reference", "ort")
    (note,) = (note for note in report.notes if "gradient builder does not support the model" in note)
    assert "use --builder bngrad" in note
    assert "central differences" in {check.name for check in report.checks}


@pytest.mark.parametrize(
    "name", ["mean of a frozen batch norm", "constant class weights", "running mean that moves"]
)
def test_validate_asks_the_builder_where_it_is_right(name):
    report = bngrad.validate(ACCEPTED[name], loss="loss", wrt=["x"], implementation="function")
    assert report.passed, report.reason
    assert (report.against, report.instead_of) == ("ort", "")


@pytest.mark.parametrize("names", [["rm"], ["rv", "s", "x"]])
def test_validate_by_statistics_of_a_frozen_batch_norm(names):
    forward = two_ways("y = BatchNormalization (x, s, b, rm, rv)", f"{NORM}, {STATISTICS}")
    report = bngrad.validate(forward, loss="loss", wrt=names, frozen=["*"], implementation="function")
    assert report.passed, report.reason
    assert report.against == "ort"


def test_command_line(tmp_path, capsys):
    path = tmp_path / "net.onnx"
    onnx.save(REFUSED["upper limit"][0], path)
    command = ["differentiate", str(path), "-o", str(tmp_path / "out.onnx"), "--wrt", "x", "--builder", "ort"]
    assert run(command) == 2
    out, error = capsys.readouterr()
    assert out == ""
    (line,) = error.splitlines()
    assert "Clip node 'y' (outputs y) has input 2, 'm'" in line
    assert "use --builder bngrad" in line
    assert not (tmp_path / "out.onnx").exists()
