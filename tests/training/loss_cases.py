"""The loss functions in float64, and the cases of each: a new one has its reference and cases here."""

from __future__ import annotations

import numpy as np


def cross_entropy(x, labels, options):
    """The loss in float64, and its gradient, sample by sample as PyTorch documents it."""
    classes = x.shape[1]
    w = np.asarray(options.get("weight", np.ones(classes)), np.float64)
    smoothing, ignored = options.get("label_smoothing", 0.0), options.get("ignore_index", -100)
    rows = np.moveaxis(x.astype(np.float64), 1, -1).reshape(-1, classes)
    shifted = rows - rows.max(1, keepdims=True)
    log_prob = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss, total, gradient = 0.0, 0.0, np.zeros_like(rows)
    for i, label in enumerate(labels.reshape(-1)):
        if label == ignored:
            continue
        target = smoothing / classes * w
        target[label] += (1 - smoothing) * w[label]
        loss -= target @ log_prob[i]
        gradient[i] = target.sum() * np.exp(log_prob[i]) - target
        total += w[label]
    if options.get("reduction", "mean") == "mean":
        with np.errstate(invalid="ignore"):
            loss, gradient = np.float64(loss) / total, gradient / (total or 1)
    return loss, np.moveaxis(gradient.reshape(*np.moveaxis(x, 1, -1).shape), -1, 1)


def mse(x, target):
    return (x - target) ** 2, 2 * (x - target)


def l1(x, target):
    return np.abs(x - target), np.sign(x - target)


def huber(x, target, delta=1.0):
    error = x - target
    losses = np.where(np.abs(error) < delta, error**2 / 2, delta * (np.abs(error) - delta / 2))
    return losses, np.clip(error, -delta, delta)


def bce_with_logits(x, target, weight=1.0, pos_weight=1.0):
    w, positive = np.asarray(weight, np.float64), np.asarray(pos_weight, np.float64)
    rest = np.log1p(np.exp(-np.abs(x)))
    sigmoid, complement = (np.exp(-np.logaddexp(0, sign * x)) for sign in (-1, 1))
    losses = w * ((1 - target) * (np.maximum(x, 0) + rest) + positive * target * (np.maximum(-x, 0) + rest))
    return losses, w * ((1 - target) * sigmoid - positive * target * complement)


def sigmoid_focal(x, target, alpha=0.25, gamma=2.0):
    bce, slope = bce_with_logits(x, target)
    p, q = (np.exp(-np.logaddexp(0, sign * x)) for sign in (-1, 1))
    alpha_t = 1 if alpha == -1 else alpha * target + (1 - alpha) * (1 - target)
    far = q * target + p * (1 - target)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = np.where(far > 0, gamma * far ** (gamma - 1) * p * q * (1 - 2 * target), 0)
    return alpha_t * far**gamma * bce, alpha_t * (far**gamma * slope + inner * bce)


ELEMENTWISE = {
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "bce_with_logits": bce_with_logits,
    "sigmoid_focal": sigmoid_focal,
}
"""The losses of the elements in float64, and the gradient of each."""


def reference(name, x, target, options):
    """A loss in float64, and its gradient."""
    if name == "cross_entropy":
        return cross_entropy(x, target, options)
    own = {option: value for option, value in options.items() if option != "reduction"}
    losses, gradient = ELEMENTWISE[name](x.astype(np.float64), target.astype(np.float64), **own)
    count = x.size if options.get("reduction", "mean") == "mean" else 1
    return losses.sum() / count, gradient / count


WEIGHT = [0.5, 2.0, 1.0, 0.0, 3.0]
CASES = {
    "cross_entropy": [
        {},
        {"reduction": "sum"},
        {"weight": WEIGHT},
        {"weight": WEIGHT, "reduction": "sum"},
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.3, "reduction": "sum"},
        {"label_smoothing": 0.1, "weight": WEIGHT},
        {"label_smoothing": 0.1, "weight": WEIGHT, "reduction": "sum"},
        {"label_smoothing": 1.0},
        {"ignore_index": 2},
        {"ignore_index": 2, "label_smoothing": 0.2, "weight": WEIGHT},
        {"ignore_index": 255},
        {"ignore_index": -1, "label_smoothing": 0.2},
    ],
    "mse": [{}, {"reduction": "sum"}],
    "l1": [{}, {"reduction": "sum"}],
    "huber": [{}, {"reduction": "sum"}, {"delta": 0.3}, {"delta": 2000.0}],
    "bce_with_logits": [
        {},
        {"reduction": "sum"},
        {"pos_weight": [3.0, 1.0, 0.5, 0.0]},
        {"pos_weight": 2.5, "reduction": "sum"},
        {"weight": [3.0, 1.0, 0.5, 0.0], "pos_weight": 2.0},
    ],
    "sigmoid_focal": [
        {},
        {"reduction": "sum"},
        {"alpha": -1, "gamma": 1.5},
        {"alpha": 0.9, "gamma": 0},
        {"gamma": 0.5, "reduction": "sum"},
        {"gamma": 5},
    ],
}
"""Options of each loss function; those by element are for predictions with a last dimension of 4."""


def case_id(case):
    name, options = case
    return ", ".join([name, *(f"{option} {value}" for option, value in options.items())])


def cases_of(*names):
    return [(name, options) for name in names for options in CASES[name]]
