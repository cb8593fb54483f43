"""docs/examples/browser in Chromium: trains as Python does, recognizes drawings, downloads what Python reads."""

from __future__ import annotations

import json
import re
import shutil

import onnx
import pytest

from digits_training import EXAMPLES

STEPS = 20


@pytest.fixture(scope="module")
def used(node, chromium, url, tmp_path_factory):
    """The folder with what the page made, and what it showed."""
    folder = tmp_path_factory.mktemp("page")
    return folder, json.loads(node("page.mjs", url, chromium, STEPS, folder))


def test_no_error_is_shown(used):
    assert used[1]["console"] == []


def test_each_step_is_that_of_python(used, assert_steps_of_python):
    folder, seen = used
    assert len(seen["losses"]) == STEPS
    assert_steps_of_python(folder / "states", seen["losses"], seen["rate"])


def test_the_curve_is_drawn(used):
    curve = used[1]["curve"]
    assert len(set(curve)) > STEPS // 2
    assert curve[-1] > curve[0]


def test_buttons(used, training):
    _, seen = used
    assert seen["again"] == seen["losses"]  # after Reset
    assert seen["running"] == "Stop"
    steps = len(training.digits["batches"])
    assert 40 <= seen["stopped"] < steps == int(seen["steps"])
    assert seen["finished"] == ["Go on", f'All {steps} steps are done. "Go on" takes the batches once more.']


def test_it_learns(used):
    _, seen = used
    assert percent(seen["untrained"]) < 30
    assert percent(seen["accuracy"]) > 95
    assert seen["wrong"] < 4
    assert float(seen["loss"]) < 0.1
    assert float(seen["milliseconds"]) > 0


def test_downloads(used, training):
    folder, seen = used
    model = onnx.load(folder / "digits.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [value.name for value in model.graph.input] == ["images"]
    accuracies = [
        training.accuracy(model.SerializeToString()),
        training.check_written(folder / "digits.safetensors", len(training.digits["batches"])),
    ]
    assert [round(100 * accuracy, 1) for accuracy in accuracies] == [percent(seen["accuracy"])] * 2


def test_recognizes_drawings(used):
    _, seen = used
    right = [digit for digit, shown in seen["digits"].items() if digit == shown]
    assert len(right) >= 9, seen["digits"]
    assert seen["cleared"] == "?"


def test_screenshot(used, request):
    """With --update-golden it becomes that of the documentation."""
    folder, _ = used
    data = (folder / "screenshot.png").read_bytes()
    assert 10_000 < len(data) < 200_000
    if request.config.getoption("--update-golden"):
        shutil.copy(folder / "screenshot.png", EXAMPLES / "browser")


@pytest.fixture(scope="module")
def visits(node, chromium, url):
    """The texts that the page showed in several visits."""
    return json.loads(node("visits.mjs", url, chromium))


def test_the_page_says_that_it_loads(visits):
    assert visits["loading"] == ["Loading onnxruntime-web …", "Start", True]
    assert visits["bars"] == [0] * 10
    assert visits["ready"] == ""


def test_a_reload_keeps_the_training(visits):
    assert visits["trained"]["steps"] == "2"
    assert visits["reloaded"] == visits["trained"]


def test_the_page_works_without_a_network(visits):
    assert visits["offline"] == visits["trained"]
    assert len(visits["offline losses"]) == 3
    assert visits["offline losses"][:2] == visits["losses"]


def test_go_on_takes_the_batches_once_more(visits):
    assert visits["end"] == "Go on"
    assert visits["after the end"] == ["331", "Start"]


def test_reset_is_kept_too(visits):
    assert visits["reset"]["steps"] == "0"
    assert visits["errors"] == []


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("**/data/step.onnx", r"data/step.onnx: 404.*\n.*prepare.py"),
        ("**/ort.wasm.bundle.min.mjs", r"onnxruntime-web.*\n.*npm install"),
    ],
    ids=["no data", "no packages"],
)
def test_errors_are_shown(node, chromium, url, pattern, message):
    shown = node("broken_page.mjs", url, chromium, pattern)
    assert re.search(message, shown), shown


def percent(text):
    return float(text.removesuffix(" %"))
