"""The moving averages of a step against `torch.optim.swa_utils.AveragedModel`."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import bngrad

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn  # noqa: E402

from bngrad.torch import training_step  # noqa: E402 - it imports torch

DECAY = 0.9


def test_weights_buffers_and_statistics():
    module = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    batches = [(torch.randn(16, 5) + 2, torch.randint(0, 3, (16,))) for _ in range(6)]
    cross_entropy = torch.nn.functional.cross_entropy
    step = training_step(copy.deepcopy(module), cross_entropy, batches[0], optimizer="sgd", ema=DECAY)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    averaged = AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    names = list(step.info.data)
    for x, labels in batches:
        trainer.step(**dict(zip(names, (x.numpy(), labels.numpy()), strict=True)))
        optimizer.zero_grad()
        cross_entropy(module(x), labels).backward()
        optimizer.step()
        averaged.update_parameters(module)
    expected = averaged.module.state_dict()
    for name, average in step.info.averages.items():
        actual = trainer.state_dict()[average]
        np.testing.assert_allclose(actual, expected[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    trainer.estimate_statistics([{names[0]: batches[0][0].numpy()}])
    update_bn([batches[0][0]], averaged)
    for name in ("1.running_mean", "1.running_var"):
        actual, theirs = trainer.state_dict()[f"{name}/average"], averaged.module.state_dict()[name]
        np.testing.assert_allclose(actual, theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    averaged.eval()
    x, labels = batches[1]
    outputs = trainer.evaluate(**dict(zip(names, (x.numpy(), labels.numpy()), strict=True)))
    loss = cross_entropy(averaged(x), labels).item()
    assert float(outputs[step.info.loss]) == pytest.approx(loss, rel=1e-4)
