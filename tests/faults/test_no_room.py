"""Tests full disks and folders that are not writable: one line of error, and no file changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from bngrad import cli
from file_size import file_size_limit

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX limits and devices")

CHANNELS = 2000
VECTOR = f"float[{CHANNELS}]"
FORWARD = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[2,{CHANNELS}] x, {VECTOR} b, {VECTOR} m, {VECTOR} v) => (float loss) {{
    [bn] y, m2, v2 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
    z = Mul(y, y)
    loss = ReduceMean<keepdims = 0>(z)
}}"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with a forward model, its training graph, trained weights and an old output, of some KB each."""
    folder = tmp_path_factory.mktemp("models")
    model = onnx.parser.parse_model(FORWARD)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(CHANNELS, np.float32), "s"))
    onnx.save(model, folder / "forward.onnx")
    np.savez(folder / "weights.npz", s=np.full(CHANNELS, 2, np.float32))
    training = ["differentiate", str(folder / "forward.onnx"), "-o", str(folder / "training.onnx")]
    assert cli.run([*training, "--target", "ort"]) == 0
    (folder / "out").write_bytes(b"old")
    return folder


@pytest.fixture
def folder(models, tmp_path):
    return shutil.copytree(models, tmp_path / "folder")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def limited(folder, capsys, monkeypatch):
    """A function that runs a command which may write only small files."""
    monkeypatch.chdir(folder)

    def call(size, *arguments):
        with file_size_limit(size):
            code = cli.run(list(arguments))
        return code, *capsys.readouterr()

    return call


COPIED = ("--external-data", "copied")
COMMANDS = {
    "rewrite": ["rewrite", "training.onnx", "-o", "out"],
    "rewrite-copied": ["rewrite", "training.onnx", "-o", "out", *COPIED],
    "differentiate": ["differentiate", "forward.onnx", "-o", "out"],
    "finalize": ["finalize", "forward.onnx", "--weights", "weights.npz", "-o", "out", "--keep", "loss"],
}
COMMANDS["finalize-copied"] = [*COMMANDS["finalize"], *COPIED]
VALIDATE = ["validate", "forward.onnx", "--against", "reference", "--implementation", "function"]


@pytest.mark.parametrize("case", COMMANDS)
def test_a_full_disk(case, folder, limited):
    before = contents(folder)
    what = "out.data" if "copied" in case else "out"
    line = f"bngrad: error: {what} cannot be written: File too large\n"
    assert limited(2000, *COMMANDS[case]) == (2, "", line)
    assert contents(folder) == before


def test_a_full_disk_for_a_validation(folder, limited):
    """The temporary files are written first and the report last."""
    before = contents(folder)
    code, out, err = limited(300, *VALIDATE, "--html", "out")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("bngrad: error: ")
    assert err.endswith("File too large\n")
    assert contents(folder) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [["inspect", "forward.onnx"], ["--help"], ["oracle", "status"]],
    ids=" ".join,
)
def test_a_full_disk_as_stdout(arguments, folder):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "bngrad", *arguments]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        done = subprocess.run(
            command, cwd=folder, env=environment, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    line = "bngrad: error: the output or a temporary file cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)


NOT_WRITABLE = {
    "a-file-for-a-folder": ("out/out.onnx", "output folder {} does not exist; create it first"),
    "a-folder-that-takes-no-files": ("/proc/out.onnx", "output /proc/out.onnx is in /proc: a device or an open"),
    "a-device": (os.devnull, f"output {os.devnull} is a device or a pipe; expected a regular file"),
}


@pytest.mark.parametrize("case", NOT_WRITABLE)
@pytest.mark.parametrize("option", [(), COPIED], ids=["inside", "copied"])
def test_an_output_that_is_not_writable(case, option, folder, capsys):
    """Uses paths that not even root can write to."""
    if case == "a-folder-that-takes-no-files" and not Path("/proc").is_dir():
        pytest.skip("needs /proc")
    path, message = NOT_WRITABLE[case]
    before = contents(folder)
    arguments = ["rewrite", str(folder / "training.onnx"), "-o", str(folder / path), *option]
    assert cli.run(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"bngrad: error: {message.format(folder / 'out')}")
    assert err.count("\n") == 1
    assert contents(folder) == before


def run_mounted(options, folder, script):
    """Runs a shell script with a file system mounted on ``folder``; returns None if mounting is not allowed."""
    unshares = (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"])
    mount = f'mount -t tmpfs -o {options} tmpfs "$1"'
    for unshare in unshares:
        if shutil.which("unshare") is None:
            return None
        probe = subprocess.run([*unshare, "sh", "-c", mount, "sh", folder], capture_output=True, check=False)
        if probe.returncode == 0:
            command = [*unshare, "sh", "-c", f"{mount} && {script}", "sh", folder]
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return None


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if "copied" in case else pytest.mark.long) for case in COMMANDS]
)
def test_a_small_file_system(case, models, tmp_path):
    """Writes to a file system of 8 KiB."""
    words = [sys.executable, "-m", "bngrad", *COMMANDS[case]]
    words = [str(models / word) if word.endswith((".onnx", ".npz")) else word for word in words]
    run = " ".join(f"'{word}'" for word in words)
    done = run_mounted("size=8k", tmp_path, f'cd "$1" && printf old > out && {run}; echo "$? $(ls -A) $(cat out)"')
    if done is None:
        pytest.skip("needs permission to mount")
    assert done.stdout == "2 out old\n"
    assert re.fullmatch(r"bngrad: error: out(\.data)? cannot be written: No space left on device\n", done.stderr)


def test_a_read_only_file_system(models, tmp_path):
    command = f"'{sys.executable}' -m bngrad rewrite '{models / 'training.onnx'}' -o \"$1\"/out; echo $?"
    done = run_mounted("ro", tmp_path, command)
    if done is None:
        pytest.skip("needs permission to mount")
    assert (done.stdout, done.stderr) == ("2\n", f"bngrad: error: output folder {tmp_path} is not writable\n")
