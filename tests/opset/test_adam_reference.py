"""The float64 reference of AdamUpdate against the algorithms of the papers, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.errors import InputError
from bngrad.opset import reference

BETA1, BETA2, EPS, RATE = 0.9, 0.99, 1e-3, 0.05


def algorithm(w, gradients, decay, *, decoupled):
    """Kingma and Ba, algorithm 1, with an L2 penalty; or Loshchilov and Hutter, algorithm 2."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, gradient in enumerate(gradients, 1):
        g = gradient if decoupled else gradient + decay * w
        m = BETA1 * m + (1 - BETA1) * g
        v = BETA2 * v + (1 - BETA2) * g**2
        m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
        w = w - RATE * (m_hat / (np.sqrt(v_hat) + EPS) + (decay * w if decoupled else 0))
    return w, m, v


@pytest.mark.parametrize("decay", [0.0, 0.2])
@pytest.mark.parametrize("decoupled", [False, True], ids=["adam", "adamw"])
def test_twenty_steps_are_those_of_the_papers(decay, decoupled, rng):
    w, gradients = rng.standard_normal((3, 4)), rng.standard_normal((20, 3, 4))
    want = algorithm(w, gradients, decay, decoupled=decoupled)
    state = (w, np.zeros_like(w), np.zeros_like(w))
    for t, gradient in enumerate(gradients, 1):
        l2_penalty, factor = (0, 1 - RATE * decay) if decoupled else (decay, 1)
        step_size, root = RATE / (1 - BETA1**t), np.sqrt(1 - BETA2**t)
        # The gradient comes scaled, as one that has to be clipped.
        coefficients = [0.25, l2_penalty, factor, 1 - BETA1, BETA2, 1 - BETA2, step_size, root, EPS]
        state = reference.adam_update(state[0], 4 * gradient, *state[1:], coefficients)
    for actual, other in zip(state, want, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("gradient", (3,), "gradient has shape [3]; expected [2, 3], the shape of weight"),
        ("exp_avg", (), "exp_avg has shape []; expected [2, 3], the shape of weight"),
        ("exp_avg_sq", (2, 3, 1), "exp_avg_sq has shape [2, 3, 1]; expected [2, 3], the shape of weight"),
        ("coefficients", (8,), "coefficients has shape [8]; expected [9]"),
    ],
)
def test_wrong_shapes(name, shape, message):
    arguments = dict.fromkeys(("weight", "gradient", "exp_avg", "exp_avg_sq"), np.ones((2, 3)))
    with pytest.raises(InputError) as error:
        reference.adam_update(**arguments | {"coefficients": np.ones(9)} | {name: np.ones(shape)})
    assert str(error.value) == message
