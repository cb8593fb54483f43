"""Steps in mixed precision, against PyTorch's autocast: the losses of the first steps, within its rounding."""

from __future__ import annotations

import numpy as np
import pytest

import bngrad
from bfloat16_on_cpu import rounding_session
from residual_network import batch

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import bngrad.torch  # noqa: E402 - needs torch
from bngrad.training.trainer import Trainer  # noqa: E402

STEPS, RATE = 8, 0.05
TYPES = {"mixed": (torch.float16, 2.0**-11), "mixed-bfloat16": (torch.bfloat16, 2.0**-8)}
"""The type of autocast, and its unit roundoff."""


class Network(torch.nn.Module):
    """Convolutions, batch norms, a residual, a pool and a linear layer."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(16)
        self.body = torch.nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.body_norm = torch.nn.BatchNorm2d(16)
        self.classifier = torch.nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.stem(x)))
        x = x + torch.relu(self.body_norm(self.body(x)))
        x = torch.nn.functional.max_pool2d(x, 2)
        return self.classifier(x.mean((2, 3)))


def autocast_losses(module, dtype):
    """The losses of PyTorch's own steps; in float16 with a scale of the loss that does not change."""
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    scale = 65536 if dtype == torch.float16 else 1
    losses = []
    for index in range(STEPS):
        x, labels = (torch.from_numpy(array) for array in batch(32, index).values())
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            logits = module(x)
        loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        (loss * scale).backward()
        for parameter in module.parameters():
            parameter.grad /= scale
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


def losses_of_step(step, precision):
    info, state, losses = step.info, step.state, []
    session = rounding_session(step.model) if precision == "mixed-bfloat16" else bngrad.session(step.model)
    names = [value.name for value in session.get_outputs()]
    for index in range(STEPS):
        feeds = dict(zip(info.data, batch(32, index).values(), strict=True)) | state
        outputs = session.run(names, feeds | {info.learning_rate: np.array(RATE, np.float32)})
        outputs = dict(zip(names, outputs, strict=True))
        state = {name: outputs[entry.new] for name, entry in info.state.items()}
        losses.append(outputs[info.loss].item())
    return np.array(losses)


@pytest.mark.parametrize("precision", TYPES)
def test_the_losses_are_those_of_autocast(precision):
    dtype, rounding = TYPES[precision]
    torch.manual_seed(0)
    module = Network()
    example = tuple(torch.from_numpy(array) for array in batch(32).values())
    step = bngrad.torch.training_step(
        module,
        torch.nn.functional.cross_entropy,
        example,
        optimizer=bngrad.SGD(momentum=0.9),
        precision=precision,
        check=False,
    )
    ours = losses_of_step(step, precision)
    expected = autocast_losses(module, dtype)
    assert expected[-1] < 0.9 * expected[0]
    np.testing.assert_allclose(ours[0], expected[0], atol=2 * rounding)
    np.testing.assert_allclose(ours, expected, atol=16 * rounding)
    assert not np.array_equal(ours, expected)


def test_a_trained_state_goes_back_into_the_module():
    """`load_into` takes the state of a step in mixed precision, whose weights are float32."""
    module = Network()
    example = tuple(torch.from_numpy(array) for array in batch(32).values())
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=0.9)
    step = bngrad.torch.training_step(
        module, torch.nn.functional.cross_entropy, example, optimizer=optimizer, precision="mixed"
    )
    trainer = Trainer(step, learning_rate=RATE)
    trainer.step(**dict(zip(step.info.data, batch(32).values(), strict=True)))
    bngrad.torch.load_into(module, trainer, optimizer=optimizer)
    state = trainer.state_dict()
    for name, parameter in module.named_parameters():
        np.testing.assert_array_equal(parameter.detach().numpy(), state[name], err_msg=name)
        buffer = optimizer.state[parameter]["momentum_buffer"]
        np.testing.assert_array_equal(buffer.numpy(), state[f"{name}/momentum_buffer"], err_msg=name)
