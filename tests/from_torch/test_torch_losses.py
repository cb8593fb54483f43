"""Loss functions against those of PyTorch, values and gradients, and modules of PyTorch with such losses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.training.loss_functions import LOSS_FUNCTIONS, loss_function
from training.loss_cases import CASES, case_id, cases_of

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

from bngrad.torch import training_step  # noqa: E402 - it imports torch

functional = torch.nn.functional


def sigmoid_focal_loss(x, target, alpha=0.25, gamma=2.0, reduction="mean"):
    """The loss of that name in torchvision: https://arxiv.org/abs/1708.02002, equation 5."""
    p = torch.sigmoid(x)
    of_target = p * target + (1 - p) * (1 - target)
    loss = functional.binary_cross_entropy_with_logits(x, target, reduction="none") * (1 - of_target) ** gamma
    if alpha >= 0:
        loss = (alpha * target + (1 - alpha) * (1 - target)) * loss
    return {"mean": torch.mean, "sum": torch.sum}[reduction](loss)


THEIRS = {
    "cross_entropy": functional.cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "huber": functional.huber_loss,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
    "sigmoid_focal": sigmoid_focal_loss,
}
DTYPES = {"float": (np.float32, 2e-6), "double": (np.float64, 1e-12)}
DELTA = 0.75
MODULES = {
    "huber": lambda: torch.nn.HuberLoss(delta=DELTA),
    "sigmoid_focal": lambda: sigmoid_focal_loss,
}


def test_every_loss_function_is_compared():
    assert set(THEIRS) == set(LOSS_FUNCTIONS) == set(CASES)


def tensors(options, dtype):
    """Options of PyTorch: weights are tensors."""
    return {k: torch.tensor(v, dtype=dtype) if "weight" in k else v for k, v in options.items()}


def data_of(name, dtype, rng):
    """A prediction with 0 and with errors of exactly `DELTA`, and a target."""
    if name == "cross_entropy":
        return rng.standard_normal((6, 5)).astype(dtype), rng.integers(0, 5, 6)
    x, target = rng.standard_normal((6, 4)).astype(dtype), rng.integers(0, 2, (6, 4)).astype(dtype)
    x[0], target[0] = (DELTA, 1 - DELTA, 1 + DELTA, 0), (0, 1, 1, 0)
    return x, target


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", [*cases_of(*CASES), ("huber", {"delta": DELTA})], ids=case_id)
def test_values_and_gradients_are_those_of_torch(case, dtype, rng):
    (name, options), (kind, tolerance) = case, DTYPES[dtype]
    x, target = data_of(name, kind, rng)
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
    g ({dtype}[N, {x.shape[1]}] x) => ({dtype}[N, {x.shape[1]}] y) <{dtype} one = {{1}}> {{
        y = Mul (x, one)
    }}""")
    graph = bngrad.differentiate(model, loss_fn=loss_function(name, **options), wrt=["x"])
    target_name = "labels" if name == "cross_entropy" else "target"
    loss, gradient = bngrad.session(graph).run(["loss", "x_grad"], {"x": x, target_name: target})
    theirs = torch.tensor(x, requires_grad=True)
    expected = THEIRS[name](theirs, torch.tensor(target), **tensors(options, theirs.dtype))
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=4 * tolerance, atol=tolerance)
    np.testing.assert_allclose(gradient, theirs.grad.numpy(), rtol=8 * tolerance, atol=tolerance)


@pytest.mark.parametrize("name", MODULES)
def test_modules_of_torch_train_alike(name):
    """The step of a module with a loss of PyTorch against PyTorch."""
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    x, target = torch.randn(8, 3), torch.randn(8, 2)
    loss_fn, optimizer = MODULES[name](), torch.optim.SGD(net.parameters(), lr=0.1)
    step = training_step(net, loss_fn, (x, target), optimizer=optimizer)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    names = list(step.info.data)
    for _ in range(5):
        optimizer.zero_grad()
        expected = loss_fn(net(x), target)
        expected.backward()
        optimizer.step()
        loss = trainer.step(**dict(zip(names, (x.numpy(), target.numpy()), strict=True)))
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    for weight, parameter in net.named_parameters():
        np.testing.assert_allclose(trainer.state_dict()[weight], parameter.detach().numpy(), atol=1e-6)
