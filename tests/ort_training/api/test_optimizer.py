"""Tests of Optimizer and LinearLRScheduler."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.ort_training.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from bngrad.ort_training.checkpoint_file import GROUP, read_checkpoint, write_checkpoint
from bngrad.ort_training.errors import OrtTrainingError, OrtTrainingTypeError
from ort_training import small_artifacts
from ort_training.small_artifacts import batch


@pytest.fixture
def optimizer(linear, module):
    return Optimizer(linear / "adamw.onnx", module)


def adamw(weight, gradients, rate):
    """AdamW of transformers, with the defaults of ONNX Runtime's op, in float64."""
    first = second = np.zeros_like(weight)
    alpha, beta = float(np.float32(0.9)), float(np.float32(0.999))
    for step, gradient in enumerate(gradients, 1):
        first = alpha * first + (1 - alpha) * gradient
        second = beta * second + (1 - beta) * gradient**2
        corrected = rate * np.sqrt(1 - beta**step) / (1 - alpha**step)
        weight = weight - corrected * first / (np.sqrt(second) + 1e-8)
        weight = weight - rate * 0.01 * weight
    return weight, first, second


def test_sgd(linear, module, state):
    optimizer = Optimizer(linear / "sgd.onnx", module)
    optimizer.set_learning_rate(0.5)
    module(*batch())
    weight, gradient = (array.copy() for array in (state.parameters["w"].data, state.parameters["w"].grad))
    optimizer.step()
    np.testing.assert_array_equal(state.parameters["w"].data, weight - np.float32(0.5) * gradient)
    np.testing.assert_array_equal(state.parameters["w"].grad, gradient)


def test_adamw(module, optimizer, state, linear):
    optimizer.set_learning_rate(0.1)
    before = {name: parameter.data.astype(float) for name, parameter in state.parameters}
    view = state.parameters["w"].data
    gradients = []
    for step in range(4):
        module(*batch(step))
        gradients.append({name: parameter.grad.astype(float) for name, parameter in state.parameters})
        optimizer.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, linear / "saved", include_optimizer_state=True)
    group = read_checkpoint(linear / "saved").groups[GROUP]
    assert group.step == 4
    assert group.initial_learning_rate == np.float32(1e-3)
    for name, parameter in state.parameters:
        weight, first, second = adamw(before[name], [step_gradients[name] for step_gradients in gradients], 0.1)
        np.testing.assert_allclose(parameter.data, weight, rtol=1e-4)  # 1 - beta^t is rounded to float32
        np.testing.assert_allclose(group.momentums[name]["momentum0"], first, rtol=1e-5)
        np.testing.assert_allclose(group.momentums[name]["momentum1"], second, rtol=1e-5)
    np.testing.assert_array_equal(view, state.parameters["w"].data)


def test_clipped_gradients_are_seen(linear, module, state):
    text = small_artifacts.SGD.replace(
        "[sgd]", "c = com.microsoft.InplaceClipGradNorm <max_norm = 0.1> (gradients) [sgd]"
    )
    path = small_artifacts.write(linear / "clip.onnx", text.replace("params, gradients)", "params, c)"))
    optimizer = Optimizer(path, module)
    module(*batch())
    norm = np.sqrt(sum((parameter.grad.astype(float) ** 2).sum() for _, parameter in state.parameters))
    before = state.parameters["w"].grad.copy()
    optimizer.step()
    assert norm > 0.1
    np.testing.assert_allclose(state.parameters["w"].grad, before * (0.1 / norm), rtol=1e-5)


def test_a_step_before_any_gradient(optimizer, state):
    before = state.parameters["w"].data.copy()
    optimizer.step()
    np.testing.assert_allclose(state.parameters["w"].data, before * (1 - 1e-5), rtol=1e-6)


def test_a_second_optimizer_goes_on(linear, module, optimizer, state):
    """Two optimizers of a state have its moments and its count."""
    other = Optimizer(linear / "adamw.onnx", module)
    for current in (optimizer, other, optimizer):
        module(*batch())
        current.step()
    CheckpointState.save_checkpoint(state, linear / "saved", include_optimizer_state=True)
    alone = CheckpointState.load_checkpoint(linear / "checkpoint")
    module = Module(linear / "training_model.onnx", alone)
    optimizer = Optimizer(linear / "adamw.onnx", module)
    for _ in range(3):
        module(*batch())
        optimizer.step()
    np.testing.assert_array_equal(alone.parameters["w"].data, state.parameters["w"].data)
    assert read_checkpoint(linear / "saved").groups[GROUP].step == 3


@pytest.mark.parametrize("rate", [0.25, 0, 1, -0.5, np.float32(0.25), np.float64(0.25), np.array(0.25)], ids=str)
def test_learning_rates(rate, optimizer):
    assert optimizer.get_learning_rate() == float(np.float32(1e-3))
    optimizer.set_learning_rate(rate)
    assert optimizer.get_learning_rate() == float(rate)


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), 1e60], ids=str)
def test_learning_rates_that_are_not_finite(rate, optimizer):
    with pytest.raises(OrtTrainingError, match="expected a finite number"):
        optimizer.set_learning_rate(rate)
    assert optimizer.get_learning_rate() == float(np.float32(1e-3))


@pytest.mark.parametrize("rate", ["0.1", None, [0.1], np.zeros(2), 10**400], ids=lambda rate: str(rate)[:9])
def test_learning_rates_that_are_no_numbers(rate, optimizer):
    with pytest.raises(OrtTrainingTypeError, match="expected a float"):
        optimizer.set_learning_rate(rate)


def changed_group(linear, change):
    """A state whose checkpoint has another optimizer's state."""
    state = CheckpointState.load_checkpoint(linear / "checkpoint")
    Optimizer(linear / "adamw.onnx", Module(linear / "training_model.onnx", state))
    CheckpointState.save_checkpoint(state, linear / "changed", include_optimizer_state=True)
    checkpoint = read_checkpoint(linear / "changed")
    change(checkpoint.groups[GROUP].momentums)
    write_checkpoint(checkpoint, linear / "changed")
    return CheckpointState.load_checkpoint(linear / "changed")


CHANGES = {
    "no-parameter": (lambda momentums: momentums.pop("b"), "'b' it has nothing; expected"),
    "no-moment": (lambda momentums: momentums["b"].pop("momentum1"), "'b' it has {'momentum0': (2,)}; expected"),
    "shape": (lambda momentums: momentums["w"].update(momentum0=np.zeros((2, 3), "f")), "'w' it has"),
    "another-parameter": (lambda momentums: momentums.update(z=momentums["w"]), "'z' it has"),
    "dtype": (lambda momentums: momentums["w"].update(momentum0=np.zeros((3, 2))), "'w' it has"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_the_state_of_another_optimizer_is_refused(case, linear):
    change, message = CHANGES[case]
    state = changed_group(linear, change)
    with pytest.raises(RuntimeError) as caught:
        Optimizer(linear / "adamw.onnx", Module(linear / "training_model.onnx", state))
    assert message in str(caught.value)


GRAPHS = {
    "training-model": (
        small_artifacts.LINEAR_TRAINING,
        "SGDOptimizerV2 it has none; expected one",
    ),
    "two-optimizers": (
        small_artifacts.SGD.replace(
            "}", " other = com.microsoft.SGDOptimizerV2 (learning_rate, first_order_moments, gradients) }"
        ),
        "it has SGDOptimizerV2, SGDOptimizerV2; expected one",
    ),
    "sequence-read": (
        small_artifacts.SGD.replace("}", " [l] length = SequenceLength (gradients) }"),
        "SequenceLength node 'l' (outputs length) cannot be rewritten: it reads the sequence 'gradients'",
    ),
    "unknown-state": (
        small_artifacts.SGD.replace("first_order_moments", "third_order_moments"),
        "has the input 'third_order_moments', which is not a known state",
    ),
    "double": (
        small_artifacts.SGD.replace("float[]", "double[]"),
        "SGDOptimizerV2",
    ),
}


@pytest.mark.parametrize("case", GRAPHS)
def test_graphs_that_are_refused(case, linear, module):
    text, message = GRAPHS[case]
    with pytest.raises(RuntimeError) as caught:
        Optimizer(small_artifacts.write(linear / "other.onnx", text), module)
    assert message in str(caught.value)


def test_a_trainable_parameter_without_a_gradient(linear, state):
    module = Module(small_artifacts.write(linear / "eval.onnx", small_artifacts.LINEAR_EVAL), state)
    with pytest.raises(RuntimeError, match="no gradient of the trainable parameter 'w'"):
        Optimizer(linear / "sgd.onnx", module)


# ---- LinearLRScheduler ----

SCHEDULES = {
    "warm-up": ((4, 10), [0, 1 / 4, 2 / 4, 3 / 4, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0, 0]),
    "no-warm-up": ((0, 4), [1, 3 / 4, 2 / 4, 1 / 4, 0, 0]),
    "warm-up-alone": ((3, 3), [0, 1 / 3, 2 / 3, 0, 0]),
    "nothing": ((0, 0), [0, 0]),
    "warm-up-longer": ((4, 2), [0, 1 / 4, 2 / 4, 3 / 4, 0]),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedule(case, module, optimizer):
    (warm_up, total), expected = SCHEDULES[case]
    scheduler = LinearLRScheduler(optimizer, warm_up, total, 0.5)
    rates = [optimizer.get_learning_rate()]
    for _ in expected[1:]:
        module(*batch())
        optimizer.step()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, np.array(expected) * 0.5, rtol=1e-6)


def test_the_schedule_counts_updates(optimizer):
    scheduler = LinearLRScheduler(optimizer, 0, 10, 1.0)
    for _ in range(3):
        scheduler.step()
    assert optimizer.get_learning_rate() == 1
    optimizer.step()
    assert optimizer.get_learning_rate() == 1
    scheduler.step()
    assert optimizer.get_learning_rate() == np.float32(0.9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 2, 0.1), "warmup_step_count is -1; expected 0 or more"),
        ((1, -2, 0.1), "total_step_count is -2; expected 0 or more"),
        ((1, 2, float("nan")), "initial_lr is nan; expected a finite number"),
    ],
)
def test_schedules_that_are_refused(arguments, message, optimizer):
    with pytest.raises(RuntimeError, match=message):
        LinearLRScheduler(optimizer, *arguments)
    assert optimizer.get_learning_rate() == float(np.float32(1e-3))


def test_rates_of_a_resumed_optimizer(linear, module, optimizer, state):
    """As in 1.19.2: a checkpoint has the rate of the last scheduler, and resumed optimizers begin with 0.001."""
    LinearLRScheduler(optimizer, 2, 10, 0.02)
    optimizer.set_learning_rate(0.5)
    assert Optimizer(linear / "adamw.onnx", module).get_learning_rate() == 0.5
    CheckpointState.save_checkpoint(state, linear / "saved", include_optimizer_state=True)
    for _ in range(2):  # also in a checkpoint of the resumed run
        assert read_checkpoint(linear / "saved").groups[GROUP].initial_learning_rate == np.float32(0.02)
        resumed = CheckpointState.load_checkpoint(linear / "saved")
        again = Optimizer(linear / "adamw.onnx", Module(linear / "training_model.onnx", resumed))
        assert again.get_learning_rate() == np.float32(1e-3)
        CheckpointState.save_checkpoint(resumed, linear / "saved", include_optimizer_state=True)
