"""docs/guides/several-networks.md: its examples run in order, and train as PyTorch does."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest

import bngrad
from bngrad.errors import BngradWarning
from page_examples import ROOT, run_page

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

import bngrad.torch  # noqa: E402

GUIDES = ROOT / "docs" / "guides"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The names that the guides define."""
    folder = tmp_path_factory.mktemp("pages")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own
        warnings.simplefilter("error", BngradWarning)
        return run_page(GUIDES / "several-networks.md", folder)


def gan():
    """The GAN of the guide of PyTorch."""
    text = (GUIDES / "pytorch.md").read_text(encoding="utf-8")
    block = text[text.index("class GAN(") : text.index("noise, real =")]
    names = {"torch": torch, "nn": torch.nn}
    exec(block, names)  # noqa: S102 - the code of the page
    return names


def losses_of_pytorch(module, loss_fn, data, rate, steps):
    optimizer = torch.optim.SGD([weight for weight in module.parameters() if weight.requires_grad], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_fn(module(*data.values()))
        loss.backward()
        optimizer.step()
        yield loss.item()


@pytest.mark.parametrize("name", ["GAN", "Distillation", "Momentum"])
def test_trains_as_pytorch_does(name, pages):
    names = {**pages, **gan()}
    losses = {"GAN": "adversarial_loss", "Distillation": "distillation_loss", "Momentum": "similarity_loss"}
    torch.manual_seed(0)
    module = names[name]().train()
    for teacher in (part for part_name, part in module.named_children() if part_name == "teacher"):
        teacher.eval()
    sizes = {"GAN": {"noise": 4, "real": 8}, "Distillation": {"images": 8}, "Momentum": {"images": 8, "views": 8}}
    data = {name: torch.randn(32, size) for name, size in sizes[name].items()}
    own = copy.deepcopy(module)
    step = bngrad.torch.training_step(module, names[losses[name]], (tuple(data.values()),), optimizer="sgd")
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    expected = list(losses_of_pytorch(own, names[losses[name]], data, 0.1, 8))
    np.testing.assert_allclose([trainer.step(**data) for _ in range(8)], expected, rtol=2e-5)
    assert expected[0] > expected[-1]
    bngrad.torch.load_into(module, trainer)
    for (key, value), other in zip(module.state_dict().items(), own.state_dict().values(), strict=True):
        np.testing.assert_allclose(value, other, rtol=2e-4, atol=2e-5, err_msg=key)


def test_the_state_has_the_student_alone(pages):
    weights = set(pages["distilling"].info.names("weight"))
    assert weights == {f"student.{name}" for name in ("0.weight", "1.weight", "1.bias", "3.weight", "3.bias")}
