"""Cross entropies that PyTorch's exporter writes wrongly: beside PyTorch's own, and in training graphs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad.torch  # noqa: E402
from bngrad.torch.cross_entropy import cross_entropy  # noqa: E402
from bngrad.torch.in_ops import InOps  # noqa: E402

LABELS = torch.tensor([0, 1, -100, 3, 1])
SHARES = torch.softmax(torch.arange(20.0).reshape(5, 4).sin(), 1)
WEIGHT = torch.tensor([1.0, 2.0, 0.5, 3.0])
INPUTS = {
    "labels": ((5, 4), LABELS),
    "labels-all-ignored": ((5, 4), torch.full((5,), -100)),
    "labels-of-images": ((2, 4, 3), torch.tensor([[0, 1, -100], [3, 1, 2]])),
    "probabilities": ((5, 4), SHARES),
    "probabilities-of-images": ((2, 4, 3), SHARES[:3].T.expand(2, 4, 3)),
    "label-of-one-sample": ((4,), torch.tensor(2)),
    "probabilities-of-one-sample": ((4,), SHARES[0]),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weight"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("name", INPUTS)
def test_values_and_gradients_are_pytorchs(name, reduction, weight, smoothing):
    shape, target = INPUTS[name]
    weight = None if weight is None else weight.double()
    target = target.double() if target.is_floating_point() else target
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    options = {"weight": weight, "reduction": reduction, "label_smoothing": smoothing}
    expected = functional.cross_entropy(x, target, **options)
    got = cross_entropy(x, target, weight, -100, reduction, smoothing)
    torch.testing.assert_close(got, expected, equal_nan=True)
    gradients = [torch.autograd.grad(loss.sum(), x)[0] for loss in (got, expected)]
    torch.testing.assert_close(*gradients, equal_nan=True)


def test_what_the_exporter_writes_right_stays():
    x, labels = torch.randn(5, 4), LABELS
    with InOps():
        expected = functional.cross_entropy(x, labels, WEIGHT)
        smooth = functional.cross_entropy(x, labels, WEIGHT, label_smoothing=0.3)
    assert torch.equal(expected, functional.cross_entropy(x, labels, WEIGHT))
    torch.testing.assert_close(smooth, functional.cross_entropy(x, labels, WEIGHT, label_smoothing=0.3))


def focal(output, target):
    losses = functional.cross_entropy(output, target, reduction="none")
    return ((1 - torch.exp(-losses)) ** 2 * losses).mean()


LOSSES = {
    "label-smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), LABELS),
    "everything": (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.2, ignore_index=1), LABELS.abs() % 4),
    "probabilities": (nn.CrossEntropyLoss(), SHARES),
    "focal": (focal, LABELS),
    "a-weight-of-its-own": (lambda x, y: functional.nll_loss(x.log_softmax(1), y, weight=WEIGHT), LABELS),
}


@pytest.mark.parametrize("name", LOSSES)
def test_training_graphs(name):
    loss_fn, target = LOSSES[name]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4))
    report = bngrad.torch.compare(module, loss_fn, (torch.randn(5, 6), target), steps=1)
    assert report.passed, report.reason
