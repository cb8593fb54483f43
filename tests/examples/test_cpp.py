"""docs/examples/cpp trains as Python does.

It is built without ONNX Runtime's headers, or with those in the folder ONNXRUNTIME_INCLUDE_DIR.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from bngrad.runtime import native_library
from bngrad.training.step_files import read_state
from digits_training import EXAMPLES, Training, accuracy_in, losses_in

STEPS = 10

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library of a wheel has another name")


def cmake_build(example, folder, **options):
    """Builds an example of docs/examples."""
    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    options |= {
        "ONNXRUNTIME_LIBRARY": library,
        "JSON_INCLUDE_DIR": Path(find_spec("nlohmann_json").origin).parent / "include",
        "CMAKE_BUILD_TYPE": "Debug",
        "CMAKE_CXX_FLAGS_DEBUG": "",  # no -g, which takes a sixth of the time
        "CMAKE_CXX_FLAGS": "-Werror",
    }
    if headers := os.environ.get("ONNXRUNTIME_INCLUDE_DIR"):
        options["ONNXRUNTIME_INCLUDE_DIR"] = headers
    cmake = shutil.which("cmake", path=Path(sys.executable).parent) or shutil.which("cmake")
    defined = [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run([cmake, "-S", EXAMPLES / example, "-B", folder, *defined], check=True)
    subprocess.run([cmake, "--build", folder], check=True)


@pytest.fixture(scope="module")
def program(shared_folder):
    return shared_folder("cpp_example", lambda path: cmake_build("cpp", path)) / "train"


@pytest.fixture
def folder(digits, tmp_path):
    """A copy of the prepared files."""
    return shutil.copytree(digits, tmp_path / "digits")


def run(program, *arguments):
    return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("library", [False, True], ids=["functions", "library"])
def test_trains_as_python_does(program, folder, library):
    registered = [native_library.library_path()] if library else []
    done = run(program, folder, STEPS, 0.05, *registered)
    assert done.returncode == 0, done.stderr
    training = Training(folder, library=library)
    losses, state = training.train(STEPS, 0.05)
    assert losses[-1] < losses[0] / 2
    np.testing.assert_allclose(losses_in(done.stdout), losses, rtol=1e-6)
    written, _ = read_state(folder / "trained.safetensors", training.info)
    for name, array in written.items():
        np.testing.assert_allclose(array, state[name], rtol=1e-5, atol=1e-6, err_msg=name)
    accuracy = training.check_written(folder / "trained.safetensors", STEPS, recorded=False)
    assert accuracy_in(done.stdout) == pytest.approx(accuracy)


def damaged(folder, name, change):
    file = folder / name
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("step.safetensors", lambda data: data[:-1], "is truncated, tensor"),
        ("step.safetensors", lambda _: b"PK", "is no .safetensors file"),
        (
            "step.safetensors",
            lambda data: data.replace(b'"classifier.bias"', b'"classifier.bian"'),
            "no tensor class",
        ),
        ("step.safetensors", lambda data: data.replace(b'"shape":[10]', b'"shape":[11]'), "wrong number of bytes"),
        ("step.safetensors", lambda data: data.replace(b'"I64"', b'"U64"'), "type U64 are not supported"),
        ("step.onnx", lambda data: data.replace(b'{"version": 1', b'{"version": 2'), "another format"),
        ("step.onnx", lambda data: data.replace(b"bngrad.step", b"bngrad.stop"), "no training step"),
        ("step.onnx", lambda data: data.replace(b'"layout": "named"', b'"layout": "flat!"'), "expected named"),
        ("step.onnx", lambda data: data[:1000], "step.onnx failed"),
    ],
    ids=[
        "truncated state",
        "no safetensors",
        "missing tensor",
        "size",
        "type",
        "version",
        "no step",
        "layout",
        "truncated step",
    ],
)
def test_refuses(program, folder, name, change, message):
    damaged(folder, name, change)
    done = run(program, folder, 2)
    assert done.returncode == 1
    assert message in done.stderr
    assert not (folder / "trained.safetensors").exists()


@pytest.mark.parametrize("arguments", [[], ["a", "0"], ["a", "x"], ["a", "1", "-1"]], ids=" ".join)
def test_usage(program, arguments):
    done = run(program, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_the_guide_shows_lines_of_the_program():
    guide = (EXAMPLES.parent / "guides" / "cpp-csharp.md").read_text(encoding="utf-8")
    shown = re.search(r"^```cpp\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)[1]
    files = [EXAMPLES / "cpp" / name for name in ("train.cc", "step.hpp")]
    program = " ".join(" ".join(file.read_text(encoding="utf-8") for file in files).split())
    for line in shown.strip().splitlines():
        assert line.strip() in program, line
