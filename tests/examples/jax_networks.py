"""Networks in flax.nnx, trained in JAX, and their ONNX models by docs/examples/jax/nnx_onnx.py.

``python tests/examples/jax_networks.py`` writes jax_networks.json: for each network its model in protobuf's JSON,
the losses, the trained state and the logits in inference mode. Only tests that export need JAX.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from google.protobuf import json_format

ROOT = Path(__file__).parents[2]
FILE = Path(__file__).with_suffix(".json")

sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "docs" / "examples" / "jax")]

from nnx_onnx import export, variables  # noqa: E402

from examples.jax_batches import MOMENTUM, RATE, batches  # noqa: E402 - they are no packages


def batch_norm(features, rngs, **options):
    return nnx.BatchNorm(features, momentum=0.9, rngs=rngs, **options)


class Dense(nnx.Module):
    """A multilayer perceptron; flax's default momentum, 0.99."""

    def __init__(self, rngs):
        self.hidden = nnx.Linear(64, 8, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.out = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.gelu(self.norm(self.hidden(x.reshape(x.shape[0], -1)))))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(4, 8, (3, 3), strides=2, use_bias=False, rngs=rngs)
        self.norm1 = batch_norm(8, rngs)
        self.conv2 = nnx.Conv(8, 8, (3, 3), use_bias=False, rngs=rngs)
        self.norm2 = batch_norm(8, rngs)
        self.down = nnx.Sequential(
            nnx.Conv(4, 8, (1, 1), strides=2, use_bias=False, rngs=rngs), batch_norm(8, rngs)
        )

    def __call__(self, x):
        return nnx.relu(self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x))))) + self.down(x))


class Residual(nnx.Module):
    """jax2onnx states shapes of another layout between the two convolutions of the block."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = batch_norm(4, rngs)
        self.blocks = nnx.List([Block(rngs)])
        self.out = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        x = nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean(axis=(1, 2)))


class Depthwise(nnx.Module):
    """A separable convolution whose batch norms have no bias, no scale, or neither."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm0 = batch_norm(4, rngs, use_bias=False)
        self.depthwise = nnx.Conv(4, 4, (3, 3), feature_group_count=4, padding="VALID", use_bias=False, rngs=rngs)
        self.norm1 = batch_norm(4, rngs, use_scale=False)
        self.pointwise = nnx.Conv(4, 8, (1, 1), use_bias=False, rngs=rngs)
        self.norm2 = batch_norm(8, rngs, use_scale=False, use_bias=False)
        self.layer_norm = nnx.LayerNorm(8, rngs=rngs)
        self.out = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu6(self.norm0(self.stem(x)))
        x = nnx.silu(self.norm1(self.depthwise(x)))
        x = nnx.avg_pool(nnx.hard_swish(self.norm2(self.pointwise(x))), window_shape=(2, 2), strides=(2, 2))
        return self.out(self.layer_norm(x).mean(axis=(1, 2)))


class Twice(nnx.Module):
    """A module that is called twice, and a frozen batch norm."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 4, (3, 3), use_bias=False, rngs=rngs)
        self.frozen = batch_norm(4, rngs, use_running_average=True)
        self.frozen.mean[...], self.frozen.var[...] = jnp.linspace(-0.1, 0.2, 4), jnp.linspace(0.5, 2, 4)
        self.conv = nnx.Conv(4, 4, (3, 3), use_bias=False, rngs=rngs)
        self.norm = batch_norm(4, rngs)
        self.out = nnx.Linear(4, 10, rngs=rngs)

    def __call__(self, x):
        x = self.frozen(self.stem(x))
        for _ in range(2):
            x = nnx.relu(self.norm(self.conv(x)))
        return self.out(x.mean(axis=(1, 2)))


class Loss(nnx.Module):
    """A model that returns its loss, of integer labels."""

    def __init__(self, rngs):
        self.net = Dense(rngs)

    def __call__(self, x, labels):
        logits = self.net(x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits


NETWORKS = {"dense": Dense, "residual": Residual, "depthwise": Depthwise, "twice": Twice, "loss": Loss}


def model_of(network, **options):
    """The ONNX model of a network."""
    inputs = {"images": jax.ShapeDtypeStruct(("N", 8, 8, 1), jnp.float32)}
    if isinstance(network, Loss):
        inputs["labels"] = jax.ShapeDtypeStruct(("N",), jnp.int32)
    return export(network, outputs=["loss", "logits"][-len(inputs) :], **inputs, **options)


def train(network):
    """Trains a network in JAX, and returns the losses, the state and the logits in inference mode."""
    optimizer = nnx.Optimizer(network, optax.sgd(RATE, momentum=MOMENTUM), wrt=nnx.Param)

    @nnx.jit
    def step(network, optimizer, images, labels):
        def loss_of(network):
            if isinstance(network, Loss):
                return network(images, labels)[0]
            return optax.softmax_cross_entropy_with_integer_labels(network(images), labels).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(network)
        optimizer.update(network, gradients)
        return loss

    *training, (images, labels) = batches()
    losses = [float(step(network, optimizer, *batch)) for batch in training]
    network.eval()
    logits = network(images, labels)[1] if isinstance(network, Loss) else network(images)
    state = {name: np.asarray(variable[...]) for name, variable in variables(network).items()}
    return {"losses": losses, "state": state, "logits": np.asarray(logits)}


def numbers(array):
    """An array for the file, in as many digits as tell float32 numbers apart."""
    return [numbers(row) for row in array] if np.ndim(array) else float(f"{array:.9g}")


def record(network):
    """The record of a network in the file."""
    model = json_format.MessageToDict(model_of(network))
    trained = train(network)
    state = {name: numbers(array) for name, array in trained["state"].items()}
    return {"model": model, "losses": trained["losses"], "state": state, "logits": numbers(trained["logits"])}


def main():
    lines = [f"{json.dumps(name)}: {json.dumps(record(make(nnx.Rngs(0))))}" for name, make in NETWORKS.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
