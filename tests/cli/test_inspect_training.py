"""``bngrad inspect`` on training: the losses that a model can take, its weights, refusals, and commands."""

from __future__ import annotations

import json
import shlex

import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.reports.training_lines import training_lines
from bngrad.training.dry_run import trainability

HEADER = '<ir_version: 8, opset_import: ["" : 17, "foo" : 1]>\n'
W = "<float[4,3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>"
ROWS = f"g (float[N,4] x) => (float[N,3] y) {W} {{ l = MatMul(x, w)"
STATISTICS = "float[3] s = {1,2,3}, float[3] b = {1,2,3}, float[3] m = {1,2,3}, float[3] v = {1,2,3}"
COLUMN = "<float[4,1] w = {1,2,3,4}>"

MODELS = {
    "rows": f"{ROWS} y = Identity(l) }}",
    "softmax": f"{ROWS} y = Softmax(l) }}",
    "softmax-behind-a-copy": f"{ROWS} p = Softmax<axis = 1>(l) y = Identity(p) }}",
    "softmax-over-samples": f"{ROWS} y = Softmax<axis = 0>(l) }}",
    "log-softmax": f"{ROWS} y = LogSoftmax(l) }}",
    "sigmoid": f"{ROWS} y = Sigmoid(l) }}",
    "dimensions-without-names": """g (float[N,12,H] x) => (float[N,1,H] y)
        <float[1,12,1] w = {1,2,3,4,5,6,7,8,9,10,11,12}> {
        l = Conv(x, w) y = Sigmoid(l) }""",
    "column": f"g (float[N,4] x) => (float[N,1] y) {COLUMN} {{ y = MatMul(x, w) }}",
    "sequence": f"g (float[N,T,4] x) => (float[N,T,3] y) {W} {{ y = MatMul(x, w) }}",
    "two-outputs": f"g (float[N,4] x) => (float[N,3] y, float[N,3] l) {W} {{ l = MatMul(x, w) y = Sigmoid(l) }}",
    "own": f"""g (float[N,4] x) => (float[N,3] y, float loss) {W} {{ y = MatMul(x, w)
        loss = ReduceMean<keepdims = 0>(y) }}""",
    "frozen": f"""g (float[N,4] x) => (float[N,3] y) {W[:-1]}, {STATISTICS}> {{ l = MatMul(x, w)
        y = BatchNormalization(l, s, b, m, v) }}""",
    "frozen-in-a-body": f"""g (bool c, float[N,4] x) => (float loss) {W[:-1]}, {STATISTICS}> {{ l = MatMul(x, w)
        y = If(c) <then_branch = t () => (float[N,3] n) {{ n = BatchNormalization(l, s, b, m, v) }},
                   else_branch = e () => (float[N,3] i) {{ i = Identity(l) }}>
        loss = ReduceMean<keepdims = 0>(y) }}""",
    "half-frozen": f"""g (float[N,4] x) => (float loss) {W[:-1]}, {STATISTICS}> {{ l = MatMul(x, w)
        n = BatchNormalization(l, s, b, m, v)
        y, new_m, new_v = BatchNormalization<training_mode = 1>(n, s, b, m, v)
        loss = ReduceMean<keepdims = 0>(y) }}""",
    "odd-names": f"""g (float[N,4] x) => (float[N,3] y, float[N,3] "it's $l") {W} {{ "it's $l" = MatMul(x, w)
        y = Sigmoid("it's $l") }}""",
    "two-losses": f"""g (float[N,4] x) => (float a, float b) {W} {{ y = MatMul(x, w)
        a = ReduceMean<keepdims = 0>(y) b = ReduceMax<keepdims = 0>(y) }}""",
}
CANNOT_BE_TRAINED = f"""g (float[N,4] x, int64 t) => (float loss) {W[:-1]}, {STATISTICS}> {{ l = MatMul(x, w)
    y, new_m = Loop(t, , l, m) <body =
      b (int64 i, bool c, float[N,3] h, float[3] k) => (bool d, float[N,3] n, float[3] o) {{
        d = Identity(c) n = BatchNormalization(h, s, b, k, v) o = Add(k, k) }}>
    loss = ReduceMean<keepdims = 0>(y) }}"""
LOSSES = {
    "rows": (False, ["cross_entropy y: labels int64 N", "mse y: target float Nx3"]),
    "softmax": (True, ["cross_entropy l: labels int64 N"]),
    "softmax-behind-a-copy": (True, ["cross_entropy l: labels int64 N"]),
    "softmax-over-samples": (False, ["mse y: target float Nx3"]),
    "log-softmax": (True, ["cross_entropy y: labels int64 N"]),
    "sigmoid": (True, ["bce_with_logits l: target float Nx3"]),
    "dimensions-without-names": (True, ["bce_with_logits l: target float Nx1x?"]),
    "column": (False, ["bce_with_logits y: target float Nx1", "mse y: target float Nx1"]),
    "sequence": (False, ["mse y: target float NxTx3"]),
    "two-outputs": (
        False,
        ["bce_with_logits l: target float Nx3", "cross_entropy l: labels int64 N", "mse l: target float Nx3"],
    ),
    "own": (True, ["loss"]),
    "two-losses": (False, ["a", "b"]),
}
REFUSED = {
    "op-without-a-gradient": (
        f"{ROWS} [k] h = foo.Bar(l) [m] k = foo.Baz(l) y = Add(h, k) }}",
        ["foo.Bar node 'k' (outputs h) cannot be differentiated", "foo.Baz node 'm' (outputs k)"],
        {"foo.Bar": 1, "foo.Baz": 1},
    ),
    "no-weights": (
        "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }",
        ["loss 'loss' depends on no weights"],
        {},
    ),
    "no-floats": (
        "g (int64[N] x) => (int64[N] y) { y = Neg(x) }",
        ["the model has no float outputs (its outputs are 'y' (int64[N]))"],
        {},
    ),
    "no-shape": (f"g (float[N,4] x) => (float y) {W} {{ y = foo.Bar(x, w) }}", ["foo.Bar node"], {"foo.Bar": 1}),
    "one-class": (
        f"g (float[N,4] x) => (float[N,1] y) {COLUMN} {{ l = MatMul(x, w) y = Softmax(l) }}",
        ["the model has no loss, and no loss function takes its output 'y' (float[N, 1])"],
        {},
    ),
}


def parsed(text):
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


def shown(choice):
    return choice.loss or f"{choice.loss_fn} {choice.prediction}: {choice.target}"


@pytest.mark.parametrize("case", LOSSES)
def test_the_losses(case):
    decided, losses = LOSSES[case]
    result = trainability(parsed(MODELS[case]))
    assert (result.decided, [*map(shown, result.losses)]) == (decided, losses)
    assert (result.weights, result.refusals) == (1, [])
    assert result.parameters == (4 if case == "column" else 12)


@pytest.mark.parametrize("case", MODELS)
def test_each_command_runs(case, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(ir.to_proto(parsed(MODELS[case])), "-a model.onnx")
    for choice in trainability(parsed(MODELS[case]), "-a model.onnx").losses:
        program, *arguments = shlex.split(choice.command)
        assert program == "bngrad"
        code, _, err = command(*arguments, "--json")
        assert (code, err) == (0, "")


FROZEN = {"frozen": True, "frozen-in-a-body": True, "half-frozen": False, "own": False}


@pytest.mark.parametrize("case", FROZEN)
def test_batch_norms_that_the_model_alone_freezes_are_trained(case):
    for choice in trainability(parsed(MODELS[case])).losses:
        assert choice.command.endswith(" --training '*'") == FROZEN[case]


def test_frozen_batch_norms_that_cannot_be_trained_stay():
    """The Loop changes the running mean itself."""
    model = parsed(CANNOT_BE_TRAINED)
    result = trainability(model)
    assert result.refusals == []
    assert [choice.command for choice in result.losses] == ["bngrad step model.onnx -o step.onnx"]


def test_a_model_without_weights_has_gradients_of_inputs(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(ir.to_proto(parsed(REFUSED["no-weights"][0])), "m.onnx")
    err = command("step", "m.onnx", "-o", "s.onnx", "--loss-fn", "mse")[2]
    assert err.endswith("; for gradients of inputs, differentiate takes --wrt (wrt=): 'x' and 'target'\n")
    for name in ("x", "target"):
        options = ["-o", f"{name}.onnx", "--loss-fn", "mse", "--wrt", name]
        assert command("differentiate", "m.onnx", *options)[0] == 0


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    text, messages, without_gradient = REFUSED[case]
    result = trainability(parsed(text))
    assert len(result.refusals) == len(messages)
    for refusal, message in zip(result.refusals, messages, strict=True):
        assert message in refusal
    assert result.without_gradient == without_gradient


def test_graphs_that_are_built_already():
    model = parsed(MODELS["own"])
    step = bngrad.training_step(model)
    for graph in (step.model, step.evaluation, bngrad.differentiate(model)):
        assert bngrad.inspect(graph).training is None


def test_the_lines(command, tmp_path):
    path = str(tmp_path / "m.onnx")
    onnx.save(ir.to_proto(parsed(MODELS["softmax"])), path)
    out = command("inspect", path)[1].splitlines()
    go_on = f"bngrad step {path} -o step.onnx --loss-fn cross_entropy --prediction l"
    assert out[-5:] == [
        "inputs: x float Nx4",
        "outputs: y float Nx3",
        "weights: 1 with 12 parameters",
        "loss: none in the model; its last op suggests --loss-fn cross_entropy of 'l', with labels int64 N",
        f"to train: {go_on}",
    ]
    assert json.loads(command("inspect", path, "--json")[1])["training"]["losses"][0]["command"] == go_on


LINES = {
    "rows": "loss: none in the model; --loss-fn appends one, such as cross_entropy of 'y', with labels "
    "int64 N; or mse of 'y', with target float Nx3",
    "own": "loss: output 'loss'",
    "two-losses": "loss: needs --loss, the name of an output: 'a' or 'b'",
}


@pytest.mark.parametrize("case", LINES)
def test_the_line_of_the_loss(case):
    assert LINES[case] in [*training_lines(bngrad.inspect(parsed(MODELS[case])))]


def test_the_line_of_a_refusal():
    lines = [*training_lines(bngrad.inspect(parsed(REFUSED["op-without-a-gradient"][0])))]
    assert lines[-2].startswith("step refuses it: foo.Bar node 'k'")
    assert lines[-2].endswith("(and 1 more)")
    assert lines[-1] == "ops without a gradient: foo.Bar (1), foo.Baz (1)"
