"""Training that moves between PyTorch and a training step of the same module and optimizer."""

from __future__ import annotations

import pytest

import bngrad
from bngrad.errors import InputError

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

import bngrad.torch  # noqa: E402 - it imports torch

nn = torch.nn


class Network(nn.Module):
    """A network with a parameter that it does not use, and one that has the name of the count of updates."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.unused = nn.Parameter(torch.ones(3))
        self.step = nn.Parameter(torch.ones(5))
        # No bias before the batch norm: its gradient is only rounding, which Adam scales to the size of others.
        self.first, self.norm, self.second = nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 2)

    def forward(self, x):
        return self.second(torch.tanh(self.norm(self.first(x))) * self.step)


OPTIMIZERS = {
    "nesterov": lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01, weight_decay=0.1),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01),
}


def optimizer_of(module, kind):
    rest = [module.unused, module.step, *module.norm.parameters()]
    groups = [{"params": [*module.first.parameters(), *module.second.parameters()]}]
    return OPTIMIZERS[kind]([*groups, {"params": rest, "lr": 0.002, "weight_decay": 0.0}])


def batch(update):
    generator = torch.Generator().manual_seed(update)
    return torch.randn(8, 3, generator=generator), torch.randn(8, 2, generator=generator)


def train(module, optimizer, updates):
    for update in updates:
        x, target = batch(update)
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), target).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_moves_to_a_step_and_back(kind):
    expected, module = Network(), Network()
    train(expected, optimizer_of(expected, kind), range(9))
    optimizer = optimizer_of(module, kind)
    train(module, optimizer, range(3))
    step = bngrad.torch.training_step(module, nn.MSELoss(), batch(0), optimizer=optimizer)
    trainer = bngrad.Trainer(step, learning_rate=optimizer.param_groups[0]["lr"])
    data = list(step.info.data)
    for update in range(3, 6):
        trainer.step(**{name: part.numpy() for name, part in zip(data, batch(update), strict=True)})
    bngrad.torch.load_into(module, trainer, optimizer=optimizer)
    train(module, optimizer, range(6, 9))
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(module.state_dict()[name], value, rtol=1e-5, atol=1e-5, msg=name)


def test_defaults_of_another_state_are_refused():
    module = Network()
    optimizer = optimizer_of(module, "adam")
    with pytest.raises(InputError, match="the inputs of the training step have defaults"):
        bngrad.torch.training_step(module, nn.MSELoss(), batch(0), optimizer=optimizer, defaults=True)
