"""Folded batch norms beside `torch.nn.utils.fusion`, and ghost batches beside PyTorch's autograd."""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.errors import ModelError

torch = pytest.importorskip("torch", reason="needs PyTorch, pip install bngrad[torch]")

from torch.nn.utils import fusion  # noqa: E402 - it is optional


def exported(module, shape, path, **options):
    """The module as PyTorch's exporter writes it, with names of parameters."""
    example = torch.zeros(2, *shape)
    torch.onnx.export(
        module, (example,), path, dynamo=True, external_data=False, input_names=["x"], output_names=["y"],
        dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), verbose=False, **options,
    )  # fmt: skip
    return onnx.load(path)


def with_statistics(module):
    torch.manual_seed(0)
    for norm in module.modules():
        if isinstance(norm, torch.nn.modules.batchnorm._BatchNorm):
            for tensor in (norm.weight, norm.bias, norm.running_mean):
                torch.nn.init.normal_(tensor)
            torch.nn.init.uniform_(norm.running_var, 0.5, 2)
    return module.eval()


MODULES = {
    "conv": (lambda: torch.nn.Conv2d(3, 4, 3, padding=1), lambda: torch.nn.BatchNorm2d(4), (3, 5, 5), "conv"),
    "groups": (
        lambda: torch.nn.Conv1d(4, 6, 3, groups=2, bias=False),
        lambda: torch.nn.BatchNorm1d(6),
        (4, 7),
        "conv",
    ),
    "transpose": (
        lambda: torch.nn.ConvTranspose2d(3, 4, 2, 2),
        lambda: torch.nn.BatchNorm2d(4),
        (3, 5, 5),
        "transpose",
    ),
    "linear": (lambda: torch.nn.Linear(5, 3), lambda: torch.nn.BatchNorm1d(3), (5,), "linear"),
}


@pytest.mark.parametrize("case", MODULES)
@pytest.mark.filterwarnings("ignore")
def test_the_weights_of_pytorchs_fusion(case, tmp_path):
    layer, norm, shape, kind = MODULES[case]
    module = with_statistics(torch.nn.Sequential(layer(), norm()))
    model = exported(module, shape, tmp_path / "model.onnx", optimize=False)
    folded = bngrad.edit_batch_norms(model, fold=True)
    assert "BatchNormalization" not in {node.op_type for node in folded.graph.node}
    first, second = copy.deepcopy(module)
    if kind == "linear":
        fused = fusion.fuse_linear_bn_eval(first, second)
    else:
        fused = fusion.fuse_conv_bn_eval(first, second, transpose=kind == "transpose")
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in folded.graph.initializer]
    for expected in (fused.weight.detach().numpy(), fused.bias.detach().numpy()):
        candidates = [a for a in arrays if expected.shape in (a.shape, a.shape[::-1])]
        candidates = [a if a.shape == expected.shape else a.T for a in candidates]
        assert any(np.allclose(actual, expected, rtol=1e-5, atol=1e-6) for actual in candidates)
    x = np.random.default_rng(0).standard_normal((6, *shape)).astype(np.float32)
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(bngrad.session(folded).run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


class GhostBatchNorm(torch.nn.BatchNorm2d):
    """Normalizes each group by itself, and updates with the mean of their statistics."""

    size = 4

    def forward(self, x):
        groups, updates = [], []
        for part in x.split(self.size):
            mean, var = self.running_mean.clone(), self.running_var.clone()
            groups.append(
                torch.nn.functional.batch_norm(
                    part, mean, var, self.weight, self.bias, True, self.momentum, self.eps
                )
            )
            updates.append((mean, var))
        for buffer, values in zip((self.running_mean, self.running_var), zip(*updates, strict=True), strict=True):
            buffer.copy_(torch.stack(values).mean(0))
        return torch.cat(groups)


@pytest.mark.filterwarnings("ignore")
def test_ghost_batches_train_as_in_pytorch(tmp_path):
    module = with_statistics(
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()
        )
    )
    model = exported(module, (3, 5, 5), tmp_path / "model.onnx", optimize=False)
    ghost = bngrad.edit_batch_norms(model, mode="training", ghost=4)
    step = bngrad.training_step(ghost, loss_fn="mse", prediction="y")
    trainer = bngrad.Trainer(step, learning_rate=0.5)
    other = GhostBatchNorm(4)
    other.load_state_dict(module[1].state_dict())
    reference = torch.nn.Sequential(module[0], other, *module[2:]).train()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    rng = np.random.default_rng(0)
    for _ in range(4):
        x = rng.standard_normal((12, 3, 5, 5)).astype(np.float32)
        target = rng.standard_normal((12, 100)).astype(np.float32)
        loss = torch.nn.functional.mse_loss(reference(torch.from_numpy(x)), torch.from_numpy(target))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert trainer.step(x=x, target=target) == pytest.approx(loss.item(), rel=1e-5)
    state = trainer.state_dict()
    for name, tensor in reference.state_dict().items():
        if name in state:
            np.testing.assert_allclose(state[name], tensor.numpy(), rtol=1e-4, atol=1e-5)
    assert {"1.running_mean", "1.running_var", "1.weight", "0.weight"} <= set(state)
    with pytest.raises(ModelError, match=r"which --against torch \(against=\) does not support"):
        bngrad.validate(ghost, loss_fn="mse", prediction="y", against="torch", batch_size=8)
