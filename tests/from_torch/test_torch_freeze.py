"""Batch norms that are frozen after some updates against modules in evaluation mode."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import bngrad

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

from bngrad.errors import ModelError  # noqa: E402
from bngrad.torch import training_step  # noqa: E402 - it imports torch


def test_batch_norms_in_evaluation_mode_after_some_updates():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(2, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Flatten()]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(96, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
    batches = [(torch.randn(16, 2, 6, 6) + 2, torch.randint(0, 3, (16,))) for _ in range(5)]
    loss_fn = torch.nn.functional.cross_entropy
    step = training_step(copy.deepcopy(module), loss_fn, batches[0], optimizer="sgd", freeze_statistics=2)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for index, (x, labels) in enumerate(batches):
        if index == 2:
            module[1].eval()
            module[5].eval()
        optimizer.zero_grad()
        loss = loss_fn(module(x), labels)
        loss.backward()
        optimizer.step()
        actual = trainer.step(**dict(zip(step.info.data, (x.numpy(), labels.numpy()), strict=True)))
        assert actual == pytest.approx(loss.item(), rel=1e-4)
    expected, state = module.state_dict(), trainer.state_dict()
    for name in step.info.names("weight", "running_statistic"):
        if name.endswith("num_batches_tracked"):
            continue  # it counts all calls
        np.testing.assert_allclose(state[name], expected[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


def test_cumulative_averages_are_refused():
    """Their batch norm is exported in primitives, which would go on with the statistics of the batch."""
    layers = torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4, momentum=None)
    module = torch.nn.Sequential(*layers)
    example = torch.randn(16, 5), torch.randint(0, 4, (16,))
    with pytest.raises(
        ModelError, match=r"the running statistic '2.running_mean' is of no batch norm that can be"
    ):
        training_step(module, torch.nn.functional.cross_entropy, example, optimizer="sgd", freeze_statistics=2)
