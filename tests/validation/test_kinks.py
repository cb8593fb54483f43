"""Central differences of losses with kinks: no step across a kink makes a right gradient wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import bngrad
from bngrad.autodiff.rules import RULES
from bngrad.validation import gradient_groups, numeric
from bngrad.validation.branches import held, recorded
from bngrad.validation.float64 import EvaluationError, Evaluator, evaluate
from bngrad.validation.piecewise_ops import FUNCTIONS
from test_one_percent import scaled, scaling_rule

pytestmark = pytest.mark.filterwarnings("ignore:.* do not look like weights:bngrad.BngradWarning")

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def odd_kinks(distances, *, held_op=True):
    """A loss with a kink at each distance on both sides of w = 1, of which central differences see no bend."""
    relu = "{0} = Relu({1})"
    if not held_op:
        relu = "{0}_a = ReduceL1<axes = [1]>({1})  {0}_b = Add({0}_a, {1})  {0} = Mul({0}_b, half)"
    body = "  ".join(relu.format(*names) for names in (("r1", "up"), ("r2", "down")))
    model = onnx.parser.parse_model(
        HEADER
        + f"""g (float[K,1] x) => (float loss) <float half = {{0.5}}> {{
            h = Mul(x, w)  a = Sub(h, base)  n = Neg(a)  up = Sub(a, k)  down = Sub(n, k)
            {body}  d = Sub(r1, r2)  y = Add(d, h)  loss = ReduceSum<keepdims = 0>(y) }}"""
    )
    arrays = {"w": np.ones(1), "base": np.ones(1), "k": np.array(distances)[:, None]}
    model.graph.initializer.extend(
        numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    return model, {"x": np.ones((len(distances), 1), np.float32)}


def differences(model, inputs, *, wrong=False):
    training = bngrad.differentiate(model, wrt=["w"])
    report = bngrad.validate(
        model,
        rewritten=scaled(training, "w_grad") if wrong else training,
        inputs=inputs,
        against="numeric",
        implementation="function",
    )
    return report, next(check for check in report.checks if check.name == "central differences")


MANY = np.geomspace(1e-8, 1e-5, 50)


@pytest.mark.parametrize("grouped", [False, True])
def test_steps_that_cross_many_kinks_decide(grouped, monkeypatch):
    monkeypatch.setattr(numeric, "MAX_ELEMENTS", 2 if grouped else 600_000)
    report, check = differences(*odd_kinks(MANY))
    assert report.verdict == "passed", report.reason
    assert [row.note for row in check.rows] == [""]
    report, check = differences(*odd_kinks(MANY), wrong=True)
    assert report.verdict == "failed"
    assert [row.tensor for row in check.failures] == ["w_grad"]


def test_a_kink_of_an_op_that_is_not_held_is_passed_by():
    """The slope of both sides of the first step is the same, and wrong."""
    report, check = differences(*odd_kinks([3e-6], held_op=False))
    assert report.verdict == "passed", report.reason
    assert [row.note for row in check.rows] == ["a kink within the step"]


RIPPLES = """g (float[2] x) => (float loss) <float[2] w = {1, 2}, float rate = {8e6}, float height = {5e-7}> {
    h = Mul(w, rate)  s = Sin(h)  r = Mul(s, height)  t = Add(r, w)  y = Mul(t, x)
    loss = ReduceSum<keepdims = 0>(y) }"""


@pytest.mark.parametrize("wrong", [False, True])
def test_differences_that_do_not_converge_decide_nothing(wrong):
    model = onnx.parser.parse_model(HEADER + RIPPLES)
    report, check = differences(model, {"x": np.ones(2, np.float32)}, wrong=wrong)
    assert (report.verdict, check.rows) == ("incomplete", [])
    assert check.undecided == {
        "w_grad": "differences of the loss do not converge at the inputs, or at 3 points nearby"
    }
    assert report.advice == "No comparison failed. --against torch or --against ort can decide."


def test_a_gradient_that_is_not_decided_leaves_a_report_incomplete():
    """Others passed, and one that fails still counts as failed."""
    model = onnx.parser.parse_model(
        HEADER + RIPPLES.replace("float[2] w", "float[2] v = {3, 4}, float[2] w").replace("Mul(t, x)", "Mul(t, v)")
    )
    inputs = {"x": np.ones(2, np.float32)}
    training = bngrad.differentiate(model, wrt=["v", "w"])
    options = {"against": "numeric", "implementation": "function", "inputs": inputs}
    report = bngrad.validate(model, rewritten=training, **options)
    assert report.verdict == "incomplete"
    assert report.reason == "central differences: 1 of 2 values could not be decided"
    assert "can decide" in report.advice
    assert bngrad.validate(model, rewritten=scaled(training, "v_grad"), **options).verdict == "failed"


def test_few_gradients_of_many_wrong_ones_are_compared_by_themselves(monkeypatch):
    names = [f"w{index}" for index in range(12)]
    weights = ", ".join(f"float[2] {name} = {{1, {index}}}" for index, name in enumerate(names, 2))
    tanhs = "  ".join(f"t_{name} = Tanh({name})" for name in names)
    text = f"""g (float[2] x) => (float loss) <{weights}> {{ {tanhs}  s = Sum({", ".join(f"t_{n}" for n in names)})
        y = Mul(s, x)  loss = ReduceSum<keepdims = 0>(y) }}"""
    monkeypatch.setitem(RULES, ("", "Tanh"), scaling_rule(RULES["", "Tanh"]))
    monkeypatch.setattr(numeric, "MAX_ELEMENTS", 20)
    monkeypatch.setattr(numeric, "DISAGREEING", 3)
    monkeypatch.setattr(gradient_groups, "SIZE", 8)
    model = onnx.parser.parse_model(HEADER + text)
    report = bngrad.validate(model, wrt=names, against="numeric", implementation="function")
    (check,) = (check for check in report.checks if check.name == "central differences")
    assert report.verdict == "failed"
    assert 3 <= len(check.failures) == len(check.rows) <= 4
    assert len(check.rows) + len(check.undecided) == 12


# ---- ops with branches ----

X = np.random.default_rng(0).uniform(-3, 3, (1, 2, 4, 4))
OTHER = np.random.default_rng(1).uniform(-3, 3, (1, 2, 4, 4))
OPS = {
    "Abs": "y = Abs(x)",
    "Ceil": "y = Ceil(x)",
    "Celu": "y = Celu<alpha = 0.7>(x)",
    "Clip": "y = Clip(x, low, high)",
    "Clip below": "y = Clip(x, low)",
    "Elu": "y = Elu<alpha = 0.7>(x)",
    "Floor": "y = Floor(x)",
    "GlobalMaxPool": "y = GlobalMaxPool(x)",
    "Greater": "c = Greater(x, low)  y = Where(c, x, low)",
    "GreaterOrEqual": "c = GreaterOrEqual(x, low)  y = Where(c, x, low)",
    "HardSigmoid": "y = HardSigmoid(x)",
    "HardSwish": "y = HardSwish(x)",
    "LeakyRelu": "y = LeakyRelu(x)",
    "Less": "c = Less(x, low)  y = Where(c, x, low)",
    "LessOrEqual": "c = LessOrEqual(x, low)  y = Where(c, x, low)",
    "Max": "n = Neg(x)  y = Max(x, n, high)",
    "MaxPool": "y = MaxPool<kernel_shape = [2, 2], pads = [1, 0, 0, 1]>(x)",
    "MaxPool indices": """y0, i = MaxPool<kernel_shape = [2, 2], storage_order = 1>(x)  f = Cast<to = 1>(i)
        y = Add(y0, f)""",
    "Min": "n = Neg(x)  y = Min(x, n, high)",
    "PRelu": "y = PRelu(x, low)",
    "ReduceMax": "y = ReduceMax<axes = [-1, 1]>(x)",
    "ReduceMax all": "y = ReduceMax<keepdims = 0>(x)",
    "ReduceMin": "y = ReduceMin<axes = [2], keepdims = 0>(x)",
    "Relu": "y = Relu(x)",
    "Round": "y = Round(x)",
    "Selu": "y = Selu(x)",
    "Sign": "y = Sign(x)",
    "ThresholdedRelu": "y = ThresholdedRelu(x)",
}


def graph(body, opset=17):
    return onnx.parser.parse_model(
        HEADER.replace("17", str(opset))
        + f"g (float[1,2,4,4] x) => (float y) <float low = {{-0.5}}, float high = {{1.5}}> {{ {body} }}"
    )


def test_every_op_with_branches_is_tested():
    assert {name.split()[0] for name in OPS} == set(FUNCTIONS)


@pytest.mark.parametrize("name", OPS)
def test_ops_with_branches(name):
    """They are onnx's, and with the branches held, smooth functions of the same slope."""
    model = graph(OPS[name])
    evaluator = Evaluator(model, branches=True)
    with recorded() as branches:
        here = evaluator({"x": X})["y"]
    assert here.dtype == np.float64
    np.testing.assert_allclose(here, evaluate(model, {"x": X})["y"], rtol=1e-14, atol=1e-15)
    assert branches

    def beside(step):
        with held(branches):
            return evaluator({"x": X + step * OTHER})["y"]

    np.testing.assert_array_equal(beside(0), here)

    def free(step):
        return evaluate(model, {"x": X + step * OTHER})["y"]

    slope, expected = ((y(1e-6) - y(-1e-6)) / 2e-6 for y in (beside, free))
    np.testing.assert_allclose(slope, expected, atol=1e-8)
    if name not in {"Celu", "Elu", "HardSwish", "Selu"}:  # their pieces are lines
        np.testing.assert_allclose(beside(2.0), here + 2 * slope, atol=1e-6)


def test_axes_as_an_input():
    body = "axes = Constant<value_ints = [1, 3]>()  y = ReduceMax(x, axes)"
    got = Evaluator(graph(body, 18), branches=True)({"x": X})["y"]
    np.testing.assert_array_equal(got, X.max(axis=(1, 3), keepdims=True))


@pytest.mark.parametrize("op_type", ["Max", "Min", "Relu", "Clip", "ReduceMax"])
def test_nan_is_no_branch(op_type):
    model = graph({"Max": "y = Max(x, low)", "Min": "y = Min(low, x)"}.get(op_type, OPS[op_type]))
    x = X.copy()
    x[0, 1, 2, 3] = np.nan
    got, want = (Evaluator(model, branches=branches)({"x": x})["y"] for branches in (True, False))
    np.testing.assert_array_equal(got, want)


def test_branches_of_another_model_are_refused():
    evaluator = Evaluator(graph("h = Relu(x)  y = Abs(h)"), branches=True)
    with recorded() as branches:
        evaluator({"x": X})
    with held(branches[:1]), pytest.raises(EvaluationError, match="StopIteration"):
        evaluator({"x": X})
