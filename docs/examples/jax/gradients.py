# ruff: noqa: T201 - a script
"""Exports a training step of flax and optax, recognizes its batch norms, and runs it in ONNX Runtime.

    python docs/examples/jax/gradients.py
    python docs/examples/jax/gradients.py --steps 3 --json

With --json it prints the losses in ONNX Runtime and in JAX.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from gradients_onnx import export
from sklearn.datasets import load_digits

import bngrad

BATCH = 64
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


class Net(nnx.Module):
    """Two convolutions, each with a batch norm, and a linear classifier."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.conv1 = nnx.Conv(1, 16, (3, 3), use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)
        self.conv2 = nnx.Conv(16, 32, (3, 3), strides=2, use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(32, momentum=0.9, rngs=rngs)
        self.linear = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits [N, 10] of images [N, 8, 8, 1]."""
        x = nnx.relu(self.bn1(self.conv1(images)))
        x = nnx.relu(self.bn2(self.conv2(x)))
        return self.linear(x.mean(axis=(1, 2)))


GRAPH, PARAMS, STATS = nnx.split(Net(nnx.Rngs(0)), nnx.Param, nnx.BatchStat)


def loss_and_stats(params: Any, stats: Any, data: Any) -> tuple[jax.Array, Any]:  # noqa: ANN401 - nested dicts
    """Returns the loss of a batch, and the running statistics after it."""
    nnx.replace_by_pure_dict(PARAMS, params)
    nnx.replace_by_pure_dict(STATS, stats)
    net = nnx.merge(GRAPH, PARAMS, STATS)
    loss = optax.softmax_cross_entropy(net(data["images"]), jax.nn.one_hot(data["labels"], 10)).mean()
    return loss, nnx.to_pure_dict(nnx.state(net, nnx.BatchStat))


def step(state: Any, data: Any) -> dict[str, Any]:  # noqa: ANN401
    """Returns the loss of a batch, and the parameters, running statistics and momentum after it."""
    (loss, stats), grad = jax.value_and_grad(loss_and_stats, has_aux=True)(state["params"], state["stats"], data)
    updates, (trace, *_) = OPTIMIZER.update(grad, (optax.TraceState(state["trace"]), optax.EmptyState()))
    params = optax.apply_updates(state["params"], updates)
    return {"loss": loss, "new": {"params": params, "stats": stats, "trace": trace.trace}}


def main() -> None:
    """Trains, and prints the losses."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    params, stats = nnx.to_pure_dict(PARAMS), nnx.to_pure_dict(STATS)
    state = {"params": params, "stats": stats, "trace": jax.tree.map(jnp.zeros_like, params)}
    (n,) = jax.export.symbolic_shape("N")
    data = {
        "images": jax.ShapeDtypeStruct((n, 8, 8, 1), jnp.float32),
        "labels": jax.ShapeDtypeStruct((n,), jnp.int32),
    }
    model = bngrad.rewrite(export(step, state, data))
    session = bngrad.session(model)

    digits = load_digits()
    images, labels = digits.images[..., None].astype(np.float32) / 16, digits.target.astype(np.int32)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    values = {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}
    names = [output.name for output in session.get_outputs()]
    losses, losses_in_jax = [], []
    for number in range(args.steps):
        rows = np.arange(number * BATCH, number * BATCH + BATCH) % len(images)
        batch = {"images": images[rows], "labels": labels[rows]}
        feeds = {value.name: (values | batch)[value.name] for value in session.get_inputs()}
        results = dict(zip(names, session.run(names, feeds), strict=True))
        losses.append(float(results.pop("loss")))
        values = {name.removeprefix("new."): value for name, value in results.items()}
        if args.json:
            in_jax = jax.jit(step)(state, batch)
            losses_in_jax.append(float(in_jax["loss"]))
            state = in_jax["new"]
    if args.json:
        ops = [node.op_type for node in model.graph.node if node.domain == "bngrad"]
        print(json.dumps({"losses": losses, "losses_in_jax": losses_in_jax, "ops": ops}))
    else:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
