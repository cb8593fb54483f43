"""Networks whose modules run several times in a step."""

from __future__ import annotations

import copy

import torch
from torch import nn

from networks.modules.images import BATCH, conv_norm, image


def _encoder(width: int = 16) -> nn.Sequential:
    return nn.Sequential(conv_norm(3, 8), conv_norm(8, width, 3, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _projector(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    first = nn.Linear(inputs, hidden, bias=False)
    return nn.Sequential(first, nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class Siamese(nn.Module):
    """One encoder for all inputs, one after the other: its statistics are updated as often."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = _encoder()

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.encoder(x) for x in inputs)


class Pair(Siamese):
    """Two inputs, by name."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.encoder(left), self.encoder(right)


class Triplet(Siamese):
    """Three inputs, by name."""

    def forward(self, anchor: torch.Tensor, same: torch.Tensor, other: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.encoder(anchor), self.encoder(same), self.encoder(other)


def siamese():
    return Pair(), (image(), image())


def triplet():
    return Triplet(), (image(), image(), image())


class Byol(nn.Module):
    """An online network with a predictor, and a target network without gradients; a buffer counts the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(_encoder(), _projector(16, 24, 8))
        self.target = copy.deepcopy(self.online).requires_grad_(requires_grad=False)
        self.predictor = _projector(8, 24, 8)
        self.register_buffer("updates", torch.zeros(()))

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
        predictions = self.predictor(self.online(first)), self.predictor(self.online(second))
        with torch.no_grad():
            targets = self.target(second), self.target(first)
            self.updates.add_(1)
        return *predictions, *targets


def byol():
    return Byol(), (image(), image())


class SimSiam(nn.Module):
    """Without a target network: the gradient is stopped instead."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(_encoder(), _projector(16, 24, 8), nn.BatchNorm1d(8, affine=False))
        self.predictor = _projector(8, 24, 8)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = self.online(first), self.online(second)
        return self.predictor(first), self.predictor(second), second.detach(), first.detach()


def sim_siam():
    return SimSiam(), (image(), image())


class MovingTarget(nn.Module):
    """A teacher whose weights are buffers, moved towards the student's in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 8, bias=False)
        self.register_buffer("teacher", self.head.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.student(x)
        with torch.no_grad():
            self.teacher.mul_(0.9).add_(self.head.weight, alpha=0.1)
        return self.head(y), y.detach() @ self.teacher.t()


def moving_target():
    return MovingTarget(), torch.randn(16, 20)


class Repeated(nn.Module):
    """One block three times, each with the output of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = conv_norm(3, 16), conv_norm(16, 16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for _ in range(3):
            x = x + self.block(x)
        return self.head(x.mean((2, 3)))


def shared_block():
    return Repeated(), image()


class GhostBatches(nn.Module):
    """A batch norm for each half of a batch, with statistics that are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(20, 16), nn.BatchNorm1d(16), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.norm(part) for part in self.first(x).chunk(2)]
        return self.head(torch.relu(torch.cat(parts)))


def ghost_batches():
    return GhostBatches(), torch.randn(4 * BATCH, 20)
