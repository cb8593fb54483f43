"""Modules for the comparison of training graphs by PyTorch's autograd with PyTorch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Case(NamedTuple):
    """A function that creates a module, and the shape of its input without the batch."""

    make: object
    shape: tuple[int, ...]
    classes: int = 0
    """The number of classes of an input of labels; 0 for an input of floats."""


def head(channels):
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)]


def image(*modules, channels=4, size=8):
    return Case(lambda: nn.Sequential(*(make() for make in modules), *head(channels)), (3, size, size))


def conv(out=4, **options):
    return lambda: nn.Conv2d(3, out, 3, **options)


def rows(*modules):
    return Case(lambda: nn.Sequential(*(make() for make in modules)), (4,))


class Function(nn.Module):
    """Calls a function of submodules and an input."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(modules)

    def forward(self, x):
        return self.function(self.layers, x)


def calls(function, *modules, shape=(4,), classes=0):
    return Case(lambda: Function(function, *(make() for make in modules)), shape, classes)


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        return functional.relu(self.bn2(self.conv2(y)) + self.down(x))


class Inverted(nn.Module):
    """A block of MobileNetV3: depthwise, with a squeeze and excitation."""

    def __init__(self):
        super().__init__()
        self.depthwise = nn.Sequential(
            *(nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6), nn.Hardswish()),
            *(nn.Conv2d(6, 6, 5, 2, 2, groups=6, bias=False), nn.BatchNorm2d(6), nn.ReLU6()),
        )
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(6, 2, 1), nn.ReLU(), nn.Conv2d(2, 6, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(6, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x):
        y = self.depthwise(x)
        return self.project(y * self.scale(y))


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(3 + 2 * i), nn.ReLU(), nn.Conv2d(3 + 2 * i, 2, 3, padding=1, bias=False))
            for i in range(2)
        )

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def frozen():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *head(4))
    module[1].eval()
    module[1].running_var.fill_(2.0)
    module[1].running_mean.fill_(0.1)
    return module


def fixed_stem():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), *head(4))
    module[0].requires_grad_(False)
    return module


def twice(layers, x):
    return layers[2](layers[1](torch.sigmoid(layers[0](functional.relu(layers[1](layers[0](x)))))).amax((2, 3)))


def tied():
    module = Function(lambda m, x: m[1](torch.tanh(m[0](x))).mean(1)[:, :3], nn.Embedding(7, 4), nn.Linear(4, 7))
    module.layers[1].weight = module.layers[0].weight
    return module


def attention(layers, x):
    q, k, v = layers[0](x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
    return layers[1](functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)).mean(1)


class Wrong(torch.autograd.Function):
    """A square with three halves of its gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 3 * gradient * x


def hooked(layers, x):
    y = layers[0](x)
    y.register_hook(lambda gradient: gradient * 2)
    return y


def module_hook():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    module[1].register_full_backward_hook(lambda _module, gradients, _outputs: (gradients[0] * 0.5,))
    return module


def no_grad(layers, x):
    with torch.no_grad():
        gate = layers[0](x)
    return layers[1](gate * layers[0](x).detach() + layers[0](x))


def checkpointed(layers, x):
    return layers[1](torch.utils.checkpoint.checkpoint(layers[0], x, use_reentrant=False))


def unequal(layers, x):
    """Reads a slice, one element and the elements under repeated indices."""
    y = layers[0](x)
    return y[:, 1:4] + y.select(1, 0)[:, None] + y[:, torch.tensor([0, 2, 2])]


CASES = {
    "conv-bn-relu": image(conv(bias=False), lambda: nn.BatchNorm2d(4), nn.ReLU),
    "resnet": image(lambda: Residual(3, 4, 1), lambda: Residual(4, 6, 2), channels=6),
    "mobilenet": image(Inverted),
    "densenet": image(Dense, lambda: nn.BatchNorm2d(7), lambda: nn.AvgPool2d(2), nn.GELU, channels=7),
    "1d": Case(
        lambda: nn.Sequential(
            *(nn.Conv1d(3, 4, 3, bias=False), nn.BatchNorm1d(4), nn.LeakyReLU(0.1), nn.MaxPool1d(2)),
            *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 3)),
        ),
        (3, 10),
    ),
    "3d": Case(
        lambda: nn.Sequential(
            *(nn.Conv3d(2, 4, 3, padding=1, bias=False), nn.BatchNorm3d(4), nn.ELU(), nn.MaxPool3d(2)),
            *(nn.AvgPool3d(2), nn.Flatten(), nn.Linear(4, 3)),
        ),
        (2, 4, 4, 4),
    ),
    "without-affine": image(conv(bias=False), lambda: nn.BatchNorm2d(4, affine=False), nn.GELU),
    "without-statistics": image(conv(bias=False), lambda: nn.BatchNorm2d(4, track_running_stats=False), nn.SiLU),
    "cumulative": image(conv(bias=False), lambda: nn.BatchNorm2d(4, momentum=None), nn.Mish),
    "frozen": Case(frozen, (3, 8, 8)),
    "fixed-stem": Case(fixed_stem, (3, 8, 8)),
    "twice": calls(
        twice,
        lambda: nn.Conv2d(3, 3, 3, padding=1, bias=False),
        lambda: nn.BatchNorm2d(3),
        lambda: nn.Linear(3, 3),
        shape=(3, 6, 6),
    ),
    "rows": rows(lambda: nn.Linear(4, 5, bias=False), lambda: nn.BatchNorm1d(5), nn.Tanh, lambda: nn.Linear(5, 3)),
    "group-norm": image(conv(), lambda: nn.GroupNorm(2, 4), nn.ReLU),
    "layer-norm": rows(lambda: nn.Linear(4, 5), lambda: nn.LayerNorm(5), nn.Softplus, lambda: nn.Linear(5, 3)),
    "dropout-of-0": rows(lambda: nn.Linear(4, 5), lambda: nn.Dropout(0.0), lambda: nn.Linear(5, 3)),
    "embedding": calls(
        lambda m, x: m[1](m[0](x).mean(1)),
        lambda: nn.Embedding(7, 4, padding_idx=2, scale_grad_by_freq=True),
        lambda: nn.Linear(4, 3),
        shape=(5,),
        classes=7,
    ),
    "tied": Case(tied, (5,), 7),
    "transposed": Case(
        lambda: nn.Sequential(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2, bias=False), nn.ReLU(), *head(6)),
        (4, 5, 5),
    ),
    "grouped-dilated": Case(
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, 2, 2, dilation=2, groups=2), nn.ReLU(), *head(8)), (4, 9, 9)
    ),
    "max-pool-overlap": image(conv(), nn.ReLU, lambda: nn.MaxPool2d(3, 2, 1), size=9),
    "max-pool-ceil": image(conv(), lambda: nn.MaxPool2d(2, 2, dilation=2, ceil_mode=True), size=10),
    "average-pool-ceil": image(
        conv(), lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), size=10
    ),
    "adaptive-average": image(conv(), lambda: nn.AdaptiveAvgPool2d((3, 2)), nn.ReLU, size=9),
    "adaptive-max": image(conv(), lambda: nn.AdaptiveMaxPool2d((3, 2)), nn.ReLU),
    "bilinear": image(conv(), lambda: nn.Upsample(scale_factor=1.5, mode="bilinear"), nn.ReLU),
    "nearest": image(conv(), lambda: nn.Upsample(size=(9, 11)), nn.ReLU),
    "attention": calls(attention, lambda: nn.Linear(8, 24), lambda: nn.Linear(8, 3), shape=(5, 8)),
    "slices": calls(unequal, lambda: nn.Linear(4, 5)),
    "lstm": calls(
        lambda m, x: m[1](m[0](x)[0][:, -1]),
        lambda: nn.LSTM(4, 5, batch_first=True),
        lambda: nn.Linear(5, 3),
        shape=(3, 4),
    ),
    "custom-function": calls(lambda m, x: Wrong.apply(m[0](x)), lambda: nn.Linear(4, 3)),
    "tensor-hook": calls(hooked, lambda: nn.Linear(4, 3)),
    "module-hook": Case(module_hook, (4,)),
    "checkpoint": calls(
        checkpointed, lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4)), lambda: nn.Linear(4, 3)
    ),
    "no-grad": calls(no_grad, lambda: nn.Linear(4, 4), lambda: nn.Linear(4, 3)),
}
