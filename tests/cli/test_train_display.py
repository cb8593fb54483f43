"""The lines that the terminal shows while a model trains."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from bngrad.cli.progress import clock
from bngrad.cli.train_display import Means, StatusLine, sparkline


def record(step, loss=0.5, *, epoch=1, rate=0.002, seconds=None):
    seconds = step / 100 if seconds is None else seconds
    return {"step": step, "epoch": epoch, "loss": loss, "learning_rate": rate, "seconds": seconds}


def after(steps, width, **options):
    status = StatusLine(10, **options)
    for step in range(1, steps):
        status(record(step, loss=3 / step), width)
    return status(record(steps, loss=3 / steps), width)


def test_everything_where_there_is_room():
    line = after(200, 100)
    assert line.startswith("epoch 1/10  step 200  loss 0.015  █▂▂▂▁▁")
    assert line.endswith("  lr 0.002  100 steps/s")


@pytest.mark.parametrize("width", [1, 10, 20, 31, 45, 60, 80, 200])
def test_a_line_fits(width):
    line = after(1000, width)
    assert line.startswith("epoch 1/10")
    assert cell_len(line) <= max(width, len("epoch 1/10"))


@pytest.mark.parametrize(
    ("width", "parts"),
    [
        (21, ["epoch 1/10", "loss 0.003"]),
        (31, ["epoch 1/10", "loss 0.003", "█"]),
        (42, ["epoch 1/10", "step 1000", "loss 0.003", "█"]),
        (48, ["epoch 1/10", "step 1000", "loss 0.003", "█", "lr 0.002"]),
        (59, ["epoch 1/10", "step 1000", "loss 0.003", "█", "lr 0.002", "steps/s"]),
    ],
)
def test_what_a_narrow_terminal_leaves_out(width, parts):
    line = after(1000, width)
    assert [part for part in ("epoch", "step 1", "loss", "█", "lr", "steps/s") if part in line] == [
        next(name for name in ("epoch", "step 1", "loss", "█", "lr", "steps/s") if name in part) for part in parts
    ]
    assert all(part in line for part in parts)


def test_an_encoding_without_the_characters():
    assert after(50, 80, encoding="ascii").isascii()
    assert after(50, 80, encoding="no-such-encoding").isascii()


def test_a_loss_that_is_not_finite():
    status = StatusLine(2)
    status(record(1, loss=2.0), 80)
    assert "loss not finite" in status(record(2, loss=None), 80)


def test_the_rate_of_steps_leaves_validations_out():
    status = StatusLine(2)
    for step in (1, 2, 3):
        status(record(step), 80)
    assert "steps/s" not in status(record(4, epoch=2, seconds=60.0), 80)
    assert status(record(5, epoch=2, seconds=60.1), 80).endswith("10 steps/s")


def test_the_means_of_a_series_of_any_length():
    means = Means(40)
    for value in range(10_000):
        means.add(float(value))
    values = means.values(10)
    assert len(values) == 10
    assert values == sorted(values)
    assert values[0] == pytest.approx(500, abs=300)
    assert values[-1] == pytest.approx(9500, abs=300)
    assert Means(40).values(10) == []


@pytest.mark.parametrize(
    ("values", "line"), [([], ""), ([1], "▁"), ([2, 2], "▁▁"), ([0, 1, 2], "▁▅█"), ([9, 1], "█▁")]
)
def test_sparklines(values, line):
    assert sparkline(values) == line


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (59.7, "1:00"), (754, "12:34"), (3600, "1:00:00")])
def test_clock(seconds, text):
    assert clock(seconds) == text
