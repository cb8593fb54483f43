"""Tests which versions of dependencies are accepted, and the messages about others."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import onnxruntime
import pytest

import bngrad
from bngrad import cli
from bngrad.errors import VersionError
from bngrad.runtime import versions

GOOD = {"numpy": "2.4.6", "onnx": "1.23.2", "onnx-ir": "1.1.0", "onnxruntime": "1.31.1", "onnxscript": "0.7.2"}
NEEDS = [
    "numpy>=1.26", "onnx>=1.17", "onnx-ir>=0.1.12", "onnxruntime>=1.17", "onnxruntime-extensions>=0.13",
    "onnxscript>=0.5.4", 'pytest>=8; extra == "test"',
]  # fmt: skip
"""Example requirements of bngrad; tests/matrix checks the actual ones."""

UNKNOWN, NO_VERSION = "a package that no known distribution installed", "a distribution that tells no version"

ACCEPTED = {
    "newest": {},
    "the-floors": {
        "numpy": "1.26.0", "onnx": "1.17.0", "onnx-ir": "0.1.12", "onnxruntime": "1.17.0", "onnxscript": "0.5.4",
    },
    "ort-1.17-with-numpy-1": {"onnxruntime": "1.17.3", "numpy": "1.26.4"},
    "ort-1.19-with-numpy-2": {"onnxruntime": "1.19.0", "numpy": "2.0.0"},
    "next-major": {"numpy": "3.0", "onnx": "2.0", "onnx-ir": "2.0", "onnxruntime": "2.0", "onnxscript": "1.0"},
    "pre-release": {"onnx": "1.24.0rc1", "onnxruntime": "1.32.0.dev20270101001"},
    "local-build": {"onnxruntime": "1.22.0+mine", "numpy": "2.1.0+vendor"},
    "version-of-no-kind": {"onnxruntime": "from-source"},
    "metadata-without-a-version": {"onnx": NO_VERSION},
    "distribution-of-another-name": {"onnxruntime": UNKNOWN},
    "ten-is-after-nine": {"onnx-ir": "0.10.0", "onnxscript": "0.50"},
    "training-build": {"onnxruntime": None, "onnxruntime-training-cpu": "1.19.2"},
    "gpu-build": {"onnxruntime": None, "onnxruntime-gpu": "1.20.1"},
}  # fmt: skip


def too_old(what, needed):
    return f"{what} is unsupported: bngrad requires {needed}; run pip install '{needed}'"


def for_numpy_1(what, numpy):
    remedy = "run pip install 'numpy<2' or 'onnxruntime>=1.19'"
    return f"{what} does not work with {numpy}: it was built for NumPy 1; {remedy}"


def missing(what, needed):
    return f"{what} is not installed: bngrad requires {needed}; run pip install '{needed}'"


REFUSED = {
    "old-numpy": ({"numpy": "1.25.2"}, too_old("numpy 1.25.2", "numpy>=1.26")),
    "old-onnx": ({"onnx": "1.16.2"}, too_old("onnx 1.16.2", "onnx>=1.17")),
    "old-onnx-ir": ({"onnx-ir": "0.1.9"}, too_old("onnx-ir 0.1.9", "onnx-ir>=0.1.12")),
    "old-ort": ({"onnxruntime": "1.16.3"}, too_old("onnxruntime 1.16.3", "onnxruntime>=1.17")),
    "old-onnxscript": ({"onnxscript": "0.5.3"}, too_old("onnxscript 0.5.3", "onnxscript>=0.5.4")),
    "before-the-floor": ({"onnx": "1.17.0rc1"}, too_old("onnx 1.17.0rc1", "onnx>=1.17")),
    "old-training-build": (
        {"onnxruntime": None, "onnxruntime-training": "1.16.3"},
        too_old("onnxruntime-training 1.16.3", "onnxruntime>=1.17"),
    ),
    "ort-1.17-with-numpy-2": (
        {"onnxruntime": "1.17.3", "numpy": "2.4.6"},
        for_numpy_1("onnxruntime 1.17.3", "numpy 2.4.6"),
    ),
    "ort-1.18-with-numpy-2": (
        {"onnxruntime": "1.18.1", "numpy": "2.0.0"},
        for_numpy_1("onnxruntime 1.18.1", "numpy 2.0.0"),
    ),
    "training-build-with-numpy-2": (
        {"onnxruntime": None, "onnxruntime-training-cpu": "1.17.3", "numpy": "2.0.0"},
        for_numpy_1("onnxruntime-training-cpu 1.17.3", "numpy 2.0.0"),
    ),
    "missing": ({"onnxscript": None}, missing("onnxscript", "onnxscript>=0.5.4")),
    "no-ort-of-any-name": ({"onnxruntime": None}, missing("onnxruntime", "onnxruntime>=1.17")),
    "missing-with-a-dash": ({"onnx-ir": None}, missing("onnx-ir", "onnx-ir>=0.1.12")),
}  # fmt: skip


@pytest.fixture
def install(monkeypatch):
    """Replaces the metadata of installed packages."""

    def do(changes):
        has = GOOD | changes

        def version(name):
            if has.get(name) in (None, UNKNOWN):
                raise importlib.metadata.PackageNotFoundError(name)
            return None if has[name] == NO_VERSION else has[name]

        def find_spec(module):
            return object() if has.get(module.replace("_", "-")) is not None else None

        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(importlib.metadata, "requires", lambda _name: NEEDS)
        monkeypatch.setattr(versions, "find_spec", find_spec)

    caches = (versions.floors, versions._check)
    for cache in caches:
        cache.cache_clear()
    yield do
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("changes", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(changes, install):
    install(changes)
    versions.check()


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(changes, message, install):
    install(changes)
    with pytest.raises(VersionError) as error:
        versions.check()
    assert str(error.value) == message


def test_a_tree_that_was_not_installed_asks_for_nothing(install, monkeypatch):
    install({"onnx": "1.2.0"})

    def requires(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", requires)
    versions.check()


def test_the_extensions_are_asked_about_by_their_implementation_alone(install):
    install({"onnxruntime-extensions": "0.12.0"})
    bngrad.register(onnxruntime.SessionOptions(), "native")
    bngrad.register(onnxruntime.SessionOptions(), "function")
    with pytest.raises(VersionError) as error:
        bngrad.register(onnxruntime.SessionOptions(), "python")
    assert str(error.value) == too_old("onnxruntime-extensions 0.12.0", "onnxruntime-extensions>=0.13")


# Users must be able to import the error to catch it.
ERRORS = [name for name in bngrad.__all__ if name.endswith(("Error", "Warning"))]


@pytest.mark.parametrize("name", [name for name in bngrad.__all__ if name not in {*ERRORS, "__version__"}])
def test_every_public_name_asks_first(name, install):
    install({"onnx": "1.16.2"})
    with pytest.raises(VersionError, match=r"onnx 1\.16\.2 is unsupported"):
        getattr(bngrad, name)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_always_there(name, install):
    install({"onnx": None})
    assert getattr(bngrad, name).__module__ == "bngrad.errors"


def test_the_base_of_the_errors_is_always_there(install):
    install({"onnx": None})
    with pytest.raises(bngrad.BngradError, match="onnx is not installed"):
        bngrad.rewrite  # noqa: B018 - the access is what fails


COMMANDS = [
    "inspect x",
    "rewrite x -o y",
    "differentiate x -o y",
    "finalize x -o y --weights z",
    "validate x",
    "bench x",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_a_model_asks_first(command, install, capsys):
    install({"onnxruntime": "1.17.3"})
    assert cli.run(command.split()) == 2
    message = for_numpy_1("onnxruntime 1.17.3", "numpy 2.4.6")
    assert capsys.readouterr() == ("", f"bngrad: error: {message}\n")


@pytest.mark.parametrize("command", ["--version", "--help", "library-path", "oracle status"])
def test_the_other_commands_work_everywhere(command, install, capsys):
    install({"onnxruntime": None, "onnx": None, "numpy": "1.0"})
    assert cli.run(command.split()) in {0, 1}
    assert capsys.readouterr().err == ""


OLD = """Metadata-Version: 2.1
Name: onnx
Version: 1.16.2
"""


def test_an_old_package_of_a_real_environment(tmp_path):
    """Is detected from the metadata, before the package is imported."""
    info = tmp_path / "onnx-1.16.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(OLD)
    (tmp_path / "onnx.py").write_text("raise ImportError")
    done = subprocess.run(
        [sys.executable, "-m", "bngrad", "inspect", "model.onnx"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    floor = versions.floors()["onnx"]
    assert done.stderr == f"bngrad: error: {too_old('onnx 1.16.2', f'onnx{floor}')}\n"
