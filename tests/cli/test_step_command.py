"""``bngrad step``: what it writes and prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import bngrad

FORWARD = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,3] x, int64[N] labels) => (float loss, float[N,2] logits)
<float[3,2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0, 0}> {
    product = MatMul (x, w)
    logits = Add (product, b)
    loss = SoftmaxCrossEntropyLoss (logits, labels)
}"""
FILES = ["step.eval.onnx", "step.onnx", "step.safetensors"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(onnx.parser.parse_model(FORWARD), "net.onnx")
    return tmp_path


def test_three_files(command):
    code, out, err = command("step", "net.onnx", "-o", "step.onnx", "--optimizer", "adamw")
    assert (code, err) == (0, "")
    assert out == (
        "step.onnx: adamw step of loss: 2 weights, 0 running statistics\n"
        "evaluation graph: step.eval.onnx; initial state: step.safetensors\n"
    )
    assert sorted(path.name for path in Path().iterdir()) == sorted(["net.onnx", *FILES])


def test_one_weight_is_no_plural(command):
    code, out, _ = command("step", "net.onnx", "-o", "step.onnx", "--wrt", "w")
    assert (code, out.splitlines()[0]) == (0, "step.onnx: sgd step of loss: 1 weight, 0 running statistics")


def test_options_reach_the_step(command):
    options = ["--momentum", "0.9", "--nesterov", "--weight-decay", "0.1", "--no-decay-1d", "--lr-scale", "w=0.5"]
    options += [
        "--clip-norm",
        "2",
        "--accumulate",
        "2",
        "--layout",
        "flat",
        "--fetch",
        "logits",
        "--with-defaults",
    ]
    assert command("step", "net.onnx", "-o", "step.onnx", *options)[0] == 0
    step = bngrad.training_step(
        "net.onnx",
        optimizer=bngrad.SGD(momentum=0.9, nesterov=True, weight_decay=0.1),
        groups=[
            bngrad.ParameterGroup(names=["w"], learning_rate_scale=0.5),
            bngrad.ParameterGroup(max_rank=1, weight_decay=0),
        ],
        clip_norm=2,
        accumulate=2,
        layout="flat",
        outputs=["logits"],
        defaults=True,
    )
    written = bngrad.read_training_step("step.onnx")
    assert written.info == step.info
    session, other = bngrad.session(written.model), bngrad.session(step.model)
    feeds = {"x": np.eye(3, dtype=np.float32), "labels": np.array([0, 1, 1])}
    feeds["learning_rate"] = np.array(0.1, np.float32)
    feeds["state"] = step.info.flatten(step.state)
    for _ in range(2):
        results, expected = session.run(None, feeds), other.run(None, feeds)
        assert all(map(np.array_equal, results, expected))
        feeds["state"] = results[-1]
    assert step.info.unflatten(feeds["state"])["step"] == 1


def test_json(command):
    code, out, _ = command("step", "net.onnx", "-o", "step.onnx", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["files"] == ["step.eval.onnx", "step.safetensors", "step.onnx"]
    assert document["step"]["state"]["w"] == {
        "role": "weight",
        "dtype": "float32",
        "shape": [3, 2],
        "new": "w_new",
    }


REFUSALS = [
    (
        ["--optimizer", "adam", "--momentum", "0.9"],
        "--momentum is not an option of adam; expected --optimizer sgd or rmsprop",
    ),
    (["--beta1", "0.9"], "--beta1 is not an option of sgd; expected --optimizer adam, adamw or lion"),
    (["--nesterov"], "nesterov is true and momentum is 0"),
    (["--no-decay", "v*"], "'v*' is not a trainable weight of this model, which has 'b' and 'w'"),
    (["--lr-scale", "w"], "'w' is not of the form NAME=X with a number X"),
    (["--lr-scale", "w=fast"], "'w=fast' is not of the form NAME=X"),
    (["--clip-norm", "0"], "clip_norm is 0.0; expected a finite number above 0"),
    (["--accumulate", "0"], "0 is not in the range x>=1"),
    (["--layout", "vector"], "'vector' is not one of 'named', 'flat'"),
    (["--fetch", "logit"], "'logit' is not an output of the training graph"),
    (["--loss", "logits"], "is not a float scalar"),
    (["--wrt", "v"], "'v' is not an input or initializer"),
    (["-o", "net.onnx"], "output net.onnx is the input"),
    (["-o", "nowhere/step.onnx"], "output folder nowhere does not exist"),
]


@pytest.mark.parametrize(("options", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_refusals(command, options, message):
    code, out, err = command("step", "net.onnx", "-o", "step.onnx", *options)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
    assert [path.name for path in Path().iterdir()] == ["net.onnx"]


def test_output_beside_the_input_is_kept(command):
    Path("net.onnx").rename("step.eval.onnx")
    code, _, err = command("step", "step.eval.onnx", "-o", "step.onnx")
    assert code == 2
    assert "output step.eval.onnx is the input" in err


def test_output_with_the_name_of_the_state_is_refused(command):
    code, _, err = command("step", "net.onnx", "-o", "step.safetensors")
    assert (code, "has the name of the initial state" in err) == (2, True)
    assert not Path("step.safetensors").exists()


@pytest.mark.parametrize("arguments", ["step -o w.data", "differentiate -o t --state w.data"])
def test_external_data_of_the_input_is_kept(arguments, command):
    model = onnx.load("net.onnx")
    for tensor in model.graph.initializer:  # only raw data become external
        tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, "external.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    before = Path("w.data").read_bytes()
    name, *options = arguments.split()
    code, _, err = command(name, "external.onnx", *options)
    assert (code, "output w.data is the external data of the input" in err) == (2, True)
    assert Path("w.data").read_bytes() == before


def test_state_that_is_the_output_by_another_path(command):
    Path("sub").mkdir()
    code, _, err = command("differentiate", "net.onnx", "-o", "t.onnx", "--state", "sub/../t.onnx")
    assert (code, "is the output" in err, Path("t.onnx").exists()) == (2, True, False)
