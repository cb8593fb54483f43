"""The data of the networks that are trained in JAX and in ONNX Runtime."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

STEPS, BATCH, RATE, MOMENTUM = 3, 32, 0.1, 0.9


def batches():
    """The images [N, 8, 8, 1] and labels of each step, and of the evaluation."""
    digits = load_digits()
    images, labels = digits.images[..., None].astype(np.float32) / 16, digits.target
    return [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, (STEPS + 1) * BATCH, BATCH)]
