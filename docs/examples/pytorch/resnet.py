"""A small ResNet for images of 8x8 pixels, with the blocks and the names of torchvision's."""

from __future__ import annotations

import torch
from torch import nn


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inputs, H, W] -> [N, outputs, H / stride, W / stride]."""
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """Three stages of blocks; ResNet-20 has three in each.

    Args:
        classes: The number of classes.
        dropout: The ratio of the Dropout before the classifier.
        blocks: The number of blocks in each stage.
    """

    def __init__(self, classes: int, dropout: float = 0.0, blocks: int = 3) -> None:
        super().__init__()
        self.frozen: tuple[str, ...] = ()
        self.conv1, self.bn1, self.relu = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.layer1 = nn.Sequential(*(BasicBlock(16, 16, 1) for _ in range(blocks)))
        self.layer2 = nn.Sequential(BasicBlock(16, 32, 2), *(BasicBlock(32, 32, 1) for _ in range(blocks - 1)))
        self.layer3 = nn.Sequential(BasicBlock(32, 64, 2), *(BasicBlock(64, 64, 1) for _ in range(blocks - 1)))
        self.dropout, self.fc = nn.Dropout(dropout), nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the logits [N, classes] of images [N, 1, 8, 8]."""
        x = self.relu(self.bn1(self.conv1(images)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.dropout(x.mean((2, 3))))

    def freeze(self, *names: str) -> None:
        """Freezes submodules: no gradients, and their batch norms stay in evaluation mode."""
        self.frozen = names
        for name in names:
            self.get_submodule(name).requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> ResNet:
        """Sets the mode of all modules except frozen ones."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self
