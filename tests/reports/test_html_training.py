"""The page of a training run."""

from __future__ import annotations

import math

import pytest

from bngrad.reports.html.curves import COLUMNS, Series, curves, ranges, smoothed
from bngrad.reports.html.training import RUNNING, RunFacts, RunPage
from pages import Page


def step(number, loss=None, *, epoch=1, **more):
    loss = 3 * math.exp(-number / 50) if loss is None else loss
    record = {"step": number, "epoch": epoch, "loss": loss, "learning_rate": 0.1, "seconds": number / 100}
    return record | more


def epoch(number, at, **more):
    return {"step": at, "epoch": number, "training_loss": 1 / number, "seconds": at / 100 + 0.5} | more


RUN = [
    *(step(number) for number in range(1, 101)),
    epoch(1, 100, validation_loss=0.5, accuracy=0.8),
    *(step(number, epoch=2) for number in range(101, 201)),
    epoch(2, 200, validation_loss=0.75, accuracy=0.7),
]


@pytest.fixture
def page(tmp_path):
    def make(records, status="finished", **facts):
        file = tmp_path / "run.html"
        RunPage(file, RunFacts("step.onnx", **facts)).write(records, status)
        html = Page(file)
        html.check_self_contained()
        return html

    return make


SHOWN = {
    "finished": (RUN, "finished", ["Finished", "epochs 2 of 3", "lowest validation loss 0.5 epoch 1", "80.0 %"]),
    "running": (RUN[:150], RUNNING, ["Epoch 2 of 3", "loads itself again every 10 seconds", "steps 149"]),
    "not-finite": (
        [step(1), {**step(2), "loss": None}],
        "not finite",
        ["Not finite", "loss of 1 step is not"],
    ),
    "interrupted": (RUN[:5], "interrupted", ["Interrupted", "steps 5"]),
    "empty": ([], "interrupted", ["No step is complete yet", "mean loss -"]),
    "clipped": ([step(1, gradient_norm=2.0), step(2, gradient_norm=4.0)], "finished", ["Norm of the gradients"]),
}


@pytest.mark.parametrize("case", SHOWN)
def test_what_is_shown(case, page):
    records, status, texts = SHOWN[case]
    html = page(records, status, epochs=3, options={"batch-size": "8"}, summary="44 samples")
    for text in [*texts, "step.onnx", "batch-size 8", "44 samples", "onnxruntime"]:
        assert text in html.text
    refreshes = any(has.get("http-equiv") == "refresh" for _, has in html.elements)
    assert refreshes == (status == RUNNING)


def test_the_table_of_epochs(page):
    table = page(RUN).table
    assert table["epoch"] == ["2", "1"]
    assert table["accuracy"] == ["70.00%", "80.00%"]
    assert table["learning rate"] == ["0.1", "0.1"]


def test_a_page_is_not_written_in_every_step(tmp_path, monkeypatch):
    times = []
    page = RunPage(tmp_path / "run.html", RunFacts("step.onnx"))
    monkeypatch.setattr(page, "write", lambda _records, status: times.append(status))
    for _ in range(100):
        page.update(RUN)
    assert times == [RUNNING]


def test_the_smoothed_loss():
    constant = smoothed([(x, 2.0) for x in range(300)])
    assert all(y == pytest.approx(2.0) for _, y in constant)
    saw = smoothed([(x, float(x % 2)) for x in range(2000)])
    assert all(abs(y - 0.5) < 0.02 for _, y in saw[200:])
    assert smoothed([(1, 3.0)]) == [(1, 3.0)]


def test_many_points_keep_their_extremes():
    points = [(float(x), float(x == 12_345)) for x in range(50_000)]
    chosen = ranges(points)
    assert len(chosen) <= 2 * COLUMNS
    assert (12_345.0, 1.0) in chosen
    assert chosen == sorted(chosen)


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([1e-3, 1.0], {"10⁻³", "10⁻²", "10⁻¹", "1"}),
        ([0.02, 0.3], {"0.02", "0.05", "0.1", "0.2"}),
        ([0.0, 1.0], {"0", "0.5", "1"}),
        ([-2.0, 2.0], {"-2", "0", "2"}),
        ([0.1, 0.1], {"0.1"}),
        ([0.0, 0.0], {"0"}),
    ],
)
def test_the_vertical_axis(values, labels):
    picture = curves([Series("loss", list(enumerate(values)), 0)], log=True)
    assert labels <= {tick.label for tick in picture.ticks}
    assert all(0 <= tick.at <= picture.height for tick in picture.ticks)


def test_no_points_are_no_picture():
    assert curves([Series("loss", [], 0)]) is None


def test_one_point():
    picture = curves([Series("loss", [(7, 0.5)], 0, smooth=True)])
    assert [line.raw for line in picture.lines] == [True, False]
    assert picture.steps == []
