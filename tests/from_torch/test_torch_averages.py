"""The averages of a step against `torch.optim.swa_utils.AveragedModel`."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import bngrad

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn  # noqa: E402

from bngrad.torch import training_step  # noqa: E402 - it imports torch

DECAY = 0.9


SWA = {"swa": 3, "swa_every": 2}
KINDS = {
    "ema": ({"ema": DECAY}, {"multi_avg_fn": get_ema_multi_avg_fn(DECAY)}, range(6)),
    "swa": (SWA, {}, range(2, 6, 2)),
    "swa that has not begun": ({"swa": 9}, {}, [5]),  # the weights themselves
}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_buffers_and_statistics(kind):
    options, functions, updates = KINDS[kind]
    module = torch.nn.Sequential(
        torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )
    batches = [(torch.randn(16, 5) + 2, torch.randint(0, 3, (16,))) for _ in range(6)]
    cross_entropy = torch.nn.functional.cross_entropy
    step = training_step(copy.deepcopy(module), cross_entropy, batches[0], optimizer="sgd", **options)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    averaged = AveragedModel(module, use_buffers=True, **functions)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    names = list(step.info.data)
    for index, (x, labels) in enumerate(batches):
        trainer.step(**dict(zip(names, (x.numpy(), labels.numpy()), strict=True)))
        optimizer.zero_grad()
        cross_entropy(module(x), labels).backward()
        optimizer.step()
        if index in updates:
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
