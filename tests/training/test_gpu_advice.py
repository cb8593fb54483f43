"""The warning about a step that is slow on a GPU: when it is given, and when not."""

from __future__ import annotations

import onnx_ir as ir
import pytest

import bngrad
from bngrad.training.gpu_advice import advice_for_gpu
from fake_cuda import fake_cuda  # noqa: F401
from trainer_cases import TEXT, network

ADVICE = "the gradients of the step's convolutions are slow on a GPU; write the step with --conv-grad"
DEPTHWISE = TEXT.replace("<pads = [1,1,1,1]> (x, kernel)", "<pads = [1,1,1,1], group = 4> (x4, kernel)").replace(
    "    h = Conv", "    x4 = Concat <axis = 1> (x, x, x, x)\n    h = Conv"
)
LINEAR = TEXT.replace("h = Conv <pads = [1,1,1,1]> (x, kernel)", "h = Expand (x, sizes)").replace(
    "{\n", "{\n    sizes = Constant <value_ints = [1, 4, 1, 1]> ()\n", 1
)
STEPS = {
    "for a CPU": (TEXT, {}, 1),
    "flat": (TEXT, {"layout": "flat"}, 1),
    "standard ops": (TEXT, {"functions": False}, 1),
    "depthwise": (DEPTHWISE, {}, 1),
    "ConvGrad": (TEXT, {"conv_grad": True}, 0),
    "channels last": (TEXT, {"channels_last": True}, 0),
    "depthwise, ConvGrad": (DEPTHWISE, {"conv_grad": True}, 0),
    "constant weights": (TEXT, {"wrt": ["weight", "offset"]}, 0),
    "no convolution": (LINEAR, {}, 0),
}


@pytest.mark.parametrize(("text", "options", "count"), STEPS.values(), ids=STEPS)
def test_advice(text, options, count):
    step = bngrad.training_step(network(text), optimizer="sgd", **options)
    advice = advice_for_gpu(ir.from_proto(step.model), ir.from_proto(step.evaluation))
    assert len(advice) == count
    assert all(line.startswith(ADVICE) for line in advice)


@pytest.mark.usefixtures("fake_cuda")
def test_a_trainer_warns_on_a_gpu_only():
    step = bngrad.training_step(network(), optimizer="sgd")
    bngrad.Trainer(step, learning_rate=0.1)
    with pytest.warns(bngrad.errors.BngradWarning, match=ADVICE):
        bngrad.Trainer(step, learning_rate=0.1, device="cuda")
