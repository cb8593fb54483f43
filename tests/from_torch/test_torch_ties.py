"""Gradients at limits and ties beside PyTorch's: of `bngrad.torch`, and of files of its exporters.

Each function is tried at values that are exactly there. docs/reference/ties.md has them in words.
"""

from __future__ import annotations

import io

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad.torch  # noqa: E402

LIMITS = [[-3.0, -1.0, 0.0, 1.0], [3.0, 6.0, 0.5, -0.5], [0.0, 0.25, -0.25, 2.0]]
TIES = [[2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 3.0, 3.0, 1.0]]
MARGINS = [[1.0, 0.0, 0.5, 2.0], [0.0, 0.0, 1.0, 1.0], [1.0, 2.0, 0.0, -1.0]]


def of(point, function):
    return point, function


def in_channels(function):
    return lambda x: function(x[None, None])


def sampled(grid, padding_mode):
    image = torch.arange(9.0).reshape(1, 1, 3, 3) ** 2
    return functional.grid_sample(image, grid.reshape(1, 2, 3, 2), padding_mode=padding_mode, align_corners=True)


FUNCTIONS = {
    "relu": of(LIMITS, functional.relu),
    "relu6": of(LIMITS, functional.relu6),
    "hardtanh": of(LIMITS, functional.hardtanh),
    "hardsigmoid": of(LIMITS, functional.hardsigmoid),
    "hardswish": of(LIMITS, functional.hardswish),
    "clamp": of(LIMITS, lambda x: x.clamp(0, 1)),
    "clamp from 0 to 6": of(LIMITS, lambda x: x.clamp(0, 6)),
    "clamp min": of(LIMITS, lambda x: x.clamp(min=0)),
    "clamp max": of(LIMITS, lambda x: x.clamp(max=1)),
    "clamp_min": of(LIMITS, lambda x: x.clamp_min(0)),
    "clamp_max": of(LIMITS, lambda x: torch.clamp_max(x, 1)),
    "clip": of(LIMITS, lambda x: torch.clip(x, -1, 1)),
    "maximum": of(LIMITS, lambda x: torch.maximum(x, x.flip(1) * x.sign())),
    "minimum": of(LIMITS, lambda x: torch.minimum(x, x.flip(1) * x.sign())),
    "max dim": of(TIES, lambda x: x.max(1).values),
    "max keepdim": of(TIES, lambda x: x.max(0, keepdim=True)[0]),
    "min dim": of(TIES, lambda x: x.min(-1).values),
    "max of all": of(TIES, lambda x: x.max()),
    "max_pool2d": of(TIES, in_channels(lambda x: functional.max_pool2d(x, (2, 2), 1))),
    "grid_sample border": of(LIMITS, lambda x: sampled(x, "border")),
    "grid_sample reflection": of(LIMITS, lambda x: sampled(x, "reflection")),
    "abs": of(LIMITS, torch.abs),
    "sign": of(LIMITS, lambda x: x.sign() * x),
    "leaky_relu": of(LIMITS, functional.leaky_relu),
    "prelu": of(LIMITS, lambda x: functional.prelu(x, torch.tensor([0.25]))),
    "elu": of(LIMITS, lambda x: functional.elu(x, 2.0)),
    "selu": of(LIMITS, functional.selu),
    "celu": of(LIMITS, lambda x: functional.celu(x, 2.0)),
    "hardshrink": of(LIMITS, functional.hardshrink),
    "softshrink": of(LIMITS, functional.softshrink),
    "norm": of(TIES, lambda x: x.norm(dim=1)),
    "norm 1": of(TIES, lambda x: x.norm(1, dim=1)),
    "normalize": of(TIES, functional.normalize),
    "prod": of(LIMITS, lambda x: x.prod(1)),
    "std": of(TIES, lambda x: x.std(1)),
}
"""Of all roads: the values of x, and the function."""

LOW, HIGH = torch.tensor([0.0, -1.0, 0.0, 1.0]), torch.tensor([0.5, 6.0, 0.0, 1.0])
RECORDED = {
    "clamp by tensors": of(LIMITS, lambda x: x.clamp(LOW, HIGH)),
    "clamp by a tensor": of(LIMITS, lambda x: x.clamp(min=LOW)),
    "clamp_min by a tensor": of(LIMITS, lambda x: torch.clamp_min(x, LOW)),
    "clamp from x to x": of(LIMITS, lambda x: LOW.clamp(x, x)),
    "amax": of(TIES, lambda x: x.amax(1)),
    "amin": of(TIES, lambda x: x.amin((0, 1))),
    "norm inf": of(TIES, lambda x: x.norm(float("inf"), dim=1)),
    "threshold": of(LIMITS, lambda x: functional.threshold(x, 0.5, 0.0)),
    "huber": of(LIMITS, lambda x: functional.huber_loss(x, torch.zeros_like(x))),
    "smooth_l1": of(LIMITS, lambda x: functional.smooth_l1_loss(x, torch.zeros_like(x))),
    "l1": of(LIMITS, lambda x: functional.l1_loss(x, torch.zeros_like(x))),
    "margin_ranking": of(MARGINS, lambda x: functional.margin_ranking_loss(x, x.flip(1), torch.ones_like(x), 1.0)),
    "hinge_embedding": of(MARGINS, lambda x: functional.hinge_embedding_loss(x, torch.ones_like(x) * -1)),
    "triplet_margin": of(MARGINS, lambda x: functional.triplet_margin_loss(x, x * 2, x * 2 + 1)),
    "multi_margin": of(MARGINS, lambda x: functional.multi_margin_loss(x, torch.tensor([0, 1, 2]))),
    "AdaptiveMaxPool2d": of(TIES, nn.Sequential(nn.Unflatten(0, (1, 3)), nn.AdaptiveMaxPool2d(1))),
}
"""The functions that TorchScript's exporter refuses, or does not distinguish from others."""

ROADS = {
    "bngrad.torch": FUNCTIONS | RECORDED,
    "dynamo": FUNCTIONS | RECORDED,
    "optimized": FUNCTIONS | RECORDED,
    "TorchScript": FUNCTIONS,
}


class Functions(nn.Module):
    """The sum of all functions, each of a parameter of its own, with a factor for each element."""

    def __init__(self, functions):
        super().__init__()
        self.functions = [function for _, function in functions.values()]
        self.modules_of_functions = nn.ModuleList(
            layer for layer in self.functions if isinstance(layer, nn.Module)
        )
        self.w = nn.ParameterList(torch.tensor(point) for point, _ in functions.values())
        results = [function(w).detach() for function, w in zip(self.functions, self.w, strict=True)]
        self.factors = [torch.arange(1.0, y.numel() + 1).reshape(y.shape) for y in results]

    def forward(self, unit, *points):
        """The loss; an exporter that gets the points, too, cannot merge those that are equal."""
        total = 0.0
        for function, w, factors in zip(self.functions, points or self.w, self.factors, strict=True):
            total = total + (function(w * unit) * factors).sum()
        return total


def exported(road, module):
    """The forward model, and the names of the points in it."""
    unit, points = torch.ones(()), tuple(w.detach() for w in module.w)
    if road == "bngrad.torch":
        return bngrad.torch.export(module, None, (unit,), check=False), [f"w.{i}" for i in range(len(points))]
    names = [f"w{i}" for i in range(len(points))]
    options = {"input_names": ["unit", *names], "output_names": ["loss"]}
    if road != "TorchScript":
        options |= {"dynamo": True, "optimize": road == "optimized", "verbose": False}
        return torch.onnx.export(module, (unit, *points), **options).model_proto, names
    data = io.BytesIO()
    options |= {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    torch.onnx.export(module, (unit, *points), data, dynamo=False, **options)
    return onnx.load_from_string(data.getvalue()), names


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("road", ROADS)
def test_gradients_are_those_of_pytorch(road, tmp_path):
    functions = ROADS[road]
    module = Functions(functions)
    module(torch.ones(())).backward()
    right = dict(zip(functions, (w.grad.numpy() for w in module.w), strict=True))
    model, names = exported(road, module)
    bngrad.save(model, tmp_path / "net.onnx")
    graph = bngrad.differentiate(tmp_path / "net.onnx", loss="loss", wrt=names)
    gradients = bngrad.read_training_graph(graph).gradients
    session = bngrad.session(graph)
    points = dict(zip(names, (w.detach().numpy() for w in module.w), strict=True))
    feeds = {value.name: points.get(value.name, np.ones((), np.float32)) for value in session.get_inputs()}
    values = session.run([gradients[name] for name in names], feeds)
    wrong = {
        name: (value, right[name])
        for name, value in zip(functions, values, strict=True)
        if not np.allclose(value, right[name], 1e-4, 1e-6)
    }
    assert not wrong, wrong
    if road == "dynamo":  # PyTorch's autograd on the nodes follows the same conventions
        report = bngrad.validate(model, loss="loss", wrt=names, against="torch", inputs=feeds | points)
        assert report.passed, [row for check in report.checks for row in check.failures]
