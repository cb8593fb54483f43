"""Small networks of sequences, vectors and sets."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

BATCH = 4


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """Convolution over time, batch norm, ReLU."""
    padding = dilation * (kernel // 2)
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, kernel, stride, padding, dilation, bias=False),
        nn.BatchNorm1d(outputs),
        nn.ReLU(),
    )


def mlp():
    layers = [nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(32, 10)), torch.randn(16, 20)


class Tabular(nn.Module):
    """Embeddings of categories beside normalized numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(7, 4), nn.Embedding(5, 4, padding_idx=0)])
        self.norm = nn.BatchNorm1d(6)
        self.layers = nn.Sequential(nn.Linear(14, 32), nn.BatchNorm1d(32), nn.Mish(), nn.Linear(32, 10))

    def forward(self, numbers: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        columns = [embed(categories[:, i]) for i, embed in enumerate(self.embeddings)]
        return self.layers(torch.cat([self.norm(numbers), *columns], 1))


def tabular():
    return Tabular(), (torch.randn(16, 6), torch.randint(0, 5, (16, 2)))


class PointNet(nn.Module):
    """A transform of the points, then features of each point and their maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.align = nn.Sequential(
            conv_norm(3, 16, 1), conv_norm(16, 32, 1), nn.AdaptiveMaxPool1d(1), nn.Flatten()
        )
        self.matrix = nn.Linear(32, 9)
        self.features = nn.Sequential(conv_norm(3, 16, 1), conv_norm(16, 32, 1))
        self.head = nn.Sequential(nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        matrix = self.matrix(self.align(points)).view(-1, 3, 3) + torch.eye(3, dtype=points.dtype)
        features = self.features(torch.bmm(matrix, points))
        return self.head(features.max(2).values)


def pointnet():
    return PointNet(), torch.randn(8, 3, 32)


class GraphConvolution(nn.Module):
    """Two layers of a dense graph convolution; batch norm over the nodes of all graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 16)
        self.norm1, self.norm2 = nn.BatchNorm1d(16), nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, nodes: torch.Tensor, adjacency: torch.Tensor) -> torch.Tensor:
        adjacency = adjacency / adjacency.sum(-1, keepdim=True)
        x = F.relu(self.norm1((adjacency @ self.first(nodes)).transpose(1, 2)))
        x = F.relu(self.norm2((adjacency @ self.second(x.transpose(1, 2))).flatten(0, 1)))
        return self.head(x.unflatten(0, nodes.shape[:2]).mean(1))


def graph_convolution():
    return GraphConvolution(), (
        torch.randn(BATCH, 12, 8),
        (torch.rand(BATCH, 12, 12) > 0.5).float() + torch.eye(12),
    )


def cnn_1d():
    layers = [conv_norm(2, 16, 5, 2), conv_norm(16, 32, 3), nn.MaxPool1d(2), nn.AvgPool1d(2), conv_norm(32, 32, 3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 10)), torch.randn(
        BATCH, 2, 64
    )


class Causal(nn.Module):
    """A residual block of a dilated convolution that sees only the past."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.padding = 2 * dilation
        self.conv, self.norm = nn.Conv1d(width, 2 * width, 3, dilation=dilation), nn.BatchNorm1d(2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.glu(self.norm(self.conv(F.pad(x, (self.padding, 0)))), 1)


def temporal_convolution():
    return nn.Sequential(
        nn.Conv1d(2, 16, 1), Causal(16, 1), Causal(16, 2), Causal(16, 4), nn.Conv1d(16, 10, 1)
    ), torch.randn(BATCH, 2, 40)


def eeg_net():
    layers = [
        nn.Conv2d(1, 8, (1, 16), padding="same", bias=False),
        nn.BatchNorm2d(8, momentum=0.01, eps=1e-3),
        nn.Conv2d(8, 16, (8, 1), groups=8, bias=False),
        nn.BatchNorm2d(16, momentum=0.01, eps=1e-3),
        nn.ELU(),
        nn.AvgPool2d((1, 4)),
        nn.Conv2d(16, 16, (1, 8), padding="same", groups=16, bias=False),
        nn.Conv2d(16, 16, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ELU(),
        nn.AvgPool2d((1, 4)),
        nn.Flatten(),
        nn.Linear(64, 10),
    ]
    return nn.Sequential(*layers), torch.randn(BATCH, 1, 8, 64)


class EcapaTdnn(nn.Module):
    """Dilated blocks of groups of channels in turn, squeeze and excitation, attentive statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv_norm(16, 32, 5)
        self.parts = nn.ModuleList([conv_norm(8, 8, 3, dilation=2) for _ in range(3)])
        self.gate = nn.Sequential(nn.Conv1d(32, 8, 1), nn.ReLU(), nn.Conv1d(8, 32, 1), nn.Sigmoid())
        self.attention = nn.Sequential(conv_norm(96, 16, 1), nn.Tanh(), nn.Conv1d(16, 32, 1), nn.Softmax(2))
        self.head = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.Linear(24, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        pieces = list(x.chunk(4, 1))
        for i, part in enumerate(self.parts):
            pieces[i + 1] = part(pieces[i + 1] + pieces[i])
        y = torch.cat(pieces, 1)
        y = x + y * self.gate(y.mean(2, keepdim=True))
        mean, std = y.mean(2, keepdim=True), y.var(2, keepdim=True).clamp(min=1e-6).sqrt()
        weights = self.attention(torch.cat([y, mean.expand_as(y), std.expand_as(y)], 1))
        mean = (weights * y).sum(2)
        std = ((weights * y.square()).sum(2) - mean.square()).clamp(min=1e-4).sqrt()
        return self.head(torch.cat([mean, std], 1))


def ecapa_tdnn():
    return EcapaTdnn(), torch.randn(BATCH, 16, 50)


class Conformer(nn.Module):
    """Attention, then the convolution module with its batch norm."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))
        self.attention_norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.conv_norm = nn.LayerNorm(width)
        self.conv = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1),
            nn.GLU(1),
            nn.Conv1d(width, width, 7, padding=3, groups=width),
            nn.BatchNorm1d(width),
            nn.SiLU(),
            nn.Conv1d(width, width, 1),
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.feed(x)
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.conv(self.conv_norm(x).transpose(1, 2)).transpose(1, 2)
        return self.head(x).transpose(1, 2)


def conformer():
    return Conformer(), torch.randn(BATCH, 24, 16)


def postnet():
    layers = [nn.Conv1d(8, 16, 5, padding=2), nn.BatchNorm1d(16), nn.Tanh(), nn.Conv1d(16, 16, 5, padding=2)]
    layers += [nn.BatchNorm1d(16), nn.Tanh(), nn.Conv1d(16, 8, 5, padding=2), nn.BatchNorm1d(8)]
    return nn.Sequential(*layers), torch.randn(BATCH, 8, 30)


class Recurrent(nn.Module):
    """Convolutions with batch norm, a recurrent network, and batch norm of what it returns."""

    def __init__(self, kind: type[nn.RNNBase], *, bidirectional: bool, steps: bool = False) -> None:
        super().__init__()
        self.conv = nn.Sequential(conv_norm(8, 16, 5, 2), conv_norm(16, 16, 3))
        self.recurrent = kind(16, 12, 2, batch_first=True, bidirectional=bidirectional)
        width = 24 if bidirectional else 12
        self.norm, self.head, self.steps = nn.BatchNorm1d(width), nn.Linear(width, 10), steps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.recurrent(self.conv(x).transpose(1, 2))
        if self.steps:
            return self.head(self.norm(y.transpose(1, 2)).transpose(1, 2)).log_softmax(2).transpose(0, 1)
        return self.head(self.norm(y.mean(1)))


def conv_gru():
    return Recurrent(nn.GRU, bidirectional=False), torch.randn(BATCH, 8, 24)


def conv_rnn():
    return Recurrent(nn.RNN, bidirectional=False), torch.randn(BATCH, 8, 24)


def conv_lstm_bidirectional():
    return Recurrent(nn.LSTM, bidirectional=True), torch.randn(BATCH, 8, 24)


def ctc():
    return Recurrent(nn.LSTM, bidirectional=True, steps=True), torch.randn(BATCH, 8, 40)


class Crnn(nn.Module):
    """Text recognition: columns of an image as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, 1, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d((2, 1)),
            nn.AdaptiveAvgPool2d((1, None)),
        )
        self.recurrent = nn.LSTM(32, 16, bidirectional=True)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.recurrent(self.conv(x).squeeze(2).permute(2, 0, 1))
        return self.head(y).permute(1, 2, 0)


def crnn():
    return Crnn(), torch.randn(BATCH, 1, 16, 40)
