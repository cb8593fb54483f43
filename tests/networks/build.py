"""Builds the module, the loss and the example of a row; runs where torch, torchvision and timm are installed."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import TYPE_CHECKING

import torch

from networks.losses import LOSSES, targets

if TYPE_CHECKING:
    from collections.abc import Callable

    from networks.rows import Network

CLASSES = 10


def build(network: Network, seed: int = 0) -> tuple[torch.nn.Module, Callable, tuple]:
    """Returns the module in training mode, its loss function, and the example ``(inputs, *targets)``."""
    torch.manual_seed(seed)
    module, inputs = MAKERS[network.source](network)
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    with torch.no_grad(), torch.random.fork_rng():
        outputs = copy.deepcopy(module)(*arguments)
    return module, LOSSES[network.loss], (inputs, *targets(network.loss, outputs))


def _of_torchvision(network: Network):
    import torchvision

    options = {"weights": None, "num_classes": CLASSES} | network.options
    module = torchvision.models.get_model(network.name, **options)
    return module.train(), torch.randn(network.batch, *network.size)


def _of_timm(network: Network):
    import timm

    timm.layers.set_exportable(True)  # activations without a backward pass of their own
    options = {"num_classes": CLASSES} | network.options
    module = timm.create_model(network.name, pretrained=False, **options)
    return module.train(), torch.randn(network.batch, *network.size)


def _of_modules(network: Network):
    for part in ("images", "sequences", "passes", "forms", "detection"):
        functions = vars(import_module(f"networks.modules.{part}"))
        if network.name in functions:
            module, inputs = functions[network.name]()
            return (module if "frozen" in network.name else module.train()), inputs
    raise ValueError(f"no function {network.name} in tests/networks/modules")


MAKERS = {"torchvision": _of_torchvision, "timm": _of_timm, "modules": _of_modules}


def without_dropout(module: torch.nn.Module) -> None:
    """Sets the probabilities of dropout and stochastic depth to 0."""
    for part in module.modules():
        for name in ("p", "drop_prob", "drop_rate", "dropout", "attention_dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
