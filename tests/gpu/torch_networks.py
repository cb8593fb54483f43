"""ResNet-50, MobileNetV2 and DenseNet-121 in PyTorch, and small ones of their kinds; no torchvision is needed."""

from __future__ import annotations

import torch
from torch import nn


def conv_bn(inputs, outputs, kernel=1, stride=1, groups=1, activation=nn.ReLU):
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([activation()] if activation else []))


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.main = nn.Sequential(
            conv_bn(inputs, width), conv_bn(width, width, 3, stride), conv_bn(width, outputs, activation=None)
        )
        changes = stride != 1 or inputs != outputs
        self.shortcut = conv_bn(inputs, outputs, 1, stride, activation=None) if changes else nn.Identity()

    def forward(self, x):
        return torch.relu(self.main(x) + self.shortcut(x))


def resnet(width=64, blocks=(3, 4, 6, 3), classes=1000):
    layers, inputs = [conv_bn(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)], width
    for stage, count in enumerate(blocks):
        for block in range(count):
            layers.append(Bottleneck(inputs, width << stage, 2 if stage and not block else 1))
            inputs = 4 * (width << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        hidden = inputs * expansion
        self.layers = nn.Sequential(
            *([conv_bn(inputs, hidden, activation=nn.ReLU6)] if expansion != 1 else []),
            conv_bn(hidden, hidden, 3, stride, hidden, nn.ReLU6),
            conv_bn(hidden, outputs, activation=None),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.layers(x) if self.adds else self.layers(x)


_MOBILE = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(stages=_MOBILE, last=1280, classes=1000):
    layers, inputs = [conv_bn(3, 32, 3, 2, activation=nn.ReLU6)], 32
    for expansion, outputs, count, first in stages:
        for block in range(count):
            layers.append(InvertedResidual(inputs, outputs, 1 if block else first, expansion))
            inputs = outputs
    head = [conv_bn(inputs, last, activation=nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(last, classes))


class DenseLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.layers = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(),
            nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return torch.cat([x, self.layers(x)], 1)


def densenet(growth=32, blocks=(6, 12, 24, 16), classes=1000):
    inputs = 2 * growth
    layers = [conv_bn(3, inputs, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for block, count in enumerate(blocks):
        for _ in range(count):
            layers.append(DenseLayer(inputs, growth))
            inputs += growth
        if block + 1 < len(blocks):
            transition = nn.Conv2d(inputs, inputs // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(inputs), nn.ReLU(), transition, nn.AvgPool2d(2)]
            inputs //= 2
    head = [nn.BatchNorm2d(inputs), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(inputs, classes))


NETWORKS = {"resnet50": resnet, "mobilenet_v2": mobilenet_v2, "densenet121": densenet}
SMALL = {
    "resnet50": lambda: resnet(8, (1, 1), 10),
    "mobilenet_v2": lambda: mobilenet_v2(_MOBILE[:2], 32, 10),
    "densenet121": lambda: densenet(8, (2, 2), 10),
}


def network(name, small):
    """A network with the weights of a fixed seed, in training mode, and the number of its classes."""
    torch.manual_seed(0)
    return (SMALL if small else NETWORKS)[name]().train(), 10 if small else 1000


def batch(size, pixels, classes):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(size, 3, pixels, pixels, generator=generator)
    return images, torch.randint(0, classes, (size,), generator=generator)
