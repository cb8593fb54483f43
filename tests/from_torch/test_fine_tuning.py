"""Fine-tuning moves between PyTorch and ONNX Runtime: docs/examples/pytorch/finetune.py on a few epochs."""

from __future__ import annotations

import copy
from functools import cache, partial

import pytest

from digits_training import EXAMPLES

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
pytest.importorskip("sklearn", reason="needs scikit-learn, pip install bngrad[models]")

THIRDS = ["torch", "bngrad", "torch"]


@pytest.fixture(scope="module")
def finetune():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES / "pytorch")
        import finetune

        patch.setattr(finetune, "ResNet", partial(finetune.ResNet, blocks=1))
        yield finetune


@pytest.fixture(scope="module")
def start(finetune):
    """A network with a frozen stem, and the data of the other digits."""
    return finetune.pretrained(0, 1), finetune.digits(range(5, 10), 0, 0.2)


def stem(net):
    frozen = ("conv1.", "bn1.", "layer1.")
    return {name: value for name, value in net.state_dict().items() if name.startswith(frozen)}


@pytest.fixture(scope="module")
def in_torch(finetune, start):
    """The module after the training in PyTorch alone, and its curves, by optimizer."""
    net, data = start

    @cache
    def train(kind):
        copied = copy.deepcopy(net)
        return copied, finetune.train(copied, data, kind, ["torch"] * 3)

    return train


@pytest.mark.parametrize(("kind", "backends"), [("adamw", THIRDS), ("sgd", ["bngrad"] * 3)], ids=["adamw", "sgd"])
def test_curves_and_weights_are_those_of_pytorch(finetune, start, in_torch, kind, backends):
    net, data = start
    (expected_net, curves_of_torch), copied = in_torch(kind), copy.deepcopy(net)
    curves = finetune.train(copied, data, kind, backends)
    for ours, theirs in zip(curves, curves_of_torch, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3)
    assert curves_of_torch[-1].loss < 0.5 * curves_of_torch[0].loss
    expected, state = expected_net.state_dict(), copied.state_dict()
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert all(torch.equal(value, stem(net)[name]) for name, value in stem(copied).items())


def test_without_the_state_of_the_optimizer_it_is_another_training(finetune, start, in_torch, monkeypatch):
    net, data = start
    _, expected = in_torch("adamw")
    load = finetune.bngrad.torch.load_into
    monkeypatch.setattr(finetune.bngrad.torch, "load_into", lambda module, trainer, **_: load(module, trainer))
    curves = finetune.train(copy.deepcopy(net), data, "adamw", THIRDS)
    assert curves[:2] == [pytest.approx(curve, rel=1e-3) for curve in expected[:2]]
    assert curves[2] != pytest.approx(expected[2], rel=1e-3)
