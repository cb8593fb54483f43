"""Learned scales of quantized activations (LSQ), and ranges that stay after some updates."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError
from bngrad.federated import average
from bngrad.io.tensor_files import read_tensors, write_tensors
from bngrad.training.step_info import KEY, read_step_info, write_step_info
from test_quantize import MLP, mlp, rounded_weight, run_stock, trained, vectors
from trainer_cases import batch, network, samples

LIMITS = {"uint8": (0, 255), "int8": (-127, 127)}


class Rounding:
    """The rounding of a tensor in float64, and its gradients.

    Args:
        x: The tensor.
        scale: Its scale.
        limits: Its range, which gives the zero point.
        kind: The type of integers; int8 is symmetric.
    """

    def __init__(self, x, scale, limits, kind):
        least, largest = LIMITS[kind]
        of_range = scale_of(limits, kind)
        zero = 0 if kind == "int8" else np.clip(least - np.rint(limits[0] / of_range), least, largest)
        ratio, bottom = x / scale, -128 if kind == "int8" else 0
        integers = np.rint(ratio) + zero
        clipped = np.clip(integers, bottom, largest)
        self.value, self.within = (clipped - zero) * scale, integers == clipped
        self._of_scale = np.where(self.within, np.rint(ratio) - ratio, clipped - zero)
        self._factor = 1 / np.sqrt(x.size * largest)

    def of_scale(self, dy):
        """The gradient of the scale, in "Learned Step Size Quantization" (Esser et al.), equations 3 to 5."""
        return (dy * self._of_scale).sum() * self._factor


def scale_of(limits, kind):
    low, high = limits
    return max(-low, high) / 127 if kind == "int8" else (high - low) / 255


def lsq_gradients(state, data, kind):
    """The loss of the network of `mlp` and the gradients of its scales, in float64."""
    value = {name: array.astype(np.float64) for name, array in state.items()}

    def rounding(tensor, x):
        limits = value[f"{tensor}/range"]
        return Rounding(x, value[f"{tensor}/scale"] or scale_of(limits, kind), limits, kind)

    w1, w2 = (rounded_weight(value[name]) for name in ("w1", "w2"))
    x = rounding("x", data["x"].astype(np.float64))
    h = x.value @ w1.T + value["b1"]
    inv_std = 1 / np.sqrt(h.var(0) + 1e-5)
    xhat = (h - h.mean(0)) * inv_std
    n = xhat * value["s"] + value["t"]
    before_relu = rounding("n", n) if kind == "int8" else None
    n = n if before_relu is None else before_relu.value
    r = rounding("r", np.maximum(n, 0))
    logits = rounding("logits", r.value @ w2.T)
    shares = np.exp(logits.value) / np.exp(logits.value).sum(1, keepdims=True)
    labels, rows = data["labels"], np.arange(len(h))
    of_logits = shares.copy()
    of_logits[rows, labels] -= 1
    of_logits /= len(h)
    of_r = (of_logits * logits.within) @ w2
    of_n = of_r * r.within * (n > 0)
    gradients = {"r": r.of_scale(of_r), "logits": logits.of_scale(of_logits)}
    if before_relu is not None:
        gradients["n"] = before_relu.of_scale(of_n)
        of_n = of_n * before_relu.within
    of_xhat = of_n * value["s"]
    of_h = (of_xhat - of_xhat.mean(0) - xhat * (of_xhat * xhat).mean(0)) * inv_std
    gradients["x"] = x.of_scale(of_h @ w1)
    return -np.log(shares[rows, labels]).mean(), gradients


@pytest.mark.parametrize("kind", LIMITS)
def test_the_steps_of_numpy(kind):
    """Losses, gradients and updates, with ranges of the first batch."""
    tensors = ["x", "r", "logits", *(["n"] if kind == "int8" else [])]
    trainer = trained(
        mlp()[0],
        calls=0,
        rate=0.005,
        quantize=kind,
        symmetric=kind == "int8",
        learned_scales=True,
        optimizer=bngrad.SGD(weight_decay=0.5),
        outputs=[f"{tensor}/scale_grad" for tensor in tensors],
    )
    for index in range(4):
        data, before = vectors(index), trainer.state_dict()
        loss, state = trainer.step(**data), trainer.state_dict()
        ranges = {f"{tensor}/range": state[f"{tensor}/range"] for tensor in tensors}
        expected, gradients = lsq_gradients({**before, **ranges}, data, kind)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        for tensor, gradient in gradients.items():
            name = f"{tensor}/scale"
            np.testing.assert_allclose(trainer.outputs[f"{name}_grad"], gradient, rtol=1e-4, atol=1e-7)
            old = before[name] or scale_of(ranges[f"{tensor}/range"], kind)
            np.testing.assert_allclose(state[name], old - 0.005 * gradient, rtol=1e-5)
        for name in ranges if index else ():
            np.testing.assert_array_equal(state[name], before[name])


@pytest.mark.parametrize("learned", [False, True])
def test_after_some_updates(learned):
    """Ranges and scales are those of moving averages, and then ranges stay and scales are trained."""
    options = {"quantize": "uint8", "optimizer": "adam", "accumulate": 2, "layout": "flat"}
    moving = trained(mlp()[0], vectors, calls=0, **options)
    trainer = trained(mlp()[0], vectors, calls=0, freeze_ranges=2, learned_scales=learned, **options)
    for index in range(4):
        assert trainer.step(**vectors(index)) == moving.step(**vectors(index))
    before = trainer.state_dict()
    for name, array in moving.state_dict().items():
        np.testing.assert_array_equal(before[name], array)
    for name in trainer.info.quantization.scales.values():
        np.testing.assert_allclose(
            before[name], scale_of(before[name.replace("scale", "range")], "uint8"), rtol=1e-6
        )
        assert not before[f"{name}/exp_avg"].any()
    for index in range(4, 6):
        trainer.step(**vectors(index))
    after = trainer.state_dict()
    for name in trainer.info.quantization.ranges.values():
        np.testing.assert_array_equal(after[name], before[name])
    for name in trainer.info.quantization.scales.values():  # the first update of Adam
        np.testing.assert_allclose(abs(after[name] - before[name]), 0.01, rtol=1e-3)


def test_ranges_that_are_given():
    """They stay from the first batch on, and so do scales."""
    values = {"x/range": np.array([-2, 2], np.float32), "r/scale": np.array(0.25, np.float32)}
    options = {"quantize": "uint8", "freeze_ranges": 0, "learned_scales": True, "values": values}
    trainer = trained(mlp()[0], vectors, calls=1, rate=0, **options)
    state = trainer.state_dict()
    np.testing.assert_array_equal(state["x/range"], [-2, 2])
    np.testing.assert_allclose(state["x/scale"], 4 / 255, rtol=1e-6)
    assert state["r/scale"] == 0.25
    assert state["logits/range"][0] < 0 < state["logits/range"][1]


@pytest.mark.parametrize(
    "options",
    [
        {"quantize": "int8", "symmetric": True, "swa": 2},
        {"quantize": "uint8", "freeze_ranges": 1, "ema": 0.5, "clip_norm": 1.0, "group_updates": True},
    ],
)
def test_the_deployed_model(options):
    trainer = trained(mlp()[0], vectors, rate=0.003, learned_scales=True, **options)
    data = vectors(50)
    (logits,) = run_stock(trainer.finalize(), data["x"], "logits")
    expected = trainer.evaluate(**data)["logits"]
    scale = trainer.state_dict()["logits/scale/average"]
    assert np.abs(logits - expected).max() < 1.01 * scale
    np.testing.assert_allclose(np.rint(logits / scale), logits / scale, atol=1e-3)


def test_scales_stay_above_0():
    trainer = trained(mlp()[0], vectors, rate=10, quantize="uint8", learned_scales=True)
    state = trainer.state_dict()
    assert min(state[name] for name in trainer.info.quantization.scales.values()) == 2.0**-23
    trainer.finalize()


def test_weight_decay_of_a_group():
    group = bngrad.ParameterGroup(names=["*/scale"], weight_decay=0.5)
    options = {"quantize": "uint8", "learned_scales": True, "optimizer": bngrad.SGD(weight_decay=0.1)}
    plain, decayed = (
        trained(mlp()[0], vectors, calls=1, **options, groups=groups).state_dict() for groups in ([], [group])
    )
    for name in ("x/scale", "r/scale", "logits/scale"):
        first = scale_of(plain[name.replace("scale", "range")], "uint8")
        np.testing.assert_allclose(decayed[name], plain[name] - 0.01 * 0.5 * first, rtol=1e-5)


def test_averages_of_clients():
    """A client that has not trained has no scales yet."""
    step = bngrad.training_step(mlp()[0], quantize="uint8", learned_scales=True, ema=0.9)
    states = []
    for client in range(3):
        trainer = bngrad.Trainer(step, learning_rate=0.001)
        for index in range(client):
            trainer.step(**vectors(10 * client + index))
        states.append(trainer.state_dict())
    averaged = average(states, [1, 2, 3])
    for name in ("x/scale", "r/scale/average"):
        expected = (2 * float(states[1][name]) + 3 * float(states[2][name])) / 5
        np.testing.assert_allclose(averaged[name], expected, rtol=1e-6)
    assert average(states[:1], [1])["x/scale"] == 0


def test_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "net.onnx")
    np.savez("train.npz", **samples(24))
    options = ["--quantize", "uint8", "--learned-scales", "--freeze-ranges", "1", "--json"]
    assert run(["step", "net.onnx", "-o", "step.onnx", *options]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert step["quantization"]["scales"] == {name: f"{name}/scale" for name in ("x", "r", "p", "logits")}
    assert {step["state"][name]["role"] for name in step["quantization"]["scales"].values()} == {"weight"}
    options = ["--epochs", "1", "--learning-rate", "0.01", "--state-out", "run.safetensors", "-o", "trained.onnx"]
    assert run(["train", "step.onnx", "--data", "train.npz", *options]) == 0
    assert run(["finalize", "net.onnx", "--weights", "run.safetensors", "-o", "int8.onnx"]) == 0
    x = batch(50)["x"]
    (logits,), (expected,) = (run_stock(onnx.load(name), x, "logits") for name in ("int8.onnx", "trained.onnx"))
    np.testing.assert_array_equal(logits, expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantize": None}, r"learned_scales is for quantize, which is not given; add --quantize"),
        ({"quantize": None, "learned_scales": False, "freeze_ranges": 0}, r"freeze_ranges is for quantize"),
        ({"freeze_ranges": -1}, r"freeze_ranges is -1; expected a number of updates \(int\), at least 0"),
        ({"freeze_ranges": True}, r"freeze_ranges is True; expected a number of updates"),
        ({"precision": "mixed"}, r"cannot be combined with --precision"),
        ({"sync": True}, r"cannot be combined with --sync"),
        ({"values": {"x/scale": np.array(-1, np.float32)}}, r"the scale 'x/scale' is -1.0; expected a finite"),
        ({"values": {"x/scale": np.array(np.nan, np.float32)}}, r"the scale 'x/scale' is nan"),
        ({"values": {"x/scale": np.ones(1, np.float32)}}, r"the initial value of 'x/scale' has shape"),
        ({"learned_scales": False, "values": {"x/scale": np.array(1, np.float32)}}, r"'x/scale' is not a train"),
    ],
)
def test_what_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        bngrad.training_step(mlp()[0], **{"quantize": "uint8", "learned_scales": True, **options})


def test_tensors_that_the_loss_does_not_need():
    text = MLP.replace("float[N,3] logits)", "float[N,3] logits, float[N,3] other)")
    model = onnx.parser.parse_model(text.replace("loss =", "other = Gemm <transB = 1> (r, w3) loss ="))
    model.graph.initializer.extend(mlp()[0].graph.initializer)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 7), np.float32), "w3"))
    with pytest.raises(ModelError, match=r"the loss does not depend on 'other', .*--learned-scales"):
        bngrad.training_step(model, quantize="uint8", learned_scales=True)
    trained(model, vectors, calls=1, quantize="uint8")


def test_files_that_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trainer = trained(mlp()[0], vectors, calls=1, rate=0.001, quantize="uint8", learned_scales=True)
    onnx.save(mlp()[0], "net.onnx")
    trainer.save("run.safetensors")
    arrays, metadata = read_tensors("run.safetensors")
    document = json.loads(metadata[KEY])
    negative = {**arrays, "x/scale": np.array(-1, np.float32)}
    recorded = document["quantization"]["scales"]
    for scales, tensors, message in (
        ({"x": "w1"}, arrays, "has a scale that is not a float32 number"),
        ({"x": "y"}, arrays, "does not record its quantization"),
        ({}, negative, "the scale 'x/scale' is -1.0; expected a finite number"),
    ):
        document["quantization"]["scales"] = {**recorded, **scales}
        write_tensors(tmp_path / "other.safetensors", tensors, {KEY: json.dumps(document)})
        assert run(["finalize", "net.onnx", "--weights", "other.safetensors", "-o", "int8.onnx"]) == 2
        assert message in capsys.readouterr().err
    trained(mlp()[0], vectors, calls=1, quantize="uint8").save("older.safetensors")
    arrays, metadata = read_tensors("older.safetensors")
    document = json.loads(metadata[KEY])
    del document["quantization"]["scales"]  # as of an older bngrad
    write_tensors(tmp_path / "older.safetensors", arrays, {KEY: json.dumps(document)})
    assert run(["finalize", "net.onnx", "--weights", "older.safetensors", "-o", "int8.onnx"]) == 0
    broken = replace(trainer.info, quantization=replace(trainer.info.quantization, scales={"x": "w1"}))
    model = ir.Model(ir.Graph([], [], nodes=[]), ir_version=9)
    write_step_info(model, broken)
    with pytest.raises(ModelError, match=r"the scale 'w1' is not a float32 number of its state"):
        read_step_info(model.metadata_props)
