"""The scale of the loss in float16: which calls are skipped, what stays, and how the scale changes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import TrainingError
from bngrad.training.loss_scaling import LARGEST
from emulated_ranks import Ranks
from residual_network import batch, network

SCALER = ("scaler/scale", "scaler/growth_tracker", "scaler/skipped")


def overflowing(**options):
    """A step whose gradients overflow float16 until the scale of the loss was halved some times."""
    return bngrad.training_step(network(), precision="mixed", init_scale=2.0**30, **options)


SUMS = """<ir_version: 9, opset_import: ["" : 18]>
g (float[1,2] x) => (float loss) <float[2,1] v = {1, 2}, float[2] w = {1, 2}> {
    tiny = Constant <value_float = 1e-36> ()
    p = MatMul (x, v)
    q = Mul (p, tiny)
    r = Mul (x, w)
    s = Add (q, r)
    loss = ReduceSum <keepdims = 0> (s)
}"""


@pytest.mark.parametrize("group_updates", [False, True])
@pytest.mark.parametrize(("factor", "skipped"), [(2.9, 0), (4.0, 1)])
def test_elements_decide_and_not_their_sum(group_updates, factor, skipped):
    """With a scale of 2^126 each gradient is finite below a factor of 4; the sum of both is not."""
    step = bngrad.training_step(
        onnx.parser.parse_model(SUMS), precision="mixed", init_scale=2.0**126, group_updates=group_updates
    )
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    trainer.step(x=np.full((1, 2), factor, np.float32))
    assert trainer.state_dict()["scaler/skipped"] == skipped


@pytest.mark.parametrize(
    "options", [{"optimizer": "adamw"}, {"accumulate": 2}, {"layout": "flat", "clip_norm": 1.0}]
)
def test_a_call_with_an_overflow_changes_only_the_scale(options):
    trainer = bngrad.Trainer(overflowing(**options), learning_rate=0.1)
    before, calls = trainer.state_dict(), 0
    while True:
        loss = trainer.step(**batch())
        calls += 1
        after = trainer.state_dict()
        if after["scaler/skipped"] < calls:
            break
        assert np.isfinite(loss)
        assert float(trainer.outputs["loss_scale"]) == 2.0 ** (31 - calls)
        assert [after[name] for name in SCALER] == [2.0 ** (30 - calls), 0, calls]
        for name in before.keys() - SCALER:
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert calls > 3
    assert [after[name] for name in SCALER] == [2.0 ** (31 - calls), 1, calls - 1]
    assert all(not np.array_equal(after[name], before[name]) for name in ("m1", "v2"))
    assert after["step"] == (0 if "accumulate" in options else 1)
    assert trainer.calls == calls


def test_accumulation_leaves_out_the_calls_that_overflow():
    """The mean is of N calls with finite gradients."""
    step = bngrad.training_step(network(), precision="mixed", accumulate=2, optimizer=bngrad.SGD())
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    trainer.step(**batch(8, 0))
    state = dict(trainer.state_dict())
    trainer.load_state_dict(state | {"scaler/scale": np.float32(2.0**40)})
    trainer.step(**batch(8, 1))
    skipped = trainer.state_dict()
    assert (skipped["micro_step"], skipped["scaler/skipped"], skipped["step"]) == (1, 1, 0)
    trainer.load_state_dict(dict(skipped) | {"scaler/scale": state["scaler/scale"]})
    trainer.step(**batch(8, 2))
    updated = trainer.state_dict()
    assert (updated["micro_step"], updated["step"], trainer.calls) == (0, 1, 3)
    other = bngrad.Trainer(step, learning_rate=0.1)
    for seed in (0, 2):
        other.step(**batch(8, seed))
    for name, array in other.state_dict().items():
        if name not in SCALER:
            np.testing.assert_array_equal(updated[name], array, err_msg=name)


def test_the_scale_grows():
    step = bngrad.training_step(network(), precision="mixed", init_scale=2, growth_interval=3)
    trainer = bngrad.Trainer(step, learning_rate=0.01)
    scales = []
    for index in range(7):
        trainer.step(**batch(8, index))
        scales.append(float(trainer.state_dict()["scaler/scale"]))
    assert scales == [2, 2, 4, 4, 4, 8, 8]


def in_float32(body, weight):
    """A model whose product has no gradient: the gradient of w is in float32, and does not overflow."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[N,3] x) => (float loss) <float[3] w = {weight}, float[3,1] k = {{0, 0, 0}}> {{
        {body} p = MatMul (x, k) s = Add (y, p) loss = ReduceMean <keepdims = 0> (s) }}"""
    return onnx.parser.parse_model(text)


def test_the_largest_scale_stays():
    model = in_float32("y = Mul (x, w)", "{1, 2, 3}")
    step = bngrad.training_step(model, precision="mixed", init_scale=LARGEST / 2, growth_interval=1, wrt=["w"])
    trainer = bngrad.Trainer(step, learning_rate=1.0)
    for _ in range(3):
        trainer.step(x=np.ones((2, 3), np.float32))
    state = trainer.state_dict()
    assert state["scaler/scale"] == LARGEST
    np.testing.assert_allclose(state["w"], np.array([0, 1, 2]), atol=1e-6)


def test_gradients_that_no_scale_makes_finite():
    """The gradient of the root at 0 is infinite, whatever it is multiplied by."""
    model = in_float32("r = Sqrt (w) y = Mul (x, r)", "{0, 1, 2}")
    step = bngrad.training_step(model, precision="mixed", init_scale=2.0**-23, wrt=["w"])
    trainer = bngrad.Trainer(step, learning_rate=1.0)
    data = np.ones((2, 3), np.float32)
    for _ in range(2):
        trainer.step(x=data)
    state = trainer.state_dict()
    with pytest.raises(TrainingError, match=r"not finite up to call 3, with scales of the loss down to 2\.98"):
        trainer.step(x=data)
    for name, array in state.items():
        np.testing.assert_array_equal(trainer.state_dict()[name], array, err_msg=name)
    np.testing.assert_array_equal(state["w"], [0, 1, 2])


def test_a_loss_that_is_not_finite():
    """It ends the run as in float32, and leaves the scale as it is."""
    model = in_float32("e = Exp (w) y = Mul (x, e)", "{0, 1, 200}")
    trainer = bngrad.Trainer(bngrad.training_step(model, precision="mixed", wrt=["w"]), learning_rate=0.1)
    message = "or clip the gradients, or use precision mixed-bfloat16, which has the range of float32"
    with pytest.raises(TrainingError, match=message):
        trainer.step(x=np.ones((2, 3), np.float32))
    assert (trainer.calls, trainer.state_dict()["scaler/scale"]) == (0, 65536)


def test_a_resumed_run_counts_skipped_calls(tmp_path):
    """The learning rate is a function of the calls, skipped or not."""
    trainer = bngrad.Trainer(overflowing(), learning_rate=bngrad.LinearSchedule(0.1, 50))
    for _ in range(5):
        trainer.step(**batch())
    trainer.save(tmp_path / "state.safetensors")
    other = bngrad.Trainer(overflowing(), learning_rate=bngrad.LinearSchedule(0.1, 50))
    other.load(tmp_path / "state.safetensors")
    assert (other.calls, other.learning_rate) == (5, trainer.learning_rate)
    assert other.step(**batch()) == trainer.step(**batch())
    for name, array in trainer.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], array, err_msg=name)


LINEAR = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,3] x) => (float loss) <float[3,2] w = {1, 2, 3, 4, 5, 6}>
    { y = MatMul (x, w) loss = ReduceMean <keepdims = 0> (y) }"""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy warns of the overflow
def test_all_ranks_skip_a_call_that_overflows_on_one():
    step = bngrad.training_step(onnx.parser.parse_model(LINEAR), precision="mixed", sync=True, optimizer="adam")
    state = step.state
    for factors, skipped in (((1, 100), 1), ((1, 2), 1)):
        feeds = [
            state | {"x": np.full((2, 3), factor, np.float32), "learning_rate": np.array(0.5, np.float32)}
            for factor in factors
        ]
        first, second = Ranks(2).run(step.model, feeds)
        assert np.isfinite(first["loss"])
        assert first.keys() == second.keys()
        for name, array in first.items():
            np.testing.assert_array_equal(second[name], array, err_msg=name)
        new = {name: first[entry.new] for name, entry in step.info.state.items()}
        assert new["scaler/skipped"] == skipped
        assert np.array_equal(new["w"], state["w"]) == (factors == (1, 100))
        state = new
    assert state["step"] == 1
