"""Small networks of many kinds, each with the ops that it is there for."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bngrad.torch.autograd.ops.rois import roi_align

CLASSES = 5


class Speech(nn.Module):
    """Features of frames, normalized by channel, and a recurrent network with a class for each frame."""

    def __init__(self, recurrent):
        super().__init__()
        self.bn = nn.BatchNorm1d(6)
        self.recurrent = recurrent
        width = recurrent.hidden_size * (1 + recurrent.bidirectional)
        self.bn_out = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        y, _ = self.recurrent(self.bn(x).transpose(1, 2))
        return self.head(self.bn_out(y.transpose(1, 2)).transpose(1, 2)).transpose(1, 2)


class PackedSpeech(Speech):
    """The same network with packed sequences."""

    def forward(self, x):
        lengths = torch.full(x.shape[:1], x.shape[2])
        rows = nn.utils.rnn.pack_padded_sequence(self.bn(x).transpose(1, 2), lengths, batch_first=True)
        return self.head(nn.utils.rnn.pad_packed_sequence(self.recurrent(rows)[0], batch_first=True)[0])


class Detector(nn.Module):
    """Scores of positions; the best four are sampled by a grid, and get a box and a class."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.score, self.offset = nn.Conv2d(8, 1, 1), nn.Conv2d(8, 2, 1)
        self.box, self.label = nn.Linear(8 * 9, 4), nn.Linear(8 * 9, CLASSES)
        ticks = torch.linspace(-1, 1, 8)
        y, x = torch.meshgrid(ticks, ticks, indexing="ij")
        self.register_buffer("centers", torch.stack([x, y], -1).reshape(1, 64, 2))
        near = torch.linspace(-0.3, 0.3, 3)
        y, x = torch.meshgrid(near, near, indexing="ij")
        self.register_buffer("window", torch.stack([x, y], -1).reshape(1, 1, 9, 2))

    def forward(self, x):
        features = functional.relu(self.bn(self.conv(x)))
        scores, best = self.score(features).flatten(1).sigmoid().topk(4, 1)
        offsets = self.offset(features).flatten(2).transpose(1, 2).tanh() * 0.2 + self.centers
        places = offsets.gather(1, best[:, :, None].expand(-1, -1, 2))
        grid = places[:, :, None] + self.window
        regions = functional.grid_sample(features, grid, align_corners=False)
        regions = (regions.permute(0, 2, 1, 3) * scores[:, :, None, None]).flatten(2)
        return self.box(regions), self.label(regions)


class RegionDetector(nn.Module):
    """A class for each image, by the four regions of the best scores."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.score, self.label = nn.Conv2d(8, 1, 1), nn.Linear(4 * 8 * 4, CLASSES)
        y, x = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
        self.register_buffer("boxes", torch.stack([x - 1.3, y - 1.7, x + 2.2, y + 1.9], -1).reshape(64, 4))

    def forward(self, x):
        features = functional.silu(self.bn(self.conv(x)))  # which makes no equal scores
        scores, best = self.score(features).flatten(1).sigmoid().topk(4, 1)
        rois, images = self.boxes[best.flatten()], torch.arange(x.shape[0]).repeat_interleave(4)
        attributes = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
        if torch.onnx.is_in_onnx_export():
            shape = (rois.shape[0], 8, 2, 2)
            inputs, of_onnx = (features, rois, images), torch.onnx.ops.symbolic
            regions = of_onnx("RoiAlign", inputs, attributes, dtype=x.dtype, shape=shape, version=16)
        else:
            regions = roi_align(features, rois, images, **attributes)
        regions = regions.reshape(x.shape[0], 4, -1) * scores[:, :, None]
        return self.label(regions.flatten(1))


def detection_loss(outputs, boxes, labels):
    box, label = outputs
    return functional.smooth_l1_loss(box, boxes) + functional.cross_entropy(label.transpose(1, 2), labels)


class SelfAttention(nn.Module):
    """Attention by one product of queries, keys and values."""

    def __init__(self, width, heads, *, causal=False):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class MultiheadAttention(nn.MultiheadAttention):
    """PyTorch's layer, as attention of a sequence to itself."""

    def __init__(self, width, heads):
        super().__init__(width, heads, batch_first=True)

    def forward(self, x):
        return super().forward(x, x, x, need_weights=False)[0]


class TransformerBlock(nn.Module):
    """Attention and two dense layers, each after a layer norm."""

    def __init__(self, width, attention):
        super().__init__()
        self.ln1, self.ln2, self.attention = nn.LayerNorm(width), nn.LayerNorm(width), attention
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width))

    def forward(self, x):
        y = self.ln1(x)
        x = x + self.attention(y)
        return x + self.mlp(self.ln2(x))


class VisionTransformer(nn.Module):
    """Patches by convolutions with batch norms."""

    def __init__(self, attention):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 2, 2), nn.BatchNorm2d(16)
        )
        self.position = nn.Parameter(torch.randn(1, 16, 16) * 0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(16, attention(16, 2)) for _ in range(2)))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        y = self.stem(x).flatten(2).transpose(1, 2) + self.position
        return self.head(self.blocks(y).mean(1))


class SpatialTransformer(nn.Module):
    """A network that turns and moves its images before it classifies them."""

    def __init__(self):
        super().__init__()
        self.localization = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6)
        )
        self.classifier = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, CLASSES)
        )
        with torch.no_grad():
            self.localization[-1].weight.mul_(0.1)
            self.localization[-1].bias.copy_(torch.tensor([0.9, 0.1, 0.05, -0.1, 0.8, 0.02]))

    def forward(self, x):
        theta = self.localization(x).unflatten(1, (2, 3))
        grid = functional.affine_grid(theta, list(x.shape), align_corners=False)
        return self.classifier(functional.grid_sample(x, grid, align_corners=False))


class Audio(nn.Module):
    """Spectra of a filtered signal; its filter learns through them."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Conv1d(1, 1, 5, padding=2)
        self.bn = nn.BatchNorm1d(17)
        self.head = nn.Linear(17, CLASSES)
        self.register_buffer("window", torch.hann_window(32))

    def forward(self, x):
        signal = self.filter(x[:, None])[:, 0]
        spectra = torch.stft(signal, 32, 8, window=self.window, center=False, return_complex=True)
        energy = torch.view_as_real(spectra).square().sum(-1)
        return self.head(self.bn(torch.log(energy + 1)).relu().mean(2))


class LanguageModel(nn.Module):
    """GPT-2 of two layers; the embedding is the head as well."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(19, 16), nn.Embedding(8, 16)
        self.blocks = nn.Sequential(
            *(TransformerBlock(16, SelfAttention(16, 2, causal=True)) for _ in range(2)), nn.LayerNorm(16)
        )
        self.head = nn.Linear(16, 19, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        y = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(y)).transpose(1, 2)


class GraphNetwork(nn.Module):
    """Messages along edges, summed, averaged or maximized at the nodes."""

    def __init__(self, pool):
        super().__init__()
        self.pool = pool
        self.messages = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8)])
        self.own = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 8)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(8), nn.BatchNorm1d(8)])
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x, edges):
        for message, own, norm in zip(self.messages, self.own, self.norms, strict=True):
            x = functional.relu(norm(own(x) + self.pool(message(x)[edges[0]], edges[1], x.shape[0])))
        return self.head(x)


def scatter_add(messages, targets, nodes):
    zeros = messages.new_zeros(nodes, messages.shape[1])
    return zeros.scatter_add(0, targets[:, None].expand_as(messages), messages)


def index_add(messages, targets, nodes):
    return messages.new_zeros(nodes, messages.shape[1]).index_add(0, targets, messages)


def scatter_mean(messages, targets, nodes):
    zeros = messages.new_zeros(nodes, messages.shape[1])
    return zeros.scatter_reduce(0, targets[:, None].expand_as(messages), messages, "mean", include_self=False)


def scatter_max(messages, targets, nodes):
    zeros = messages.new_zeros(nodes, messages.shape[1])
    return zeros.scatter_reduce(0, targets[:, None].expand_as(messages), messages, "amax", include_self=False)


def ctc(outputs, labels):
    """PyTorch's CTC loss of outputs [N, classes, frames] and labels [N, frames]."""
    lengths = torch.full((outputs.shape[0],), 3)
    return functional.ctc_loss(outputs.permute(2, 0, 1).log_softmax(2), labels[:, :3], lengths * 3, lengths)
