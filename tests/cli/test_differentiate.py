"""``bngrad differentiate`` and ``bngrad finalize``: what they write and print, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.passes.pipeline import unknown_to_stock
from bngrad.runtime.session import session

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
NET = """g (float[N,2,4,4] x, float[2] m, float[2] v) => (float loss, float[2] m_new, float[2] v_new)
        <float[2] s = {1, 2}, float[2] b = {0, 1}, float[2] m = {0, 0}, float[2] v = {1, 1}> {
    [first] y, m_new, v_new = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    [relu] z = Relu (y)
    [second] w = BatchNormalization (z, s, b, m, v)
    [loss] loss = ReduceMean <keepdims = 0> (w)
}"""
FILES = {
    "net.onnx": NET,
    "frozen.onnx": NET.replace(
        "y, m_new, v_new = BatchNormalization <training_mode = 1>", "y = BatchNormalization"
    ).replace("float[2] m_new, float[2] v_new", "float[N,2,4,4] y"),
    "two.onnx": NET.replace("float loss,", "float loss, float other,").replace(
        "    [loss]", "    other = ReduceSum <keepdims = 0> (w)\n    [loss]"
    ),
    "taken.onnx": NET.replace("m_new", "s_grad"),
    "hard.onnx": """g (int64 n, float x, float r) => (float loss) {
        a = MelWeightMatrix (n, n, n, x, r)
        c = ReduceMax <keepdims = 0> (a)
        b = MelWeightMatrix (n, n, n, c, r)
        loss = ReduceSum <keepdims = 0> (b)
    }""",
    "dropout.onnx": """g (float[4] x, float r, bool t) => (float loss) {
        a = Dropout (x, r, t)
        loss = ReduceSum <keepdims = 0> (a)
    }""",
    "integer.onnx": "g (int64[4] x) => (int64 loss) { loss = ReduceSum <keepdims=0> (x) }",
    "grad.onnx": "g (float[4] dy, float[4] x) => (float[4] dx) { dx = com.microsoft.ReluGrad (dy, x) }",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_bytes(onnx.parser.parse_model(HEADER + text).SerializeToString())
    np.savez("trained.npz", s=np.float32([2, 3]), m_new=np.float32([0.5, 0.5]))
    np.savez("misnamed.npz", scale=np.float32([2, 3]))
    Path("text.npz").write_text("not an archive")
    return tmp_path


def domains(path):
    return {(node.domain, node.op_type) for node in onnx.load(path).graph.node if node.domain}


def test_training_graph_for_stock(command, rng):
    line = "out.onnx: the gradient of loss with respect to 2 values, 2 running statistics\n"
    assert command("differentiate", "net.onnx", "-o", "out.onnx") == (0, line, "")
    assert [output.name for output in onnx.load("out.onnx").graph.output] == [
        "loss", "m_new", "v_new", "s_grad", "b_grad",
    ]  # fmt: skip
    runner = session("out.onnx", "function")
    values = runner.run(None, {"x": rng.standard_normal((3, 2, 4, 4)).astype(np.float32)})
    assert all(np.isfinite(value).all() for value in values)


def test_one_value_is_no_values(command):
    line = "out.onnx: the gradient of loss with respect to 1 value, 2 running statistics\n"
    assert command("differentiate", "net.onnx", "-o", "out.onnx", "--wrt", "s") == (0, line, "")


def test_json(command):
    code, out, err = command(
        "differentiate", "net.onnx", "-o", "out.onnx", "--wrt", "x", "--frozen", "*", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "model": "net.onnx",
        "output": "out.onnx",
        "loss": "loss",
        "gradients": {"x": "x_grad"},
        "running_statistics": {},
        "target": None,
        "state": None,
        "notes": [],
        "warnings": [],
    }


def test_warnings(command):
    code, out, err = command("differentiate", "frozen.onnx", "-o", "out.onnx", "--json")
    (warning,) = json.loads(out)["warnings"]
    assert (code, err) == (0, f"bngrad: warning: {warning}\n")
    assert "no batch norm in training mode" in warning
    assert bngrad.read_training_graph("out.onnx").warnings == [warning]
    assert command("differentiate", "frozen.onnx", "-o", "out.onnx", "--frozen", "second")[2] == ""


def test_running_variance(command):
    for option in ("biased", "unbiased"):
        assert command("differentiate", "net.onnx", "-o", "out.onnx", "--running-variance", option)[0] == 0
        (node,) = (n for n in onnx.load("out.onnx").graph.node if n.op_type == "BatchNormalizationTraining")
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        assert attributes["unbiased_running_var"] == (option == "unbiased")


@pytest.mark.parametrize("subcommand", ["differentiate", "step"])
def test_stop_gradient(command, subcommand):
    assert command(subcommand, "net.onnx", "-o", "out.onnx", "--stop-gradient", "z")[0] == 0
    assert {name for _, name in domains("out.onnx") if "Grad" in name} == {"BatchNormalizationGrad"}


TARGETS = {
    "stock": {"BatchNormalizationTraining", "BatchNormalizationReluGrad", "BatchNormalizationGrad"},
    "training": {"BatchNormalizationTraining", "BatchNormalizationGrad", "ReluGrad", "Scale"},
    "ort": {"BatchNormInternal", "BatchNormalizationGrad", "ReluGrad", "Scale"},
}


@pytest.mark.parametrize("target", TARGETS)
def test_targets(command, target):
    assert command("differentiate", "net.onnx", "-o", "out.onnx", "--target", target)[0] == 0
    used = domains("out.onnx")
    assert {op_type for _, op_type in used} <= TARGETS[target]
    assert {"stock": {"bngrad"}, "training": {"bngrad", "com.microsoft"}, "ort": {"com.microsoft"}}[target] == {
        domain for domain, _ in used
    }
    if target == "stock":
        import onnx_ir as ir

        assert not unknown_to_stock(ir.load("out.onnx"))


@pytest.mark.parametrize(
    ("options", "training"),
    [([], {"first"}), (["--frozen", "fir*"], set()), (["--training", "second"], {"first", "second"})],
    ids=["as exported", "frozen", "training"],
)
def test_modes(command, options, training):
    assert command("differentiate", "net.onnx", "-o", "out.onnx", "--target", "ort", *options)[0] == 0
    nodes = onnx.load("out.onnx").graph.node
    assert {node.name for node in nodes if node.op_type == "BatchNormInternal"} == training


def test_ort_builder_gives_the_same_gradients(command, rng):
    for builder in ("bngrad", "ort"):
        assert command("differentiate", "net.onnx", "-o", f"{builder}.onnx", "--builder", builder)[0] == 0
    feeds = {"x": rng.standard_normal((3, 2, 4, 4)).astype(np.float32)}
    names = ["loss", "m_new", "v_new", "s_grad", "b_grad"]
    ours, theirs = (session(f"{b}.onnx", "function").run(names, feeds) for b in ("bngrad", "ort"))
    for value, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


OUT = ("-o", "out.onnx")
ERRORS = {
    "no file": (["differentiate", "no.onnx", *OUT], "no.onnx does not exist; expected an ONNX model file"),
    "no output": (["differentiate", "net.onnx"], "Missing option '-o' / '--output'"),
    "two losses": (["differentiate", "two.onnx", *OUT], "the model has 2 float scalar outputs; name the loss"),
    "unknown loss": (["differentiate", "net.onnx", *OUT, "--loss", "los"], "did you mean 'loss'?"),
    "loss that is no scalar": (["differentiate", "net.onnx", *OUT, "--loss", "z"], "is not a float scalar"),
    "integer loss": (["differentiate", "integer.onnx", *OUT], "the model has no float scalar outputs"),
    "unknown wrt": (["differentiate", "net.onnx", *OUT, "--wrt", "q"], "'q' is not an input or initializer"),
    "unknown stop": (
        ["differentiate", "net.onnx", *OUT, "--stop-gradient", "los"],
        "'los' is not a value of this model; did you mean 'loss'?",
    ),
    "stop at the loss": (
        ["step", "net.onnx", *OUT, "--stop-gradient", "loss"],
        "'loss' is the loss, so that no gradient would be left; leave it out of --stop-gradient",
    ),
    "running statistic": (
        ["differentiate", "net.onnx", *OUT, "--wrt", "m", "--training", "*"],
        "'m' is not an input or initializer of this model, which has",
    ),
    "input without a gradient": (
        ["differentiate", "dropout.onnx", *OUT, "--wrt", "r"],
        "Dropout node 'a' (outputs a) cannot be differentiated: it has no gradient with respect to input 1, 'r'",
    ),
    "unknown batch norm": (
        ["differentiate", "net.onnx", *OUT, "--frozen", "third"],
        "'third' is not a batch norm",
    ),
    "no rule": (
        ["differentiate", "hard.onnx", *OUT, "--wrt", "x"],
        "MelWeightMatrix node 'a' (outputs a) cannot be differentiated: it has no gradient rule (and 1 more: MelW",
    ),
    "training graph": (["differentiate", "grad.onnx", *OUT], "the model is a training graph already"),
    "unbiased variance in ORT's dialect": (
        ["differentiate", "net.onnx", *OUT, "--target", "ort", "--running-variance", "unbiased"],
        "target 'ort' cannot have the unbiased running variance",
    ),
    "gradient's name": (
        ["differentiate", "taken.onnx", *OUT],
        "the model has a value 's_grad', the name of the gradient with respect to 's'; rename that value",
    ),
    "wrong target": (["differentiate", "net.onnx", *OUT, "--target", "cuda"], "'cuda' is not one of"),
    "output is the input": (["differentiate", "net.onnx", "-o", "net.onnx"], "is the input; choose another file"),
    "finalize: no weights": (["finalize", "net.onnx", *OUT], "Missing option '--weights'"),
    "finalize: no archive": (["finalize", "net.onnx", *OUT, "--weights", "text.npz"], "is not an .npz file"),
    "finalize: unknown": (["finalize", "net.onnx", *OUT, "--weights", "misnamed.npz"], "'scale' is not a weight"),
    "finalize: only losses": (
        ["finalize", "net.onnx", *OUT, "--weights", "trained.npz"],
        "no output but losses and running statistics",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_and_writes_nothing(command, folder, case):
    arguments, message = ERRORS[case]
    before = sorted(path.name for path in folder.iterdir())
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("bngrad: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(path.name for path in folder.iterdir()) == before


def test_shared_statistics(command):
    separate = ["first/running_mean", "first/running_var", "second/running_mean", "second/running_var"]
    arguments = ("differentiate", "net.onnx", "-o", "out.onnx", "--training", "*", "--json")
    for option, names in ((), separate), (("--shared-statistics", "chain"), ["m", "v"]):
        code, out, err = command(*arguments, *option)
        assert (code, err) == (0, "")
        assert sorted(json.loads(out)["running_statistics"]) == names
        assert {value.name for value in onnx.load("out.onnx").graph.input} == {"x", "s", "b", *names}
    code, out, err = command(*arguments, "--shared-statistics", "tied")
    assert (code, out) == (2, "")
    assert "'tied' is not one of 'separate', 'chain'" in err


def test_finalize(command):
    code, out, err = command(
        "finalize", "net.onnx", "-o", "out.onnx", "--weights", "trained.npz", "--keep", "loss", "--json"
    )
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "model": "net.onnx",
        "output": "out.onnx",
        "weights": ["s", "first/running_mean"],
        "kept": ["b", "m", "v"],
    }
    model = onnx.load("out.onnx")
    values = {t.name: onnx.numpy_helper.to_array(t).tolist() for t in model.graph.initializer}
    # The second batch norm is frozen: it keeps the mean that it was trained with.
    assert values == {"s": [2, 3], "first/running_mean": [0.5, 0.5], "m": [0, 0], "b": [0, 1], "v": [1, 1]}
    assert [value.name for value in model.graph.input] == ["x"]
