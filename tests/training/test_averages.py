"""Moving and equal averages of weights and running statistics in the state of a step."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError
from bngrad.federated import average
from bngrad.training.weights_file import load_weights
from statistics_cases import reference, stacked, uneven_batches
from trainer_cases import batch, network

DECAY = 0.9


def step_of(**options):
    return bngrad.training_step(network(), ema=DECAY, **{"optimizer": "adam", **options})


def trained(step, calls=7):
    """A trainer, and the states after each call."""
    trainer = bngrad.Trainer(step, learning_rate=0.05)
    states = []
    for index in range(calls):
        trainer.step(**batch(index))
        states.append(trainer.state_dict())
    return trainer, states


@pytest.mark.parametrize("layout", ["named", "flat"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_averages_of_numpy(layout, accumulate):
    step = step_of(layout=layout, accumulate=accumulate)
    trainer, states = trained(step)
    assert set(step.info.averages) == set(step.info.names("weight", "running_statistic"))
    for name, averaged in step.info.averages.items():
        expected = None
        for state in states[accumulate - 1 :: accumulate]:
            value = state[name].astype(np.float64)
            expected = value if expected is None else DECAY * expected + (1 - DECAY) * value
        np.testing.assert_allclose(states[-1][averaged], expected, rtol=2e-6, atol=1e-7, err_msg=averaged)
        assert (states[-1][averaged] != states[-1][name]).any()
    plain = bngrad.Trainer(
        bngrad.training_step(network(), optimizer="adam", accumulate=accumulate), learning_rate=0.05
    )
    for index in range(7):
        plain.step(**batch(index))
    for name, array in plain.state_dict().items():
        np.testing.assert_allclose(trainer.state_dict()[name], array, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(("layout", "accumulate"), [("named", 1), ("flat", 2)])
@pytest.mark.parametrize(("start", "every"), [(1, 1), (3, 2), (9, 1)])
def test_equal_averages_of_numpy(layout, accumulate, start, every):
    options = {"optimizer": "adam", "layout": layout, "accumulate": accumulate}
    step = bngrad.training_step(network(), swa=start, swa_every=every, **options)
    assert (step.info.ema, step.info.swa, step.info.swa_every) == (None, start, every)
    _, states = trained(step, 7 * accumulate)
    updated = states[accumulate - 1 :: accumulate]
    for name, averaged in step.info.averages.items():
        for number, state in enumerate(updated, 1):
            due = [entry[name] for entry in updated[start - 1 : number : every]]
            expected = np.mean(due, axis=0, dtype=np.float64) if number >= start else state[name]
            np.testing.assert_allclose(state[averaged], expected, rtol=2e-6, atol=1e-7, err_msg=averaged)


WRONG_AVERAGES = {
    "decay": ({"ema": 1}, "ema is 1; expected a decay between 0 and 1"),
    "start": ({"swa": 0}, "swa is 0; expected a number of updates (int), at least 1"),
    "no number": ({"swa": True}, "swa is True; expected a number of updates (int), at least 1"),
    "every": ({"swa": 2, "swa_every": 0}, "swa_every is 0; expected a number of updates (int), at least 1"),
    "both": ({"swa": 2, "ema": 0.9}, "both ema and swa are given; a step keeps one average of each weight"),
    "every without swa": ({"swa_every": 2}, "swa_every is 2, but there is no swa; expected it with swa"),
}


@pytest.mark.parametrize("case", WRONG_AVERAGES)
def test_averages_that_are_refused(case):
    options, message = WRONG_AVERAGES[case]
    with pytest.raises(InputError) as error:
        bngrad.training_step(network(), **options)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_evaluation_and_the_inference_model_use_them(layout):
    step = step_of(layout=layout)
    trainer, states = trained(step)
    data, of_plain = batch(50), bngrad.Trainer(bngrad.training_step(network(), optimizer="adam"), learning_rate=0)
    averaged = step.info.averaged(states[-1])
    for uses, state in ((True, averaged), (False, states[-1]), (True, averaged)):
        of_plain.load_state_dict({name: state[name] for name in of_plain.info.state})
        trainer.uses_averages = uses
        np.testing.assert_array_equal(trainer.evaluate(**data)["loss"], of_plain.evaluate(**data)["loss"])
        logits = []
        for model in (trainer.finalize(), of_plain.finalize()):
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            logits.append(session.run(["logits"], {"x": data["x"]})[0])
        np.testing.assert_array_equal(*logits)
    before = trainer.evaluate(**data)["loss"]
    trainer.step(**data)
    assert trainer.evaluate(**data)["loss"] != before
    trainer.load_state_dict(states[-1])
    assert trainer.evaluate(**data)["loss"] == before


@pytest.mark.parametrize(("layout", "kind"), [("named", {"ema": DECAY}), ("flat", {"swa": 2})])
def test_statistics_of_the_averaged_weights(layout, kind):
    step = bngrad.training_step(stacked("float"), loss="loss", training=["*"], layout=layout, **kind)
    trainer, batches = bngrad.Trainer(step, learning_rate=0.05), uneven_batches(dtype=np.float32)
    for data in batches:
        trainer.step(**data)
    before = trainer.state_dict()
    trainer.estimate_statistics(batches)
    state = trainer.state_dict()
    model = stacked("float", **{name: before[f"{name}/average"] for name in ("w1", "w2")})
    for tensor in model.graph.initializer:
        if tensor.name in ("s1", "b1"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(before[f"{tensor.name}/average"], tensor.name))
    for name, value in reference(model, batches).items():
        np.testing.assert_allclose(state[f"{name}/average"], value, rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(state[name], before[name])
    trainer.uses_averages = False
    trainer.estimate_statistics(batches)
    assert (trainer.state_dict()["mean1"] != before["mean1"]).any()
    np.testing.assert_array_equal(trainer.state_dict()["mean1/average"], state["mean1/average"])


def test_files(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    trainer, states = trained(step_of())
    trainer.save("run.safetensors")
    arrays = load_weights("run.safetensors").arrays
    for name, averaged in trainer.info.averages.items():
        np.testing.assert_array_equal(arrays[name], states[-1][averaged])
    other, _ = trained(step_of(), 2)
    other.load("run.safetensors")
    np.testing.assert_array_equal(other.state_dict()["kernel/average"], states[-1]["kernel/average"])
    plain = bngrad.Trainer(bngrad.training_step(network(), optimizer="adam", ema=0.5), learning_rate=0)
    with pytest.raises(InputError, match=r"it was made with ema 0\.9, the step has 0\.5"):
        plain.load("run.safetensors")
    plain = bngrad.Trainer(bngrad.training_step(network(), optimizer="adam", swa=2), learning_rate=0)
    with pytest.raises(
        InputError, match=r"ema 0\.9, the step has None; it was made with swa None, the step has 2;"
    ):
        plain.load("run.safetensors")
    onnx.save(network(), "net.onnx")
    assert run(["finalize", "net.onnx", "--weights", "run.safetensors", "-o", "out.onnx"]) == 0
    values = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load("out.onnx").graph.initializer}
    np.testing.assert_array_equal(values["kernel"], states[-1]["kernel/average"])
    assert run(["step", "net.onnx", "-o", "step.onnx", "--ema", "0.9"]) == 0
    assert "average" in {entry.role for entry in bngrad.read_training_step("step.onnx").info.state.values()}
    assert run(["step", "net.onnx", "-o", "step.onnx", "--swa", "5", "--swa-every", "2"]) == 0
    info = bngrad.read_training_step("step.onnx").info
    assert (info.swa, info.swa_every, bool(info.averages)) == (5, 2, True)
    assert run(["step", "net.onnx", "-o", "step.onnx", "--ema", "1"]) == 2
    assert "ema is 1.0; expected a decay between 0 and 1, such as 0.999" in capsys.readouterr().err


def test_mixed_precision():
    step = step_of(precision="mixed", init_scale=2.0**100)
    trainer = bngrad.Trainer(step, learning_rate=0.05)
    trainer.step(**batch(0))  # skipped: the gradients are infinite
    state = trainer.state_dict()
    np.testing.assert_array_equal(state["kernel/average"], step.state["kernel"])
    assert state[step.info.names("skipped")[0]] == 1


def test_federated_averages_merge_the_variances_of_both():
    states = [trained(step_of(), calls)[1][-1] for calls in (2, 5)]
    result = average(states, [1, 3])
    for suffix in ("", "/average"):
        means, variances = (np.stack([s[name + suffix] for s in states]).astype(float) for name in ("mean", "var"))
        shares = np.array([0.25, 0.75])[:, None]
        mean = (shares * means).sum(0)
        expected = (shares * (variances + (means - mean) ** 2)).sum(0)
        np.testing.assert_allclose(result["var" + suffix], expected, rtol=1e-6)
    own = average(states, [1, 3], own=0, fedbn=True)
    np.testing.assert_array_equal(own["var/average"], states[0]["var/average"])
    np.testing.assert_array_equal(own["scale/average"], states[0]["scale/average"])
