"""Steps in mixed precision, against PyTorch's autocast: the losses of the first steps, within its rounding."""

from __future__ import annotations

import numpy as np
import pytest

import bngrad
from residual_network import batch
from sixteen_bits_on_cpu import rounding_session

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


def calls(step, batches):
    """Yields the loss and the new state of each call of a step."""
    info, state, session = step.info, step.state, rounding_session(step.model)
    names = [value.name for value in session.get_outputs()]
    for arrays in batches:
        feeds = (
            dict(zip(info.data, arrays, strict=True)) | state | {info.learning_rate: np.array(RATE, np.float32)}
        )
        outputs = dict(zip(names, session.run(names, feeds), strict=True))
        state = {name: outputs[entry.new] for name, entry in info.state.items()}
        yield outputs[info.loss].item(), state


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
    ours = np.array([loss for loss, _ in calls(step, (batch(32, index).values() for index in range(STEPS)))])
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


def test_the_scale_is_that_of_grad_scaler():
    """It falls until the gradients are finite in float16, and grows until they are not."""
    torch.manual_seed(1)
    module = torch.nn.Linear(3, 2)
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    step = bngrad.torch.training_step(
        module, mean, (x,), precision="mixed", init_scale=2.0**22, growth_interval=3, check=False
    )
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=3)
    scales = []
    for _, state in calls(step, [[x.numpy()]] * 16):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = mean(module(x))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        assert state["scaler/scale"] == scales[-1]
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(state[name], parameter.detach().numpy(), rtol=1e-3, atol=1e-4)
    falls = [index for index in range(15) if scales[index + 1] < scales[index]]
    assert falls[0] == 0
    assert len(falls) > 2
    assert max(scales[5:]) > min(scales[5:])
    assert state["scaler/skipped"] == 16 - state["step"]


def mean(output):
    return (output.float() ** 2).mean()
