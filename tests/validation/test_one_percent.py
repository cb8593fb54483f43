"""One percent off in a single gradient is found, whatever a training graph is compared with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import bngrad
from bngrad.autodiff import edges
from bngrad.autodiff import prepare_forward as forward
from bngrad.autodiff.rules import RULES
from bngrad.validation import gradient_groups, numeric, stock
from pairwise import every_value

pytestmark = pytest.mark.usefixtures("shared_oracle")

NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,6,6] x, int64[N] labels) => (float loss) {
    c = Conv<pads = [1, 1, 1, 1]>(x, w)
    [one] h, m1_new, v1_new = BatchNormalization<training_mode = 1>(c, s1, b1, m1, v1)
    r = Relu(h)
    [two] f = BatchNormalization(r, s2, b2, m2, v2)
    t = Tanh(f)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(t)
    q = Flatten(p)
    logits = Gemm(q, dense, bias)
    loss = SoftmaxCrossEntropyLoss(logits, labels)
}"""
SHAPES = {"w": (3, 2, 3, 3), "s1": (3,), "b1": (3,), "s2": (3,), "b2": (3,), "dense": (27, 5), "bias": (5,)}
STATISTICS = {"m1": (3,), "v1": (3,), "m2": (3,), "v2": (3,)}
AGAINST = ("ort", "reference", "numeric")
WRT = [*SHAPES, "x"]


def network():
    rng = np.random.default_rng(5)
    model = onnx.parser.parse_model(NETWORK)
    for name, shape in (SHAPES | STATISTICS).items():
        array = rng.uniform(0.5, 1.5, shape) if name[0] in "sv" else rng.normal(size=shape) * 0.5
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


def scaled(training, output, factor=1.01):
    """The training graph with one output that many times as large."""
    model = ir.from_proto(training)
    (right,) = (value for value in model.graph.outputs if value.name == output)
    node = right.producer()
    constant = ir.node("Constant", [], attributes={"value": ir.tensor(np.float32(factor))}, name="injected_factor")
    wrong = ir.node("Mul", [right, constant.outputs[0]], name="injected")
    constant.outputs[0].name = "injected_factor"
    right.replace_all_uses_with(wrong.outputs[0], replace_graph_outputs=True)
    wrong.replace_input_with(0, right)
    model.graph.insert_after(node, [constant, wrong])
    wrong.outputs[0].name, right.name = output, "injected_right"
    wrong.outputs[0].type, wrong.outputs[0].shape = right.type, right.shape
    return ir.to_proto(model)


@pytest.fixture(scope="module")
def training():
    return bngrad.differentiate(network(), wrt=WRT)


@pytest.mark.parametrize("against", AGAINST)
def test_the_right_graph_passes(training, against):
    report = bngrad.validate(network(), rewritten=training, against=against, implementation="function")
    assert report.passed, report.reason
    assert report.against == against
    gradients = {row.tensor for check in report.checks for row in check.rows if row.kind == "gradient"}
    assert gradients == {f"{name}_grad" for name in WRT}


@every_value(name=WRT, against=AGAINST)
def test_one_percent_in_a_gradient_is_found(training, name, against):
    wrong = scaled(training, f"{name}_grad")
    report = bngrad.validate(network(), rewritten=wrong, against=against, implementation="function")
    failed = {check.name: {row.tensor for row in check.failures} for check in report.checks if check.failures}
    # By the check that each of them makes of gradients, and nothing else is called wrong.
    decisive = "central differences" if against == "numeric" else "float64"
    assert failed[decisive] == {f"{name}_grad"}
    if against == "ort":
        assert f"{name}_grad" in failed["lock-step"]
        assert f"{name}_grad" in failed["whole graph"]
    if against == "reference":
        assert failed["central differences"] == {f"{name}_grad"}
    assert set().union(*failed.values()) == {f"{name}_grad"}


@pytest.mark.parametrize("name", [None, *WRT])
def test_gradients_of_a_large_network_are_compared_in_groups(training, name, monkeypatch):
    """The halves of a group that disagrees are compared, so that the report names the wrong gradient."""
    monkeypatch.setattr(numeric, "MAX_ELEMENTS", 20)
    monkeypatch.setattr(gradient_groups, "SIZE", 5)
    rewritten = training if name is None else scaled(training, f"{name}_grad", 1.001)
    report = bngrad.validate(network(), rewritten=rewritten, against="numeric", implementation="function")
    (check,) = (check for check in report.checks if check.name == "central differences")
    assert {row.tensor for row in check.rows} == {f"{wrt}_grad" for wrt in WRT}
    assert {row.tensor for row in check.failures} == ({f"{name}_grad"} if name else set())
    others = [row.note.split()[4] for row in check.rows if "along one direction with" in row.note]
    assert sorted(others) == ["3"] * 8 if name is None else sorted(others) == ["1", "1", "3", "3", "3", "3"]
    assert f"{len(others)} gradients were compared in groups" in " ".join(check.notes)


# ---- mistakes of ours, from which our own training graph is no witness ----


def scaling_rule(rule):
    """The rule, one percent off."""

    def gradients(back):
        return [
            None if value is None else back.op("Mul", value, back.constant(1.01, back.x(0).dtype))
            for value in rule.gradients(back)
        ]

    return replace(rule, gradients=gradients)


@every_value(op_type=["Tanh", "Conv", "Gemm", "SoftmaxCrossEntropyLoss", "BatchNormalization"], against=AGAINST)
def test_one_percent_in_a_rule_is_found(op_type, against, monkeypatch):
    monkeypatch.setitem(RULES, ("", op_type), scaling_rule(RULES["", op_type]))
    assert edges.RULES is RULES
    report = bngrad.validate(network(), wrt=WRT, against=against, implementation="function")
    assert report.against == against
    assert not report.passed
    failed = {check.name for check in report.checks if check.failures}
    assert ("float64" if against == "ort" else "central differences") in failed


@pytest.mark.parametrize("against", ["reference", "numeric"])
def test_a_mode_that_is_not_obeyed_is_found(against, monkeypatch):
    monkeypatch.setattr(forward, "set_modes", lambda *_arguments: None)
    report = bngrad.validate(network(), frozen=["one"], against=against, implementation="function")
    assert {check.name for check in report.checks if check.failures} == {
        "forward in float64",
        "central differences",
    }


class OnePercentOff:
    """A session whose output of one name is one percent off."""

    def __init__(self, session, name):
        self._session, self._name = session, name

    def run(self, names, feeds):
        return [
            value * np.float32(1.01) if name == self._name else value
            for name, value in zip(names, self._session.run(names, feeds), strict=True)
        ]


@every_value(name=WRT, against=["reference", "numeric"])
def test_one_percent_by_onnxruntime_is_found(name, against, monkeypatch):
    right = stock.session
    monkeypatch.setattr(
        stock, "session", lambda *arguments, **options: OnePercentOff(right(*arguments, **options), f"{name}_grad")
    )
    report = bngrad.validate(network(), wrt=WRT, against=against, implementation="function")
    failed = {check.name: {row.tensor for row in check.failures} for check in report.checks if check.failures}
    assert failed == {"on stock ONNX Runtime": {f"{name}_grad"}}


def test_what_onnxruntime_does_not_run_is_found(monkeypatch):
    def refuse(*_arguments, **_options):
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr(stock, "session", refuse)
    report = bngrad.validate(network(), against="numeric", implementation="function")
    check = next(check for check in report.checks if check.name == "on stock ONNX Runtime")
    assert [(row.implementation, row.note) for row in check.failures] == [("function", "no kernel for this")]
