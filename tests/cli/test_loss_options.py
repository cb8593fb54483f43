"""``bngrad differentiate`` with a loss function, without defaults, and its state file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from safetensors.numpy import load_file

import bngrad
from bngrad.cli import run

NET = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,2,4,4] x) => (float[N,2] logits)
        <float[2] scale = {1, 2}, float[2] bias = {0, 1}, float[2] mean = {0, 0},
        float[2] variance = {1, 1}, float ratio = {0.5}> {
    [first] y, m_new, v_new = BatchNormalization <training_mode = 1> (x, scale, bias, mean, variance)
    pooled = GlobalAveragePool (y)
    flat = Flatten (pooled)
    logits = Mul (flat, scale)
}"""
STATE = ["bias", "mean", "scale", "variance"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.onnx").write_bytes(onnx.parser.parse_model(NET).SerializeToString())
    np.save("weights.npy", np.float32([1, 3]))
    np.save("objects.npy", np.array([None]), allow_pickle=True)
    Path("text.npy").write_text("not an array")
    return tmp_path


@pytest.fixture
def command(command):
    return lambda *arguments: command("differentiate", "net.onnx", "-o", "out.onnx", *arguments)


CASES = {
    "cross_entropy": (["cross_entropy"], {}),
    "options of cross_entropy": (
        ["cross_entropy", "--label-smoothing", "0.1", "--ignore-index", "1", "--class-weights", "weights.npy"],
        {"label_smoothing": 0.1, "ignore_index": 1, "weight": [1, 3]},
    ),
    "mse": (["mse", "--reduction", "sum", "--prediction", "flat"], {"reduction": "sum"}),
    "l1": (["l1"], {}),
    "bce": (["bce_with_logits", "--pos-weight", "2.5"], {"pos_weight": 2.5}),
    "bce, file": (["bce_with_logits", "--pos-weight", "weights.npy"], {"pos_weight": [1, 3]}),
}


@pytest.mark.parametrize("case", CASES)
def test_options_reach_the_loss(command, case, rng):
    from bngrad.training.loss_functions import loss_function

    (name, *arguments), options = CASES[case]
    code, out, err = command("--loss-fn", name, *arguments, "--json")
    assert (code, err) == (0, "")
    target = json.loads(out)["target"]
    assert target == ("labels" if name == "cross_entropy" else "target")
    prediction = "flat" if "flat" in arguments else None
    same = bngrad.differentiate("net.onnx", loss_fn=loss_function(name, **options), prediction=prediction)
    value = np.int64([0, 1, 0]) if name == "cross_entropy" else np.ones((3, 2), np.float32)
    feeds = {"x": rng.standard_normal((3, 2, 4, 4)).astype(np.float32), target: value}
    ours, theirs = (
        bngrad.session(model, "function").run(["loss", "scale_grad"], feeds) for model in ("out.onnx", same)
    )
    for result, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(result, other)
    assert ours[0] > 0


def test_the_default_options_are_those_of_the_loss(command, rng):
    """An option that is ignored on its way would pass the test above."""
    feeds = {"x": rng.standard_normal((3, 2, 4, 4)).astype(np.float32), "labels": np.int64([0, 1, 0])}
    losses = set()
    for arguments in ([], ["--label-smoothing", 0.1], ["--ignore-index", 1], ["--class-weights", "weights.npy"]):
        assert command("--loss-fn", "cross_entropy", *arguments)[0] == 0
        losses.add(float(bngrad.session("out.onnx", "function").run(["loss"], feeds)[0]))
    assert len(losses) == 4


def test_no_defaults_and_state(command, rng):
    code, out, err = command("--loss-fn", "mse", "--no-defaults", "--state", "state.safetensors", "--json")
    assert (code, err, json.loads(out)["state"]) == (0, "", "state.safetensors")
    state = load_file("state.safetensors")
    assert sorted(state) == STATE
    np.testing.assert_array_equal(state["scale"], np.float32([1, 2]))
    session = onnxruntime.InferenceSession("out.onnx", providers=["CPUExecutionProvider"])
    assert {value.name for value in session.get_inputs()} == {"x", "target", *STATE}
    feeds = {"x": rng.standard_normal((3, 2, 4, 4)).astype(np.float32), "target": np.ones((3, 2), np.float32)}
    names = [output.name for output in session.get_outputs()]
    without = session.run(names, {**feeds, **state})
    with pytest.raises(ValueError, match="scale"):
        session.run(names, feeds)
    assert command("--loss-fn", "mse")[0] == 0
    for result, other in zip(without, bngrad.session("out.onnx", "function").run(names, feeds), strict=True):
        np.testing.assert_array_equal(result, other)


def test_no_defaults_in_python():
    training = bngrad.differentiate("net.onnx", loss_fn="mse", defaults=False)
    assert not {tensor.name for tensor in training.graph.initializer} & set(STATE)
    graph = bngrad.read_training_graph(training)
    assert sorted({*graph.gradients, *graph.running_statistics}) == STATE


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
def test_state_in_other_types(dtype):
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g ({dtype}[N,2] x) => ({dtype}[N,2] y) <{dtype}[2] weight = {{1, 2}}, {dtype} bias = {{3}}> {{
        z = Mul (x, weight)
        y = Add (z, bias)
    }}"""
    model = onnx.parser.parse_model(text)
    Path("net.onnx").write_bytes(model.SerializeToString())
    assert (
        run(["differentiate", "net.onnx", "-o", "out.onnx", "--loss-fn", "mse", "--state", "s.safetensors"]) == 0
    )
    content = Path("s.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    for tensor in model.graph.initializer:
        entry = header[tensor.name]
        assert entry["dtype"] == {"float16": "F16", "bfloat16": "BF16", "double": "F64"}[dtype]
        assert entry["shape"] == list(tensor.dims)
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        assert content[begin:end] == onnx.numpy_helper.to_array(tensor).tobytes()


ERRORS = {
    "unknown": (["--loss-fn", "hinge"], "'hinge' is not one of"),
    "loss named, too": (["--loss-fn", "mse", "--loss", "logits"], "expected either --loss (loss=) or --loss-fn"),
    "option without a loss function": (["--label-smoothing", 0.1], "--label-smoothing has no effect alone"),
    "option of another": (["--loss-fn", "mse", "--ignore-index", 1], "--ignore-index is not an option of mse"),
    "option with a name of its own": (
        ["--loss-fn", "mse", "--class-weights", "weights.npy"], "--class-weights is not an option of mse",
    ),
    "reduction alone": (["--reduction", "sum"], "--reduction has no effect alone; expected --loss-fn"),
    "prediction alone": (["--prediction", "flat"], "without a loss function; add --loss-fn"),
    "unknown prediction": (["--loss-fn", "mse", "--prediction", "flats"], "did you mean 'flat'?"),
    "no weights file": (
        ["--loss-fn", "cross_entropy", "--class-weights", "no.npy"], "no.npy does not exist; expected",
    ),
    "weights of objects": (
        ["--loss-fn", "cross_entropy", "--class-weights", "objects.npy"], "objects.npy is not an .npy file of",
    ),
    "weights of text": (
        ["--loss-fn", "bce_with_logits", "--pos-weight", "text.npy"], "text.npy is not an .npy file of",
    ),
    "smoothing": (["--loss-fn", "cross_entropy", "--label-smoothing", 2], "label_smoothing is 2.0; expected"),
    "state is the output": (["--loss-fn", "mse", "--state", "out.onnx"], "--state out.onnx is the output"),
    "state is the input": (["--loss-fn", "mse", "--state", "net.onnx"], "is the input; choose another file"),
    "no folder for the state": (["--loss-fn", "mse", "--state", "no/s.safetensors"], "folder no does not exist"),
    "no loss at all": ([], "the model has no float scalar outputs; name the loss with --loss, or append one with"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_and_writes_nothing(command, folder, case):
    arguments, message = ERRORS[case]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("bngrad: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_state_that_cannot_be_followed_by_its_model_is_not_left(command, folder, monkeypatch):
    from bngrad.errors import InputError
    from bngrad.io import files

    def fail(*_):
        raise InputError("out.onnx cannot be written: No space left on device")

    monkeypatch.setattr(files, "save", fail)
    before = sorted(path.name for path in folder.iterdir())
    assert command("--loss-fn", "mse", "--state", "state.safetensors")[0] == 2
    assert sorted(path.name for path in folder.iterdir()) == before
