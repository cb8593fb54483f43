"""Training steps of models with batch norms in bodies of If, Loop and Scan."""

from __future__ import annotations

import numpy as np
import pytest

import bngrad
from autodiff.body_cases import CASES, CONDITION, DOWN, LOOP, STEPS, TRAINING, UP, WEIGHTS, Case, M, V, model
from bngrad.errors import BngradError
from bngrad.runtime.session import session


@pytest.mark.parametrize("variance", ["biased", "unbiased"])
def test_the_step_trains_evaluates_and_comes_back(variance, tmp_path):
    """The body of the inference model reads the trained statistics."""
    case = CASES["loop in if"]._replace(outputs="float loss, float[N, 2] y")
    step = bngrad.training_step(model(case), loss="loss", running_variance=variance, outputs=["loss"])
    assert step.info.names("running_statistic") == ["m", "v"]
    trainer = bngrad.Trainer(step, learning_rate=1e-3)
    for _ in range(3):
        trainer.step(**STEPS[2])
    state = trainer.state_dict()
    assert not np.allclose(state["m"], M)
    trainer.save(tmp_path / "state.npz")
    again = bngrad.Trainer(step, learning_rate=1e-3)
    again.load(tmp_path / "state.npz")
    assert again.step(**STEPS[2]) == trainer.step(**STEPS[2])
    state = trainer.state_dict()
    x = STEPS[2]["x"].astype(float)
    for _ in range(4):
        h = x @ state["w"]
        x = np.tanh((h - state["m"]) / np.sqrt(state["v"] + 1e-5) * state["s"] + state["b"])
    np.testing.assert_allclose(trainer.evaluate(**STEPS[2])["loss"], (x**2).sum(), rtol=1e-5)
    inference = trainer.finalize()
    names = {tensor.name for tensor in inference.graph.initializer}
    assert {"m", "v"} <= names
    result = session(inference).run(["y"], STEPS[2])[0]
    np.testing.assert_allclose(result, x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"layout": "flat"}, {"accumulate": 2}, {"memory": "lean"}, {"precision": "mixed"}]
)
@pytest.mark.filterwarnings("ignore:memory 'lean' keeps as much")
def test_steps_of_all_kinds_have_the_same_statistics(options):
    case = CASES["loop"]._replace(text=f"z = MatMul (x, w) {LOOP.replace('n, , x', 'n, , z')}")
    plain, other = (
        bngrad.Trainer(bngrad.training_step(model(case), loss="loss", **chosen), learning_rate=0)
        for chosen in ({}, options)
    )
    for feeds in STEPS:
        assert other.step(**feeds) == pytest.approx(plain.step(**feeds), rel=1e-5)
    for name in ("m", "v"):
        np.testing.assert_allclose(other.state_dict()[name], plain.state_dict()[name], rtol=1e-3)


def test_what_other_commands_refuse():
    forward = model(CASES["loop"])
    with pytest.raises(BngradError, match="of no batch norm that can be frozen after some updates, as one in"):
        bngrad.training_step(forward, loss="loss", freeze_statistics=2)
    trainer = bngrad.Trainer(bngrad.training_step(forward, loss="loss"), learning_rate=0.1)
    with pytest.raises(BngradError, match="is in the body of another node, where its data cannot be read"):
        trainer.estimate_statistics([STEPS[2]])
    with pytest.raises(BngradError, match="where only ONNX's BatchNormalization updates its running statistics"):
        bngrad.hvp(forward, loss="loss", wrt=["w"])


def test_unchanged_initializers_of_branches():
    """The batch norm of one branch gets trained statistics, and the frozen one keeps its own."""
    case = CASES["statistics of the bodies"]._replace(outputs="float loss, float[N, 2] y")
    step = bngrad.training_step(model(case), loss="loss", frozen=["down"])
    assert step.info.names("running_statistic") == ["up/running_mean", "up/running_var"]
    trainer = bngrad.Trainer(step, learning_rate=0)
    trainer.step(**UP)
    state, inference = trainer.state_dict(), session(trainer.finalize())
    mean, var = state["up/running_mean"], state["up/running_var"]
    assert not np.array_equal(mean, M)
    for feeds, h, statistics in ((UP, UP["x"], (mean, var)), (DOWN, DOWN["x"] @ WEIGHTS["w"], (M, V))):
        want = (h - statistics[0]) / np.sqrt(statistics[1] + 1e-5) * WEIGHTS["s"] + WEIGHTS["b"]
        np.testing.assert_allclose(inference.run(["y"], feeds)[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("feeds", [UP, DOWN], ids=["taken", "not taken"])
def test_new_statistics_that_branches_return(feeds):
    """The mean that the other branch returns unchanged is no weight of the loss."""
    text = f"""{CONDITION} y, m1 = If (c) <then_branch = t () => (float[N, 2] i, float[2] p) {{
            h = MatMul (x, w) [bn] i, p, q = {TRAINING} (h, s, b, m, v) }},
        else_branch = e () => (float[N, 2] j, float[2] k) {{ j = MatMul (x, w) k = Identity (m) }}>"""
    forward = model(Case(text, None, {}, outputs="float loss, float[N, 2] y, float[2] m1"))
    step = bngrad.training_step(forward, loss="loss")
    assert step.info.names("weight") == ["s", "b", "w"]
    trainer = bngrad.Trainer(step, learning_rate=0)
    trainer.step(**feeds)
    mean = (feeds["x"] @ WEIGHTS["w"]).mean(axis=0)
    want = 0.9 * M + 0.1 * mean if feeds is UP else M
    np.testing.assert_allclose(trainer.state_dict()["bn/running_mean"], want, rtol=1e-5)
