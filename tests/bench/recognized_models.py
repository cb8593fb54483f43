"""Writes training graphs of PyTorch, JAX and Keras that have batch norm in primitives, with inputs.

    PYTHON tests/bench/recognized_models.py NAME FOLDER

writes NAME.onnx and NAME.npz for `bench_recognized_steps.py` and `bench_recognized_errors.py`. PYTHON is an
interpreter with what the network needs: torchvision and this package for resnet50 and mobilenet_v2; jax, flax and
jax2onnx for jax_resnet20; tensorflow, keras and tf2onnx for keras_mobilenet_v2. The variance of flax is
E[x^2] - E[x]^2.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).parents[2]
BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    sys.path[:0] = [str(ROOT), str(ROOT / "tests/passes/decomposed")]
    NETWORKS[options.network](options.network, options.folder)


def torchvision_network(name: str, folder: Path) -> None:
    """The joint graph of PyTorch's autograd, images of 128x128."""
    import torch
    import torchvision

    import bngrad.torch

    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None).train()
    for layer in module.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    example = torch.randn(BATCH, 3, 128, 128), torch.arange(BATCH)
    loss = torch.nn.CrossEntropyLoss()
    onnx.save(
        bngrad.torch.import_joint(module, loss, example, check=False, recognize=False), folder / f"{name}.onnx"
    )
    np.savez(folder / f"{name}.npz", x=example[0].numpy(), target=example[1].numpy())


def jax_resnet20(name: str, folder: Path) -> None:
    """`jax.value_and_grad` of a flax ResNet-20, 32 images of 32x32, NHWC."""
    import jax_graphs
    from flax import nnx

    rngs = nnx.Rngs(0)

    class Convolution(nnx.Module):
        """A convolution with batch norm."""

        def __init__(self, channels: int, features: int, size: int, stride: int) -> None:
            self.conv = nnx.Conv(channels, features, (size, size), strides=stride, use_bias=False, rngs=rngs)
            self.norm = nnx.BatchNorm(features, rngs=rngs)

        def __call__(self, x):
            return self.norm(self.conv(x))

    class Block(nnx.Module):
        def __init__(self, channels: int, features: int, stride: int) -> None:
            self.first = Convolution(channels, features, 3, stride)
            self.second = Convolution(features, features, 3, 1)
            self.shortcut = nnx.data(None if channels == features else Convolution(channels, features, 1, stride))

        def __call__(self, x):
            y = self.second(nnx.relu(self.first(x)))
            return nnx.relu(y + (x if self.shortcut is None else self.shortcut(x)))

    class ResNet20(nnx.Module):
        def __init__(self) -> None:
            self.stem = Convolution(3, 16, 3, 1)
            sizes = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
            pairs = itertools.pairwise(sizes)
            self.blocks = nnx.List([Block(i, o, 1 if i == o else 2) for i, o in pairs])
            self.head = nnx.Linear(64, 10, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.stem(x))
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean((1, 2)))

    jax_graphs.flax_nnx(name, ResNet20(), jax_graphs.rng_arrays(0, x=(32, 32, 32, 3), t=(32, 10)))
    jax_graphs.write(name, folder)


def keras_mobilenet_v2(name: str, folder: Path) -> None:
    """A GradientTape of Keras's MobileNetV2 by tf2onnx, images of 64x64, NHWC."""
    import keras_graphs

    def build(shape):
        options = {"alpha": 0.35, "weights": None, "classes": 10, "classifier_activation": None}
        return keras_graphs.keras.applications.MobileNetV2(shape, **options)

    keras_graphs.add_keras(name, build, keras_graphs.arrays(0, x=(BATCH, 64, 64, 3), t=(BATCH, 10)))
    keras_graphs.write(f"{name}_step", folder)


NETWORKS = {
    "resnet50": torchvision_network,
    "mobilenet_v2": torchvision_network,
    "jax_resnet20": jax_resnet20,
    "keras_mobilenet_v2": keras_mobilenet_v2,
}

if __name__ == "__main__":
    main()
