"""The log of a run and its loss curve: lines of JSON, the lines that a resumed run keeps, and refusals."""

from __future__ import annotations

import builtins
import importlib.util
import json
import math

import pytest

from bngrad.errors import InputError
from bngrad.training import curve
from bngrad.training.run_log import RunLog, read_log


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path, epochs=2, steps=2, **options):
    log = RunLog(path, **options)
    with log.open():
        for epoch in range(1, epochs + 1):
            for step in range(1, steps + 1):
                log.add(step=(epoch - 1) * steps + step, epoch=epoch, loss=1 / (epoch + step))
            log.add(step=epoch * steps, epoch=epoch, training_loss=0.5, validation_loss=0.25)
    return log


def test_lines(tmp_path):
    path = tmp_path / "run.jsonl"
    log = write(path)
    assert lines(path) == log.records
    assert [(record["step"], record["epoch"], "loss" in record) for record in log.records] == [
        (1, 1, True), (2, 1, True), (2, 1, False), (3, 2, True), (4, 2, True), (4, 2, False),
    ]  # fmt: skip


def test_a_new_run_begins_a_new_file(tmp_path):
    path = tmp_path / "run.jsonl"
    write(path)
    write(path, epochs=1)
    assert len(lines(path)) == 3


KEPT = {
    "after-an-epoch": (2, 1, 3),
    "within-an-epoch": (3, 1, 4),
    "after-the-last-batch": (4, 1, 5),
    "at-the-end": (4, 2, 6),
    "further": (9, 4, 6),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_resumed_run_keeps_what_it_does_not_repeat(case, tmp_path):
    step, epoch, kept = KEPT[case]
    path = tmp_path / "run.jsonl"
    write(path)
    before = lines(path)
    with path.open("a") as file:
        file.write('{"step": 5, "epo')  # the process was killed
    assert RunLog(path, step, epoch).records == before[:kept]
    assert lines(path) == before[:kept]


def test_the_options_are_the_first_line(tmp_path):
    path = tmp_path / "run.jsonl"
    log = write(path, options={"learning-rate": "0.1"})
    assert lines(path) == [{"options": {"learning-rate": "0.1"}}, *log.records]
    assert read_log(path) == ({"learning-rate": "0.1"}, log.records)
    resumed = RunLog(path, 2, 1, {"learning-rate": "0.2"})
    assert resumed.records == log.records[:3]
    assert lines(path) == [{"options": {"learning-rate": "0.2"}}, *log.records[:3]]


def test_a_log_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"none\.jsonl cannot be read: No such file"):
        read_log(tmp_path / "none.jsonl")


def test_a_resumed_run_without_its_log_begins_one(tmp_path):
    assert RunLog(tmp_path / "new.jsonl", 5, 1).records == []


def test_losses_that_are_not_finite_are_null(tmp_path):
    log = RunLog(tmp_path / "run.jsonl")
    with log.open():
        log.add(step=1, epoch=1, loss=math.nan)
        log.add(step=2, epoch=1, loss=math.inf)
    assert [record["loss"] for record in lines(tmp_path / "run.jsonl")] == [None, None]


def test_no_file():
    log = write(None)
    assert len(log.records) == 6


@pytest.mark.parametrize(
    "text",
    [
        *("text\nmore\n", "[1]\n{}\n", '{"x": 1}\n{"step": 1}\n', '{"step": "a"}\n\n', '{"step": null}\n\n'),
        *('{"step": 1, "epoch": null}\n\n', '{"options": 1}\n\n', "1\n\n"),
    ],
)
def test_a_file_that_is_no_log(text, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(InputError, match="line 1: not a record of a training run"):
        RunLog(path, 5, 1)
    assert path.read_text() == text


def test_refused_paths(tmp_path):
    with pytest.raises(InputError, match="does not exist; create it first"):
        RunLog(tmp_path / "none" / "run.jsonl")
    with pytest.raises(InputError, match="is a directory"):
        RunLog(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")
@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_curves(name, start, tmp_path):
    records = write(None).records
    path = curve.check_plot(tmp_path / name)
    curve.draw(path, records)
    content = path.read_bytes()
    assert content.startswith(start)
    assert [file.name for file in tmp_path.iterdir()] == [name]
    curve.draw(path, [])
    curve.draw(path, [{"step": 1, "epoch": 1, "loss": None}, {"step": 2, "epoch": 1, "loss": -1.0}])


@pytest.mark.parametrize(("name", "suffix"), [("a.txt", ".txt"), ("a", "")])
def test_refused_curves(name, suffix, tmp_path):
    with pytest.raises(InputError, match=f"has the suffix '{suffix}'; expected one of .svg, .png, .pdf"):
        curve.check_plot(tmp_path / name)


def test_a_curve_without_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else builtins.object
    )
    with pytest.raises(InputError, match=r"matplotlib, which is not installed: pip install 'bngrad\[plot\]'"):
        curve.check_plot(tmp_path / "a.svg")
