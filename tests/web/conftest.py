"""Fixtures for the JavaScript examples: Node, npm packages, Chromium, the examples served over HTTP."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from digits_training import EXAMPLES, Training, prepare
from serve_examples import served

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("web")


def absent(what):
    """Skips a test, except in CI, where everything has to be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}; .ci/run installs it")
    pytest.skip(what)


@pytest.fixture(scope="session")
def node():
    """Runs a program of this folder or of the examples in Node, and returns what it prints."""
    if shutil.which("node") is None:
        absent("no node on the PATH")
    for folder in (HERE, EXAMPLES / "node", EXAMPLES / "browser"):
        if not (folder / "node_modules").exists():
            absent(f"{folder} has no node_modules: make test-web installs them")

    def run(script, *arguments, cwd=None):
        command = ["node", HERE / script, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400, cwd=cwd)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def chromium():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    return absent("no Chromium on the PATH: apt-get install chromium")


@pytest.fixture(scope="session")
def packed(node, tmp_path_factory):  # noqa: ARG001 - where Node is
    """A folder whose node_modules have the packed package beside those of the examples and the tests."""
    folder = tmp_path_factory.mktemp("packed")
    modules = folder / "node_modules"
    modules.mkdir()
    pack = ["npm", "pack", "--silent", "--pack-destination", folder]
    done = subprocess.run(pack, cwd=EXAMPLES / "step", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(folder / done.stdout.split()[-1]) as archive:
        archive.extractall(folder, filter="data")
    (folder / "package").rename(modules / "bngrad")
    for path in [*(EXAMPLES / "node" / "node_modules").iterdir(), *(HERE / "node_modules").iterdir()]:
        if path.name[0] != "." and not (modules / path.name).exists():
            (modules / path.name).symlink_to(path.resolve())
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The files that `prepare.py` writes."""
    path = tmp_path_factory.mktemp("digits")
    prepare(path, "flat")
    return path


@pytest.fixture(scope="session")
def training(folder):
    return Training(folder)


@pytest.fixture(scope="session")
def url(folder):
    """The address of the page."""
    with served(folder) as address:
        yield address


@pytest.fixture(scope="session")
def assert_steps_of_python(training):
    """Compares steps with Python's, each from the same state.

    Rounding decides which side of its kink a ReLU near 0 is on. So two trainings part after some steps, and a step
    may differ by more than rounding; most have no such ReLU.

    Args of the function: the file with the states before each step and after the last, their losses, the rate, and
    the training in Python.
    """

    def compare(states, losses, rate, training=training):
        vectors = np.fromfile(states, np.float32).reshape(len(losses) + 1, -1)
        errors = []
        for index, loss in enumerate(losses):
            expected, new = training.step(training.info.unflatten(vectors[index]), index, rate)
            assert loss == pytest.approx(expected, abs=1e-5)
            actual = training.info.unflatten(vectors[index + 1])
            assert actual["step"] == new["step"]
            errors.append({name: relative_error(actual[name], array) for name, array in new.items()})
        largest = [max(differences.values()) for differences in errors]
        assert max(largest) < 0.1, errors
        assert np.quantile(largest, 0.75) < 1e-5, largest

    return compare


def relative_error(array, expected):
    return float(np.abs(array - expected).max() / max(np.abs(expected).max(), 1e-6))
