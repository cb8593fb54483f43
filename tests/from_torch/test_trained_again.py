"""An inference model of a PyTorch module is trained again: as it is, folded, and with batch norms restored."""

from __future__ import annotations

import numpy as np
import pytest

import bngrad

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

import bngrad.torch  # noqa: E402 - it imports torch


@pytest.fixture(scope="module")
def trained():
    """A module after a step, its data, and the inference model; the kernel of its Conv is frozen."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 5),
    )
    module[0].weight.requires_grad_(False)
    data = torch.randn(8, 3, 6, 6), torch.randint(0, 5, (8,))
    model = bngrad.torch.export(module, torch.nn.functional.cross_entropy, data)
    trainer = bngrad.Trainer(bngrad.training_step(model), learning_rate=0.1)
    trainer.step(**{value.name: array.numpy() for value, array in zip(model.graph.input, data, strict=False)})
    bngrad.torch.load_into(module, trainer.state_dict())
    return module, data, trainer.finalize()


def step_again(model, **options):
    return bngrad.training_step(model, loss_fn="cross_entropy", **options)


def test_the_model_has_no_outputs_of_training(trained):
    assert [value.name for value in trained[2].graph.output] == ["output"]


def test_the_weights_of_the_module_are_trained(trained):
    module, (x, target), model = trained
    step = step_again(model, training=["*"])
    assert step.info.names("weight") == ["0.bias", "1.weight", "1.bias", "4.weight", "4.bias"]
    loss = bngrad.Trainer(step, learning_rate=0.1).step(input=x.numpy(), labels=target.numpy())
    module.train()
    assert loss == pytest.approx(torch.nn.functional.cross_entropy(module(x), target).item(), rel=1e-6)


def test_a_folded_model_is_trained(trained):
    step = step_again(bngrad.edit_batch_norms(trained[2], fold=True))
    assert len(step.info.names("weight")) == 4
    assert step.info.names("running_statistic") == []


def test_restored_batch_norms_are_trained(trained):
    _, (x, _), model = trained
    folded = bngrad.edit_batch_norms(model, fold=True)
    step = step_again(bngrad.restore_batch_norms(folded, [{"input": x.numpy()}]), training=["*"])
    assert len(step.info.names("weight")) == 5
    assert len(step.info.names("running_statistic")) == 2


def test_a_loss_is_needed(trained):
    with pytest.raises(bngrad.ModelError, match=r"no float scalar outputs; name the loss with --loss"):
        bngrad.training_step(trained[2])


def test_the_record_of_an_exported_model_stays(trained):
    model = trained[2]
    weights = {
        value.name: np.zeros(value.dims, np.float32) for value in model.graph.initializer if value.name == "4.bias"
    }
    again = bngrad.finalize(model, weights)
    assert step_again(again).info.names("weight") == step_again(model).info.names("weight")
