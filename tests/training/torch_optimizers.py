"""Trains a small network with PyTorch, and writes the weights after 100 updates to torch_optimizers.json.

``python tests/training/torch_optimizers.py`` needs PyTorch; the tests need the file alone. Every case is trained
in float and in double, with a learning rate that differs from call to call.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_suffix(".json")
UPDATES = 100
CASES = {
    "sgd": {"optimizer": "sgd"},
    "sgd with weight decay": {"optimizer": "sgd", "weight_decay": 0.1},
    "momentum": {"optimizer": "sgd", "momentum": 0.9},
    "momentum and weight decay": {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"optimizer": "sgd", "momentum": 0.8, "nesterov": True, "weight_decay": 0.01},
    "adam": {"optimizer": "adam"},
    "adam with weight decay": {"optimizer": "adam", "weight_decay": 0.1, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6},
    "adamw": {"optimizer": "adamw"},
    "adamw with weight decay": {"optimizer": "adamw", "weight_decay": 0.3, "beta1": 0.5},
    "clipped": {"optimizer": "sgd", "momentum": 0.9, "clip_norm": 0.05},
    "adamw, clipped": {"optimizer": "adamw", "clip_norm": 0.01},
    "accumulated": {"optimizer": "sgd", "momentum": 0.9, "accumulate": 4},
    "adamw, accumulated and clipped": {"optimizer": "adamw", "accumulate": 3, "clip_norm": 0.05},
    "groups": {"optimizer": "adamw", "weight_decay": 0.2, "no_decay_1d": True, "scales": {"w2": 0.1}},
    "sgd groups": {
        "optimizer": "sgd",
        "momentum": 0.9,
        "weight_decay": 0.1,
        "no_decay_1d": True,
        "scales": {"b*": 3.0},
    },
    "lion": {"optimizer": "lion"},
    "lion with weight decay": {"optimizer": "lion", "weight_decay": 0.5, "beta1": 0.8, "beta2": 0.95},
    "lion groups": {
        "optimizer": "lion",
        "weight_decay": 0.5,
        "no_decay_1d": True,
        "scales": {"w2": 0.1},
        "accumulate": 2,
        "clip_norm": 0.05,
    },
    "rmsprop": {"optimizer": "rmsprop"},
    "rmsprop, centered": {"optimizer": "rmsprop", "centered": True, "alpha": 0.9, "eps": 1e-3},
    "rmsprop with momentum": {"optimizer": "rmsprop", "momentum": 0.8, "weight_decay": 0.1, "clip_norm": 0.05},
    "rmsprop groups": {
        "optimizer": "rmsprop",
        "momentum": 0.5,
        "centered": True,
        "eps": 1e-2,
        "weight_decay": 0.1,
        "no_decay_1d": True,
        "scales": {"w2": 0.1},
        "accumulate": 2,
    },
}


def initial_weights(dtype) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"w1": (3, 5), "b1": (5,), "w2": (5, 2), "b2": (2,)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def batch(call: int, dtype) -> tuple[np.ndarray, np.ndarray, float]:
    """The data, the targets and the learning rate of a call."""
    rng = np.random.default_rng(call + 1)
    rate = float(np.float32(0.02 * (1 + call % 7)))
    return rng.standard_normal((8, 3)).astype(dtype), rng.standard_normal((8, 2)).astype(dtype), rate


def train_in_torch(case: dict, dtype: str) -> dict[str, list]:
    import torch

    weights = {name: torch.tensor(w, requires_grad=True) for name, w in initial_weights(dtype).items()}
    optimizer = _optimizer(torch, case, weights)
    scales = [group.get("scale", 1.0) for group in optimizer.param_groups]
    accumulate = case.get("accumulate", 1)
    for call in range(UPDATES * accumulate):
        x, target, rate = batch(call, dtype)
        hidden = torch.tanh(torch.from_numpy(x) @ weights["w1"] + weights["b1"])
        prediction = hidden @ weights["w2"] + weights["b2"]
        (((prediction - torch.from_numpy(target)) ** 2).mean() / accumulate).backward()
        if (call + 1) % accumulate == 0:
            for group, scale in zip(optimizer.param_groups, scales, strict=True):
                group["lr"] = rate * scale
            if "clip_norm" in case:
                torch.nn.utils.clip_grad_norm_(weights.values(), case["clip_norm"])
            optimizer.step()
            optimizer.zero_grad()
    return {name: weight.tolist() for name, weight in weights.items()}


def _lion(torch):
    """Lion as its paper has it; PyTorch has none."""

    class Lion(torch.optim.Optimizer):
        def __init__(self, params, lr, betas=(0.9, 0.99), weight_decay=0.0):
            super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                beta1, beta2 = group["betas"]
                for w in group["params"]:
                    m = self.state[w].setdefault("m", torch.zeros_like(w))
                    update = torch.sign(beta1 * m + (1 - beta1) * w.grad) + group["weight_decay"] * w
                    w.sub_(group["lr"] * update)
                    m.copy_(beta2 * m + (1 - beta2) * w.grad)

    return Lion


def _optimizer(torch, case: dict, weights: dict):
    optim = torch.optim
    names = ("momentum", "nesterov", "weight_decay", "eps", "alpha", "centered")
    options = {k: v for k, v in case.items() if k in names}
    kinds = {"sgd": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW, "rmsprop": optim.RMSprop}
    kind = {**kinds, "lion": _lion(torch)}[case["optimizer"]]
    if case["optimizer"] in ("adam", "adamw", "lion"):
        beta2 = 0.99 if case["optimizer"] == "lion" else 0.999
        options["betas"] = (case.get("beta1", 0.9), case.get("beta2", beta2))
    groups = []
    for name, weight in weights.items():
        group = {"params": [weight]}
        if case.get("no_decay_1d") and weight.ndim == 1:
            group["weight_decay"] = 0.0
        for pattern, scale in case.get("scales", {}).items():
            if name.startswith(pattern.rstrip("*")):
                group["scale"] = scale
        groups.append(group)
    return kind(groups, lr=1.0, **options)


if __name__ == "__main__":
    trained = {
        name: {dtype: train_in_torch(case, dtype) for dtype in ("float32", "float64")}
        for name, case in CASES.items()
    }
    FILE.write_text(json.dumps(trained, indent=1) + "\n", encoding="utf-8")
