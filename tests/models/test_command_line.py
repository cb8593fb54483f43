"""The generators as commands, run as a file from any folder and as a module from the repository's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from models import digits_resnet20, light

ROOT = Path(digits_resnet20.__file__).parents[1]


def run(arguments, folder):
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["file", "module"])
def test_digits(how, tmp_path):
    output = tmp_path / "new" / "digits.onnx"
    command = [str(ROOT / "models" / "digits_resnet20.py")] if how == "file" else ["-m", "models.digits_resnet20"]
    done = run([*command, "-o", str(output), "--seed", "3"], tmp_path if how == "file" else ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert onnx.load(output) == digits_resnet20.build(seed=3)


def test_light(tmp_path):
    output = tmp_path / "shufflenet.onnx"
    done = run([str(ROOT / "models" / "light.py"), "shufflenet", "-o", str(output)], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert onnx.load(output) == light.prepare("shufflenet")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["alexnet", "-o", "x.onnx"], "invalid choice: 'alexnet'"), (["resnet50"], "required: -o/--output")],
)
def test_refusals(arguments, message, tmp_path):
    done = run([str(ROOT / "models" / "light.py"), *arguments], tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "program",
    [
        "light",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("digits_resnet20", "quantize_digits", "train_digits")
        ),
    ],
)
def test_an_installed_package_comes_before_the_sources(program, tmp_path):
    path = str(ROOT / "models" / f"{program}.py")
    text = f"import runpy, sys; runpy.run_path({path!r}); print(*sys.path, sep='\\n')"
    done = run(["-P", "-c", text], tmp_path)
    paths = done.stdout.splitlines()
    packages = next(index for index, path in enumerate(paths) if path.endswith("site-packages"))
    assert paths.index(str(ROOT)) > packages
