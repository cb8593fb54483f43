"""The CTC loss of docs/guides/pytorch.md: it trains a speech network as nn.CTCLoss does."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import bngrad
from page_examples import ROOT

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

import bngrad.torch  # noqa: E402


@pytest.fixture(scope="module")
def page():
    """The names that the section defines, without the step."""
    text = (ROOT / "docs" / "guides" / "pytorch.md").read_text(encoding="utf-8")
    block = text[text.index("def ctc_loss(") : text.index("speech_step =")]
    names = {"torch": torch, "nn": torch.nn}
    torch.manual_seed(4)
    exec(block, names)  # noqa: S102 - the code of the page
    return names


def losses_and_gradient(loss_fn, scores, data):
    log_probs = scores.clone().requires_grad_()
    loss = loss_fn(log_probs.log_softmax(2), *data)
    (gradient,) = torch.autograd.grad(loss, log_probs)
    return loss.item(), gradient


def test_equals_the_loss_of_pytorch(page):
    """Also for repeated labels, which need a blank between them, an empty target, and padding of any class."""
    torch.manual_seed(1)
    scores = torch.randn(12, 6, 5, dtype=torch.float64)
    labels = torch.tensor([[1, 1, 2, 2], [3, 3, 1, 2], [4, 1, 4, 1], [2, 2, 2, 2], [1, 2, 3, 4], [1, 2, 1, 3]])
    data = labels, torch.tensor([12, 9, 11, 12, 8, 10]), torch.tensor([4, 2, 3, 4, 0, 3])
    own = losses_and_gradient(page["ctc_loss"], scores, data)
    expected = losses_and_gradient(torch.nn.CTCLoss(), scores, data)
    torch.testing.assert_close(own, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.long
def test_trains_as_pytorch_does(page):
    torch.manual_seed(0)
    module = page["Speech"]().train()
    own = copy.deepcopy(module)
    data = {name: page[word] for name, word in zip(("sound", "labels"), ("sounds", "words"), strict=True)}
    data |= {"input_lengths": page["lengths"], "target_lengths": page["letters"]}
    step = bngrad.torch.training_step(module, page["ctc_loss"], tuple(data.values()), optimizer="sgd")
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    optimizer, expected = torch.optim.SGD(own.parameters(), lr=0.1), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = torch.nn.CTCLoss()(own(page["sounds"]), page["words"], page["lengths"], page["letters"])
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose([trainer.step(**data) for _ in range(20)], expected, rtol=2e-5)
    assert expected[-1] < expected[0] / 2
