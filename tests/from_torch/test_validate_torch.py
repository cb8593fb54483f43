"""``bngrad validate --against torch``: what PyTorch agrees with, the errors that it finds, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

import bngrad
from bngrad.autodiff.rules import RULES
from bngrad.cli import run
from bngrad.validation import double
from from_torch.backend_models import AGREES, EXPECTED, end_of
from gradient_fuzz.backend_models import backend_tests
from models import digits_resnet20

PARAMETERS = """
    float[3] s = {1, 0.5, 2}, float[3] b = {0.25, 1, -0.5}, float[3] m = {0.5, -1, 0}, float[3] v = {1, 2, 0.5}"""
STATISTICS = "float loss, float[3] m2, float[3] v2"
LOSS = "loss = ReduceMean<keepdims = 0>(t)"
TAIL = f" t = Tanh(y) {LOSS}"
SPELLED_OUT = """
    axes = Constant<value = int64[3] {0, 2, 3}>()
    channels = Constant<value = int64[4] {1, 3, 1, 1}>()
    eps = Constant<value = float {0.001}>()
    mean = ReduceMean(x, axes)
    centered = Sub(x, mean)
    square = Mul(centered, centered)
    variance = ReduceMean(square, axes)
    shifted = Add(variance, eps)
    deviation = Sqrt(shifted)
    normal = Div(centered, deviation)
    scale = Reshape(s, channels)
    bias = Reshape(b, channels)
    scaled = Mul(normal, scale)
    y = Add(scaled, bias)"""


def model_of(body, *, inputs="float[N,3,4,5] x", initializers=PARAMETERS, outputs="float loss", opset=18):
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}, "bngrad.autodiff" : 1]>
    g ({inputs}) => ({outputs}) <{initializers}> {{
        {body}
    }}""")


def bn(attributes="training_mode = 1", outputs="y, m2, v2", x="x", name="bn"):
    return f"[{name}] {outputs} = BatchNormalization<{attributes}>({x}, s, b, m, v)"


def training(inputs="float[N,3,4,5] x", attributes="training_mode = 1"):
    return model_of(bn(attributes) + TAIL, inputs=inputs, outputs=STATISTICS)


FROZEN = model_of(bn("epsilon = 0.01", "y") + TAIL)
SHARED = model_of(f"{bn()} {bn(outputs='z, m3, v3', x='y', name='next')} t = Tanh(z) {LOSS}")
MODELS = {
    "training": (training(), {}),
    "training-momentum-0": (training(attributes="training_mode = 1, momentum = 0.0"), {}),
    "training-unbiased": (training(), {"running_variance": "unbiased"}),
    "training-per-activation": (training("float[N,3] x"), {}),
    "training-1-d": (training("float[N,3,7] x"), {}),
    "training-3-d": (training("float[N,3,2,3,2] x"), {}),
    "one-element-a-channel": (training("float[1,3] x"), {}),
    "one-element-a-channel-unbiased": (training("float[1,3] x"), {"running_variance": "unbiased"}),
    "in-opset-9": (model_of(bn("momentum = 0.8", "y") + TAIL, opset=9), {"training": ["*"]}),
    "frozen-in-the-model": (FROZEN, {"frozen": ["*"]}),
    "frozen-by-option": (training(), {"frozen": ["bn"]}),
    "in-training-by-option": (FROZEN, {"training": ["bn"]}),
    "frozen-statistics-differentiated": (FROZEN, {"wrt": ["x", "s", "b", "m", "v"], "frozen": ["*"]}),
    "new-statistics-in-the-loss": (model_of(f"{bn()} t = Sum(m2, v2) {LOSS}", outputs=STATISTICS), {}),
    "shared-statistics-apart": (SHARED, {"shared_statistics": "separate"}),
    "shared-statistics-chained": (SHARED, {"shared_statistics": "chain"}),
    "spelled-out": (model_of(SPELLED_OUT + TAIL), {}),
    "sum-of-three": (model_of("y = Sum(x, x, x)" + TAIL), {}),
    "grid-sample": (
        model_of("y = GridSample(x, grid)" + TAIL, inputs="float[N,3,4,5] x, float[N,2,3,2] grid"),
        {},
    ),
    "dropout": (
        model_of("y, mask = Dropout(x, ratio, on)" + TAIL, initializers="float ratio = {0.4}, bool on = {1}"),
        {},
    ),
    "stop-gradient": (model_of("h = bngrad.autodiff.StopGradient(x) y = Mul(h, x)" + TAIL), {}),
    "a-computed-shape": (
        model_of(
            "n = Shape<end = 1>(x) rest = Constant<value = int64[1] {-1}>() to = Concat<axis = 0>(n, rest) "
            "y = Reshape(x, to)" + TAIL
        ),
        {},
    ),
    "a-loop-with-a-branch": (
        model_of(
            """count = Constant<value = int64 {3}>()
            y = Loop<body = f (int64 i, bool go, float[N,3] h) => (bool on, float[N,3] next) {
                sum = ReduceSum<keepdims = 0>(h) zero = Constant<value = float {0}>() low = Less(sum, zero)
                next = If(low)<then_branch = a () => (float[N,3] t) { t = Mul(h, s) },
                    else_branch = b () => (float[N,3] e) { sine = Sin(h) e = Sub(sine, x) }>
                on = Identity(go)
            }>(count, , x)"""
            + TAIL,
            inputs="float[N,3] x",
        ),
        {"wrt": ["x", "s"]},
    ),
    "a-scan": (
        model_of(
            """h, y = Scan<num_scan_inputs = 1, body = f (float[3] h, float[3] row) => (float[3] n, float[3] out) {
                p = Mul(h, s) q = Add(p, row) n = Tanh(q) out = Mul(n, h) }>(b, x)"""
            + TAIL,
            inputs="float[N,3] x",
        ),
        {"wrt": ["x", "s", "b"]},
    ),
    "a-spectrum": (
        model_of(
            "step = Constant<value = int64 {2}>() y = STFT(x, step, w)" + TAIL, inputs="float[N,9,1] x, float[4] w"
        ),
        {"wrt": ["x", "w"]},
    ),
    "positions-from-numpy": (
        model_of(
            "limit = Constant<value = float {0.5}>() low = Less(x, limit) at = NonZero(low) to = Transpose(at) "
            "y = GatherND(x, to)" + TAIL
        ),
        {},
    ),
}
"""Models, and the options of validate."""


def validate(model, **options):
    return bngrad.validate(model, against="torch", **{"implementation": "function", "wrt": ["x"], **options})


@pytest.mark.parametrize(("model", "options"), MODELS.values(), ids=MODELS)
def test_pytorch_agrees(model, options):
    report = validate(model, **options)
    assert report.passed, str(report)
    assert report.against == "torch"
    exact, stock = report.checks
    assert (exact.name, stock.name) == ("PyTorch's autograd", "on stock ONNX Runtime")
    assert not exact.undecided
    assert {row.against for row in (*exact.rows, *stock.rows)} == {"PyTorch"}
    graph = bngrad.read_training_graph(bngrad.differentiate(model, **{"wrt": ["x"], **options}))
    named = {graph.loss, *graph.gradients.values(), *graph.running_statistics.values()}
    assert named <= {row.tensor for row in exact.rows}


def test_the_digits_network(tmp_path, capsys):
    model = tmp_path / "digits.onnx"
    model.write_bytes(digits_resnet20.build().SerializeToString())
    options = ["--against", "torch", "--dim", "N=2", "--implementation", "native", "--json"]
    assert run(["validate", str(model), *options]) == 0
    exact, stock = json.loads(capsys.readouterr().out)["checks"]
    kinds = Counter(row["kind"] for row in exact["rows"])
    assert kinds == {"loss": 1, "gradient": 66, "running statistic": 42, "other output": 1}
    assert len(stock["rows"]) == 110
    assert exact["rows"][0]["measure"] < 1e-9


def test_double():
    model = training()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
    report = validate(model, wrt=["x", "s", "b"])
    assert report.passed, str(report)
    assert report.checks[0].limit == 1e-9


def test_float16():
    report = validate(model_of(f"h = Cast<to = 1>(x) {bn(x='h')}" + TAIL, inputs="float16[N,3,4,5] x"))
    assert report.passed, str(report)
    assert report.checks[0].limit == 4e-3


@pytest.mark.parametrize(("op_type", "wrong"), [("Tanh", 1.0001), ("Mul", 0.9999)])
def test_a_wrong_rule_is_found(op_type, wrong, monkeypatch):
    rule = RULES["", op_type]

    def gradients(back):
        factor = back.constant(wrong, back.x(0).dtype)
        return [back.op("Mul", gradient, factor) for gradient in rule.gradients(back)]

    monkeypatch.setitem(RULES, ("", op_type), replace(rule, gradients=gradients))
    report = validate(model_of("y = Mul(x, s)" + TAIL, inputs="float[N,3] x"), wrt=["x", "s"])
    assert not report.passed
    assert {row.tensor for row in report.checks[0].failures} == {"x_grad", "s_grad"}
    assert report.checks[0].failures[0].measure == pytest.approx(1e-4, rel=1e-2)


def test_another_running_variance_is_found():
    wrong = bngrad.differentiate(training(), wrt=["x", "s", "b"], running_variance="unbiased")
    report = validate(training(), rewritten=wrong, running_variance="biased")
    assert [row.tensor for row in report.checks[0].failures] == ["v2"]


def test_a_kink_of_the_loss_is_no_error():
    """At the corner of a HardSigmoid, our gradient is 0, and PyTorch's is 1 before 2.14."""
    model = model_of("y = HardSigmoid<alpha = 1.0, beta = 0.0>(x)" + TAIL, inputs="float[N,3] x")
    report = validate(model, inputs={"x": np.zeros((2, 3), np.float32)})
    assert report.passed, str(report)
    notes = [row.note for row in report.checks[0].rows if row.kind == "gradient"]
    differs = tuple(map(int, version("torch").split(".")[:2])) < (2, 14)
    assert notes == ["beside a kink" if differs else ""]
    kink = "1 gradients have a kink of the loss at the inputs; they were checked beside it"
    assert (kink in report.checks[0].notes) == differs


def test_an_infinite_gradient_is_not_compared():
    report = validate(
        model_of("y = Sqrt(x)" + TAIL, inputs="float[N,3] x"), inputs={"x": np.zeros((2, 3), np.float32)}
    )
    assert report.checks[0].undecided == {"x_grad": "PyTorch's own gradient is not finite"}


def test_a_loss_that_is_no_number_is_not_compared():
    report = validate(
        model_of("y = Log(x)" + TAIL, inputs="float[N,3] x"), inputs={"x": np.full((2, 3), -1, np.float32)}
    )
    assert report.reason == (
        "PyTorch's autograd: nothing was compared (gradients: the loss is nan for these inputs; pass others with "
        "--inputs)"
    )


def test_a_large_model_is_compared_on_onnx_runtime_alone(monkeypatch):
    monkeypatch.setattr(double.too_large, "__defaults__", (10,))
    report = validate(training())
    assert report.passed, str(report)
    assert report.checks[0].skipped == "the inputs and parameters have 246 elements; the limit is 10"
    assert {row.tensor for row in report.checks[1].rows} == {"loss", "x_grad", "m2", "v2"}


FOUR_AXES = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,3,4,4,2,2] x, float[2,3,1,1,1,1] w) => (float loss) {
    [wide] y = Conv(x, w)
    loss = ReduceMean<keepdims = 0>(y)
}"""
TRAINING_GRAPH = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[2,3] dy, float[2,3] x, float[3] s, float[3] m, float[3] i) => (float[2,3] x_grad, float[3] s_grad) {
    x_grad, s_grad, b_grad = com.microsoft.BatchNormalizationGrad<epsilon = 0.001>(dy, x, s, m, i)
}"""
IT_IS_A_TRAINING_GRAPH = (
    "model.onnx is a training graph; expected a forward model, which PyTorch can differentiate: pass it, and this "
    "graph with --rewritten, or use --against reference or numeric"
)
IT_HAS_FOUR_AXES = (
    "Conv node 'wide' (outputs y) has no equivalent in PyTorch: it has 4 spatial dimensions, and PyTorch's "
    "convolutions have 1 to 3; use --against reference or numeric"
)
REFUSED = {
    "a-form-that-pytorch-lacks": (
        onnx.parser.parse_model(FOUR_AXES),
        IT_HAS_FOUR_AXES,
    ),
    "a-training-graph-of-ort": (onnx.parser.parse_model(TRAINING_GRAPH), IT_IS_A_TRAINING_GRAPH),
    "a-training-graph-of-ours": (bngrad.rewrite(onnx.parser.parse_model(TRAINING_GRAPH)), IT_IS_A_TRAINING_GRAPH),
}


@pytest.mark.parametrize(("model", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(model, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    assert run(["validate", "model.onnx", "--against", "torch"]) == 2
    assert capsys.readouterr().err.splitlines() == [f"bngrad: error: {message}"]


def test_an_op_that_pytorch_lacks_is_named(monkeypatch):
    from bngrad.torch.autograd.table import OPS

    monkeypatch.delitem(OPS, ("", "Tanh"))
    with pytest.raises(
        bngrad.UnsupportedNodeError, match=r"^Tanh node 't' .* has no equivalent in PyTorch, and a grad"
    ):
        validate(training())
    monkeypatch.delitem(OPS, ("", "BatchNormalization"))
    monkeypatch.setattr("bngrad.torch.autograd.in_numpy.can_run", lambda _node, _opset: False)
    with pytest.raises(
        bngrad.UnsupportedNodeError, match=r"^BatchNormalization node 'bn' .* PyTorch; use --against"
    ):
        validate(training())


@pytest.mark.parametrize("name", ["test_causal_conv_with_state_basic", "test_linear_attention_delta"])
def test_an_op_that_a_function_defines(name):
    tests = [test for test in backend_tests() if test.name == name]
    if not tests:
        pytest.skip("an older onnx")
    assert end_of(tests[0]) == AGREES


def test_onnx_backend_models():
    """Every 60th; `backend_models` runs all."""
    ends = Counter(map(end_of, backend_tests()[::60]))
    assert [end for end in ends if not end.startswith(EXPECTED)] == []
    assert ends[AGREES] >= 10
