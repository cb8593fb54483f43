"""The evaluation of a state: the same on any number of ranks, and who ends it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import bngrad
from bngrad.errors import InputError
from bngrad.training.dataset import Dataset
from bngrad.training.metrics import Evaluation, Interrupted, evaluate
from bngrad.training.ranks import Ranks
from thread_ranks import on_threads
from trainer_cases import samples, step_of

STEP = step_of()


def trainer_of(comm):
    trainer = bngrad.Trainer(STEP, learning_rate=0, threads=1)
    trainer.ranks = Ranks(comm)
    return trainer


def dataset(count=41, **changed):
    return Dataset(samples(count) | changed, STEP.info.data)


def on_ranks(size, **options):
    options = {"drop_last": False} | options
    data = options.pop("data", dataset())
    return on_threads(size, lambda comm: evaluate(trainer_of(comm), data, 4, **options))


def test_the_result_is_that_of_the_samples():
    found = evaluate(trainer_of(None), dataset(), 4, drop_last=False)
    outputs = trainer_of(None).evaluate(**samples(41))
    assert found.loss == pytest.approx(float(outputs["loss"]), rel=1e-6)
    assert found.accuracy == np.mean(outputs["logits"].argmax(axis=1) == samples(41)["labels"])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [2, 3, 12])
def test_the_bits_do_not_depend_on_the_number_of_ranks(size, drop_last):
    alone = evaluate(trainer_of(None), dataset(), 4, drop_last=drop_last)
    assert on_ranks(size, drop_last=drop_last) == [alone] * size
    assert isinstance(alone, Evaluation)


def test_a_loss_that_is_not_finite():
    x = samples(41)["x"]
    x[39] = np.nan  # in the last but one batch, of rank 0
    assert all(math.isnan(found.loss) for found in on_ranks(3, data=dataset(x=x)))


def test_labels_that_are_refused_on_one_rank():
    labels = samples(41)["labels"]
    labels[5] = 7  # in the second batch
    errors = on_ranks(3, data=dataset(labels=labels))
    assert {type(error) for error in errors} == {InputError}
    assert {str(error) for error in errors} == {"rank 1: 'labels' has the label 7; expected 0 to 2"}


def test_one_rank_ends_it():
    def function(comm):
        return evaluate(trainer_of(comm), dataset(), 4, drop_last=False, stop=lambda: comm.rank == 1)

    assert {type(error) for error in on_threads(3, function)} == {Interrupted}
