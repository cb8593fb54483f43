"""The history of a trainer, and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

import bngrad
from bngrad.errors import InputError, TrainingError
from reports.pages import Page
from training.trainer_cases import network, samples


@pytest.fixture
def trainer():
    step = bngrad.training_step(network(), optimizer=bngrad.SGD(momentum=0.9), clip_norm=1.0)
    return bngrad.Trainer(step, learning_rate=0.1)


def test_each_step_is_recorded(trainer):
    losses = [trainer.step(**samples(8, seed=seed)) for seed in range(3)]
    records = list(trainer.history)
    assert [record["step"] for record in records] == [1, 2, 3]
    assert [record["loss"] for record in records] == losses
    assert all(record["learning_rate"] == 0.1 for record in records)
    assert records[-1]["gradient_norm"] == trainer.gradient_norm == float(trainer.outputs["gradient_norm"])
    assert records[0]["seconds"] <= records[2]["seconds"]
    assert len(trainer.history) == 3


def test_a_step_that_fails_is_not_recorded(trainer):
    bad = samples(8)
    bad["x"][:] = float("nan")
    with pytest.raises(TrainingError):
        trainer.step(**bad)
    assert list(trainer.history) == []


def test_an_earlier_state_drops_the_steps_after_it(trainer):
    trainer.step(**samples(8))
    state = trainer.state_dict()
    for seed in range(4):
        trainer.step(**samples(8, seed=seed))
    trainer.load_state_dict(state)
    loss = trainer.step(**samples(8, seed=9))
    assert [record["step"] for record in trainer.history] == [1, 2]
    assert trainer.history.records[-1]["loss"] == loss


def test_the_page(trainer, tmp_path):
    for epoch in (1, 2):
        for seed in range(3):
            trainer.step(**samples(8, seed=seed))
        trainer.history.add(epoch=epoch, validation_loss=1 / epoch, accuracy=0.5)
    trainer.report(tmp_path / "run.html")
    page = Page(tmp_path / "run.html")
    page.check_self_contained()
    for text in ("So far", "optimizer sgd", "momentum 0.9", "clip-norm 1.0", "Norm of the gradients", "Accuracy"):
        assert text in page.text
    assert page.table["epoch"] == ["2", "1"]


def test_a_notebook_shows_the_page(trainer):
    trainer.step(**samples(8))
    shown = trainer.history._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert shown.endswith("</iframe>")
    assert shown.count("<") == 2


def test_an_empty_history(trainer, tmp_path):
    trainer.report(tmp_path / "run.html")
    assert "No step is complete yet" in Page(tmp_path / "run.html").text


def test_a_page_that_cannot_be_written(trainer):
    with pytest.raises(InputError, match="output folder no does not exist"):
        trainer.report(Path("no/run.html"))
