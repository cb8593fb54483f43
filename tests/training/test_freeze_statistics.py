"""Batch norms of a step that use their running statistics after some updates."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import InputError, ModelError, UnsupportedNodeError
from trainer_cases import batch, network

UPDATES, RATE = 2, 0.05


def network_with(values):
    """The network with other values of weights and running statistics."""
    model = network()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))
    return model


def trainer_of(model=None, **options):
    step = bngrad.training_step(model or network(), optimizer=bngrad.SGD(momentum=0.9), **options)
    return bngrad.Trainer(step, learning_rate=RATE)


@pytest.mark.parametrize(
    "options",
    [
        {"layout": "flat", "accumulate": 2},
        {"quantize": "uint8", "fuse": False},
    ],
)
def test_they_are_those_of_a_frozen_step(options):
    """Bit for bit: first of a step in training mode, and then of one whose batch norms are frozen."""
    trainer, before = trainer_of(freeze_statistics=UPDATES, **options), trainer_of(**options)
    calls = options.get("accumulate", 1)
    for index in range(UPDATES * calls):
        assert trainer.step(**batch(index)) == before.step(**batch(index))
    state = before.state_dict()
    values = {name: state[name] for name in before.info.names("weight", "running_statistic")}
    ranges = {name: array for name, array in values.items() if name.endswith("/range")}
    after = trainer_of(network_with(values), frozen=["*"], values=ranges, **options)
    after.load_state_dict({name: state[name] for name in after.info.state}, anyway=True)
    for index in range(UPDATES * calls, (UPDATES + 2) * calls):
        assert trainer.step(**batch(index)) == after.step(**batch(index))
    result = trainer.state_dict()
    for name, array in after.state_dict().items():
        np.testing.assert_array_equal(result[name], array, err_msg=name)
    for name in ("mean", "var"):
        np.testing.assert_array_equal(result[name], state[name], err_msg=name)
    np.testing.assert_array_equal(trainer.evaluate(**batch(50))["loss"], after.evaluate(**batch(50))["loss"])


def test_mixed_precision():
    """The two steps round to 16 bits in other places."""
    options = {"precision": "mixed", "init_scale": 1.0}
    trainer, frozen = trainer_of(freeze_statistics=0, **options), trainer_of(frozen=["*"], **options)
    for index in range(3):
        np.testing.assert_allclose(trainer.step(**batch(index)), frozen.step(**batch(index)), rtol=2e-3)


def test_without_the_library():
    """The branches have the functions of the ops."""
    trainer = trainer_of(freeze_statistics=1)
    step = bngrad.training_step(network(), optimizer=bngrad.SGD(momentum=0.9), freeze_statistics=1)
    session = onnxruntime.InferenceSession(step.model.SerializeToString(), providers=["CPUExecutionProvider"])
    state = step.state
    for index in range(3):
        feeds = {**batch(index), "learning_rate": np.array(RATE, np.float32), **state}
        names = [str(entry.new) for entry in step.info.state.values()]
        loss, *new = session.run(["loss", *names], feeds)
        state = dict(zip(step.info.state, new, strict=True))
        np.testing.assert_allclose(loss, trainer.step(**batch(index)), rtol=1e-5)


def test_statistics_that_are_estimated_later():
    """The rule of the step's running variances is found in the branches."""
    states = []
    for options in ({}, {"freeze_statistics": 1}):
        trainer = trainer_of(running_variance="unbiased", **options)
        trainer.estimate_statistics([batch(index) for index in range(2)])
        states.append(trainer.state_dict())
    np.testing.assert_array_equal(states[0]["var"], states[1]["var"])


def test_from_the_first_call_on():
    trainer, frozen = trainer_of(freeze_statistics=0), trainer_of(frozen=["*"])
    assert trainer.step(**batch(0)) == frozen.step(**batch(0))


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(network(), "net.onnx")
    assert run(["step", "net.onnx", "-o", "step.onnx", "--freeze-statistics", "3"]) == 0
    assert "If" in {node.op_type for node in onnx.load("step.onnx").graph.node}


LOSS_OF_STATISTICS = """<ir_version: 9, opset_import: ["" : 15]>
g (float[N,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float loss) {
    [bn] y, m_new, v_new = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    squares = Mul (y, y)
    first = ReduceMean <keepdims = 0> (squares)
    second = ReduceSum <keepdims = 0> (v_new)
    loss = Add (first, second)
}"""


def loss_of_statistics():
    model = onnx.parser.parse_model(LOSS_OF_STATISTICS)
    values = {"s": np.ones(3), "b": np.zeros(3), "m": np.zeros(3), "v": np.ones(3)}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in values.items()
    )
    return model


REFUSED = {
    "number": (network, {"freeze_statistics": -1}, InputError, "freeze_statistics is -1; expected a number of"),
    "sync": (network, {"sync": True}, InputError, "--freeze-statistics (freeze_statistics=) cannot be combined"),
    "lean": (
        network,
        {"memory": "lean"},
        InputError,
        "--freeze-statistics (freeze_statistics=) cannot be combined with memory 'lean': batch norms",
    ),
    "bytes": (
        network,
        {"memory": "1GB"},
        InputError,
        "--freeze-statistics (freeze_statistics=) cannot be combined with memory 1000000000: batch norms",
    ),
    "frozen": (network, {"frozen": ["*"]}, ModelError, "no batch norm of the step uses the statistics of the"),
    "ghost batches": (
        lambda: bngrad.edit_batch_norms(network(), ghost=4),
        {},
        UnsupportedNodeError,
        "BatchNormalization node 'bn' (outputs b, mean_new, var_new) cannot be frozen after some updates: its",
    ),
    "a loss of statistics": (
        loss_of_statistics,
        {},
        UnsupportedNodeError,
        "BatchNormalization node 'bn' (outputs y, m_new, v_new) cannot be frozen after some updates: the",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case):
    model, options, kind, message = REFUSED[case]
    with pytest.raises(kind) as error:
        bngrad.training_step(model(), loss="loss", **{"freeze_statistics": 2, **options})
    assert str(error.value).startswith(message)
