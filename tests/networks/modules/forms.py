"""One small network with each form of batch norm that torch has."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations

from networks.modules.images import cifar_resnet20, image


def _network(**options) -> nn.Sequential:
    """Three convolutions with batch norm; ``options`` go to each batch norm."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, 8), (8, 16), (16, 16)):
        layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs, **options), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


def sync_batch_norm():
    return nn.SyncBatchNorm.convert_sync_batchnorm(_network()), image()


def momentum_none():
    return _network(momentum=None), image()


def momentum_zero():
    return _network(momentum=0.0), image()


def not_affine():
    return _network(affine=False), image()


def no_running_statistics():
    return _network(track_running_stats=False), image()


def weight_norm():
    network = _network()
    for index in (0, 3, 6, 11):
        parametrizations.weight_norm(network[index])
    return network, image()


def spectral_norm():
    network = _network()
    for index in (0, 3, 6, 11):
        parametrizations.spectral_norm(network[index])
    return network, image()


def _moved(network: nn.Module) -> nn.Module:
    """Sets running statistics that differ from a new network's, so that frozen batch norms differ from others."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.5, 2.0)
    return network


def frozen():
    """All batch norms use their running statistics; their weights are trained."""
    network = _moved(cifar_resnet20()[0]).train()
    return _set_modes(network, lambda _index: False), image()


def partly_frozen():
    """Every second batch norm is frozen, its weights too."""
    network = _moved(cifar_resnet20()[0]).train()
    return _set_modes(network, lambda index: index % 2 == 0), image()


def _set_modes(network: nn.Module, trains) -> nn.Module:
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for index, norm in enumerate(norms):
        norm.train(trains(index))
        norm.requires_grad_(trains(index) or index == 1)
    return network


def untrained_stem():
    """The first convolution and batch norm have no gradient, but the batch norm updates its statistics."""
    network = _network()
    network[:3].requires_grad_(requires_grad=False)
    return network, image()


class Autoencoder(nn.Module):
    """The decoder has the weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm = nn.Linear(20, 12), nn.BatchNorm1d(12)
        self.decoder = nn.Linear(12, 12, bias=False)
        self.again = nn.Linear(12, 12, bias=False)
        self.again.weight = self.decoder.weight
        self.bias = nn.Parameter(torch.zeros(20))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.encoder(x)))
        y = self.again(torch.relu(self.decoder(y)))
        return y @ self.encoder.weight + self.bias


def tied_weights():
    return Autoencoder(), torch.randn(16, 20)
