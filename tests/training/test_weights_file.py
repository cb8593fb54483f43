"""``bngrad finalize`` with weights from files: .npz, .safetensors, states and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file

import bngrad
from bngrad.cli import run
from training.trainer_cases import batch, network

OPTIONS = {
    "sgd": {},
    "adamw-flat": {"optimizer": "adamw", "layout": "flat"},
    "accumulated": {"optimizer": bngrad.SGD(momentum=0.9), "accumulate": 2},
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "net.onnx")


@pytest.fixture
def command(capsys):
    def call(*arguments):
        code = run(["finalize", "net.onnx", "-o", "out.onnx", "--weights", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def trained(path, **options):
    trainer = bngrad.Trainer(bngrad.training_step(network(), **options), learning_rate=0.1)
    for index in range(3):
        trainer.step(**batch(index))
    trainer.save(path)
    return trainer


def logits(model):
    return bngrad.session(model).run(["logits"], {"x": batch(9)["x"]})[0]


@pytest.mark.parametrize("case", OPTIONS)
def test_a_checkpoint(case, command):
    trainer = trained("c", **OPTIONS[case])
    assert command("c") == (0, "out.onnx: 7 new values\n", "")
    np.testing.assert_allclose(logits("out.onnx"), logits(trainer.finalize()), rtol=1e-6)


def test_the_initial_state(command):
    bngrad.training_step(network(), optimizer="adam").save("step.onnx")
    assert command("step.safetensors")[0] == 0
    np.testing.assert_array_equal(logits("out.onnx"), logits(bngrad.finalize("net.onnx", {})))


def test_plain_weights(command):
    weights = {"weight": np.full((3, 4), 0.5, np.float32), "mean_new": np.full(4, 0.1, np.float32)}
    save_file(weights, "w.safetensors")
    np.savez("w.npz", **weights)
    Path("zip").write_bytes(Path("w.npz").read_bytes())
    models = []
    for file in ("w.safetensors", "w.npz", "zip"):
        code, out, _ = command(file)
        assert (code, out) == (0, "out.onnx: 2 new values, 5 unchanged\n")
        models.append(Path("out.onnx").read_bytes())
    assert models[0] == models[1] == models[2]


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_masters_get_the_type_of_the_weight(name, command):
    dtype = np.dtype({"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[name])
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N,2] x, {name}[2] w) => (float loss, float[N,2] y) {{
            wide = Cast <to = 1> (w)
            y = Mul (x, wide)
            q = Mul (y, y)
            loss = ReduceMean <keepdims = 0> (q) }}""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([1, 2], dtype), "w"))
    onnx.save(model, "net.onnx")
    trainer = bngrad.Trainer(bngrad.training_step("net.onnx"), learning_rate=0.3)
    trainer.step(x=np.ones((1, 2), np.float32))
    trainer.save("c")
    assert command("c")[0] == 0
    (weight,) = (tensor for tensor in onnx.load("out.onnx").graph.initializer if tensor.name == "w")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(weight), trainer.state_dict()["w"].astype(dtype))
    # Arrays that are no state are not cast.
    np.savez("w.npz", w=trainer.state_dict()["w"])
    code, _, err = command("w.npz")
    assert (code, err) == (2, f"bngrad: error: 'w' is float32; expected {name}, the type of 'w'\n")


def other(metadata, **tensors):
    save_file({"weight": np.zeros((3, 4), np.float32), **tensors}, "c", metadata)


REFUSED = {
    "text": (lambda: Path("c").write_text("text"), "c is not a .safetensors file, or is damaged"),
    "missing": (lambda: None, "c does not exist; expected an .npz or a .safetensors file"),
    "unknown": (lambda: other({}, weights=np.zeros(3, np.float32)), "'weights' is not a weight of this model"),
    "type": (lambda: other({}, offset=np.zeros(3)), "'offset' is float64; expected float32"),
    "metadata": (lambda: other({"bngrad.step": "["}), "c has metadata 'bngrad.step' that cannot be read"),
    "roles": (lambda: other({"bngrad.step": json.dumps({"roles": {}})}), "c does not record the role of each"),
    "roles-type": (lambda: other({"bngrad.step": json.dumps({"roles": 3})}), "c does not record the role of each"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_files(case, command):
    make, message = REFUSED[case]
    make()
    code, out, err = command("c")
    assert (code, out) == (2, "")
    assert err.startswith(f"bngrad: error: {message}")
    assert not Path("out.onnx").exists()


def test_the_state_of_another_model(command):
    other_model = network()
    other_model.graph.initializer[0].name = "kernel_of_another"
    other_model.graph.node[0].input[1] = "kernel_of_another"
    bngrad.Trainer(bngrad.training_step(other_model), learning_rate=0.1).save("c")
    code, _, err = command("c")
    assert (code, err[:56]) == (2, "bngrad: error: 'kernel_of_another' is not a weight of th")
