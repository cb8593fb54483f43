"""Errors of a training graph that have to be found, and chance that must not be taken for one."""

from __future__ import annotations

import numpy as np
import pytest

from bngrad.validation.float32_error import LIMIT, Results, float32_error
from bngrad.validation.report import Check

SIZE = 50


def exact(state):
    """A loss, and gradients; that of the bias in front of a batch norm is 0."""
    step, seed = state
    rng = np.random.default_rng(100 * step + seed)
    values = {"loss": rng.standard_normal(), "w_grad": rng.standard_normal(SIZE), "b_grad": np.zeros(SIZE)}
    return values | {"small_grad": 1e-3 * rng.standard_normal(2), "mean_new": rng.standard_normal(4)}


def rounded(values, seed):
    """As a program in float32 computes it."""
    rng = np.random.default_rng(seed)
    noisy = {name: value * (1 + 2.0**-22 * rng.standard_normal(np.shape(value))) for name, value in values.items()}
    noisy["b_grad"] = 1e-8 * rng.standard_normal(SIZE)
    return {name: np.asarray(value, np.float32) for name, value in noisy.items()}


def check(change, steps=3):
    """The check of a graph whose results are changed by ``change(results, step, seed)``."""
    result, runs = Check("test", unit="", limit=LIMIT), []

    def run(state):
        runs.append(state)
        want = {name: np.asarray(value) for name, value in exact(state).items()}
        got, own = rounded(want, 2 * len(runs)), rounded(want, 2 * len(runs) + 1)
        change(got, *state)
        return Results(got, own, want)

    float32_error(
        result,
        run,
        (0, 0),
        steps=steps,
        following=lambda state, _results: (state[0] + 1, 0),
        varied=lambda state, seed: (state[0], seed + 1),
        kind_of=lambda name: {"loss": "loss", "mean_new": "buffer"}.get(name, "gradient"),
        implementation="graph",
        against="program",
    )
    return result, runs


def one_percent(name, when=lambda _step, _seed: True):
    def change(got, step, seed):
        if when(step, seed):
            got[name] = got[name] * np.float32(1.01)

    return change


RIGHT = {
    "rounding": lambda *_: None,
    "a-kink-in-a-step": one_percent("w_grad", lambda step, seed: (step, seed) == (1, 0)),
    "kinks-in-all-steps": one_percent("w_grad", lambda _step, seed: seed < 2),
    "kinks-that-alternate": lambda got, _step, seed: one_percent(("w_grad", "mean_new")[seed % 2])(got, 0, 0),
}
WRONG = {
    "everywhere": (one_percent("w_grad"), ["w_grad"]),
    "in-a-small-tensor": (one_percent("small_grad"), ["small_grad"]),
    "in-the-second-step": (one_percent("loss", lambda step, _seed: step == 1), ["loss"]),
    "in-a-buffer": (one_percent("mean_new"), ["mean_new"]),
    "not-a-number": (lambda got, *_: got["w_grad"].fill(np.nan), ["w_grad"]),
    "not-zero": (lambda got, *_: got["b_grad"].fill(1e-3), ["b_grad"]),
    "another-shape": (lambda got, *_: got.update(w_grad=got["w_grad"][None]), ["w_grad"]),
    "missing": (lambda got, *_: got.pop("w_grad"), ["w_grad"]),
}


@pytest.mark.parametrize("change", RIGHT.values(), ids=RIGHT)
def test_chance_is_no_error(change):
    result, _ = check(change)
    assert result.problem == ""
    assert {row.tensor for row in result.rows} == set(exact((0, 0)))


@pytest.mark.parametrize(("change", "wrong"), WRONG.values(), ids=WRONG)
def test_errors_are_found(change, wrong):
    result, _ = check(change)
    assert [row.tensor for row in result.failures] == wrong


def test_what_passes_is_not_repeated():
    assert check(RIGHT["rounding"])[1] == [(0, 0), (1, 0), (2, 0)]


def test_only_the_doubtful_step_is_repeated():
    assert check(RIGHT["a-kink-in-a-step"])[1] == [(0, 0), (1, 0), (2, 0), (1, 1)]
