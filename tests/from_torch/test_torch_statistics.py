"""Estimated running statistics against `torch.optim.swa_utils.update_bn`."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.cli import run

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

from bngrad.torch import training_step  # noqa: E402 - it imports torch

RUNNING = ("running_mean", "running_var")


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(1, 4, 3, bias=False), torch.nn.BatchNorm2d(4)
        self.conv2, self.bn2 = torch.nn.Conv2d(4, 6, 3, bias=False), torch.nn.BatchNorm2d(6)
        self.head = torch.nn.Linear(6, 3)

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y))).mean((2, 3))
        return self.head(y)


def images(sizes):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(size, 1, 8, 8, generator=generator) * 2 + 5 for size in sizes]


def trainer_of(module, x):
    labels = torch.zeros(len(x), dtype=torch.int64)
    return bngrad.Trainer(training_step(module, torch.nn.functional.cross_entropy, (x, labels)), learning_rate=0)


def ours(trainer, batches):
    name = next(name for name, spec in trainer.info.data.items() if spec.dtype == "float32")
    trainer.estimate_statistics({name: x.numpy()} for x in batches)
    return {name: value for name, value in trainer.state_dict().items() if name.endswith(RUNNING)}


def update_bn(module, batches):
    torch.optim.swa_utils.update_bn(batches, module)
    return {name: value.numpy() for name, value in module.state_dict().items() if name.endswith(RUNNING)}


def test_one_batch_is_that_of_update_bn():
    module, batches = Network(), images([12])
    actual = ours(trainer_of(module, batches[0]), batches)
    expected = update_bn(module, batches)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(actual[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def test_batches_are_merged_and_not_averaged():
    """The mean of means weights batches of 2 and 30 alike; the mean of variances misses how means differ."""
    module, batches = Network(), images([30, 2])
    batches[1] += 4
    actual = ours(trainer_of(module, batches[0]), batches)
    inputs = {"bn1": [], "bn2": []}
    for name, values in inputs.items():
        getattr(module, name).register_forward_pre_hook(
            lambda _, args, values=values: values.append(args[0].detach())
        )
    averaged = update_bn(module, batches)
    for name, values in inputs.items():
        whole = torch.cat(values).double().transpose(0, 1).flatten(1)
        np.testing.assert_allclose(actual[f"{name}.running_mean"], whole.mean(1), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(actual[f"{name}.running_var"], whole.var(1), rtol=1e-4)
    assert np.max(np.abs(averaged["bn1.running_var"] / actual["bn1.running_var"] - 1)) > 0.1


def test_a_file_of_the_exporter(tmp_path):
    module, batches = Network().train(), images([9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a module in training mode
        program = torch.onnx.export(module, (batches[0],), dynamo=True, optimize=False, verbose=False)
    program.save(tmp_path / "net.onnx")
    np.savez(tmp_path / "x.npz", x=batches[0].numpy())
    arguments = ["--data", str(tmp_path / "x.npz"), "-o", str(tmp_path / "out.onnx")]
    assert run(["statistics", str(tmp_path / "net.onnx"), *arguments]) == 0
    values = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    for name, value in update_bn(module, batches).items():
        np.testing.assert_allclose(values[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
