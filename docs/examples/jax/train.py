# ruff: noqa: T201 - a script
"""Trains a flax.nnx model on scikit-learn's digits in ONNX Runtime, and evaluates it in JAX.

    python docs/examples/jax/train.py
    python docs/examples/jax/train.py --steps 3 --json

With --json it prints the losses, the state and the logits, also of the same steps in JAX, without Dropout.
"""

from __future__ import annotations

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from nnx_onnx import export, load_into, variables
from sklearn.datasets import load_digits

import bngrad

BATCH = 64
RATE = 0.1


class Net(nnx.Module):
    """Two convolutions, each with a batch norm, and a linear classifier."""

    def __init__(self, dropout: float, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (3, 3), use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)
        self.linear = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits [N, 10] of images [N, 8, 8, 1]."""
        x = nnx.relu(self.bn1(self.conv1(images)))
        x = nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = nnx.relu(self.bn2(self.conv2(x)))
        return self.linear(self.dropout(x.mean(axis=(1, 2))))


def train(net: Net, batches: list[tuple[np.ndarray, np.ndarray]]) -> tuple[list[float], bngrad.Trainer]:
    """Trains a network in ONNX Runtime, and loads its state."""
    model = export(net, outputs=["logits"], images=jax.ShapeDtypeStruct(("N", 8, 8, 1), jnp.float32))
    step = bngrad.training_step(model, loss_fn="cross_entropy", optimizer=bngrad.SGD(momentum=0.9))
    trainer = bngrad.Trainer(step, learning_rate=RATE)
    losses = [trainer.step(images=images, labels=labels) for images, labels in batches]
    load_into(net, trainer.state_dict())
    return losses, trainer


def train_in_jax(net: Net, batches: list[tuple[np.ndarray, np.ndarray]]) -> list[float]:
    """Trains a network with the same optimizer in JAX."""
    optimizer = nnx.Optimizer(net, optax.sgd(RATE, momentum=0.9), wrt=nnx.Param)

    @nnx.jit
    def step(net: Net, optimizer: nnx.Optimizer, images: jax.Array, labels: jax.Array) -> jax.Array:
        def loss_of(net: Net) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(net(images), labels).mean()

        loss, gradients = nnx.value_and_grad(loss_of)(net)
        optimizer.update(net, gradients)
        return loss

    return [float(step(net, optimizer, images, labels)) for images, labels in batches]


def main() -> None:
    """Trains, and prints the accuracy in JAX or all numbers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    digits = load_digits()
    images, labels = digits.images[..., None].astype(np.float32) / 16, digits.target
    rows = [np.arange(step * BATCH, step * BATCH + BATCH) % 1437 for step in range(args.steps)]
    batches = [(images[indices], labels[indices]) for indices in rows]  # the last 360 images are for the test
    net = Net(0.0 if args.json else 0.1, nnx.Rngs(0))
    reference = nnx.clone(net)
    losses, trainer = train(net, batches)
    net.eval()
    logits = np.asarray(net(images[1437:]))
    accuracy = float(np.mean(logits.argmax(axis=1) == labels[1437:]))
    if not args.json:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, accuracy in JAX {accuracy:.3f}")
        return
    result = {
        "losses": losses,
        "state": {name: variable[...].tolist() for name, variable in variables(net).items()},
        "logits": logits.tolist(),
        "logits_in_onnxruntime": trainer.evaluate(images=images[1437:], labels=labels[1437:])["logits"].tolist(),
        "losses_in_jax": train_in_jax(reference, batches),
        "state_in_jax": {name: variable[...].tolist() for name, variable in variables(reference).items()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
