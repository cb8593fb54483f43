"""Linux x86-64, glibc: the wheel in fresh Debian roots; and musl, by Debian's loader."""

from __future__ import annotations

import re
import resource
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

import programs
from harness import ROOT, WORK, Row, debian, inside, run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from ops.wheels.targets import Target

LIMIT = 60
"""Seconds from pip install to the trained network, on a fresh machine that does nothing else."""

ACCURACY = 0.8


def try_glibc(row: Row, target: Target, wheel: Path) -> None:
    """The C programs with the oldest glibc, the Python package with two others."""
    folder = programs.prepare(target.zig, wheel, WORK / row.target)
    programs.write_digits(folder)
    shutil.copyfile(wheel, folder / wheel.name)
    for release in ("bullseye", "bookworm", "trixie"):
        start = partial(_start, debian(release), folder)
        programs.try_c_programs(row, _name(release, folder), start, target.kernels, programs.SIGNALS)
    for release in ("bookworm", "trixie"):
        _try_python(row, release, folder, wheel.name)


def _start(
    root: Path, folder: Path, program: str, *arguments: str, **options: str
) -> subprocess.CompletedProcess[str]:
    return inside(root, f"/trial/{program}", *arguments, folder=folder, **options)


def _cpu_seconds() -> float:
    """The CPU time of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _name(release: str, folder: Path) -> str:
    done = inside(debian(release), "ldd", "--version", folder=folder)
    return f"Debian {release}, glibc {done.stdout.splitlines()[0].split()[-1]}"


def _try_python(row: Row, release: str, folder: Path, wheel: str) -> None:
    """Installs the wheel with pip, trains as README.md does, and compares ten steps."""
    root, where = debian(release), _name(release, folder)
    for old in ("root/.cache", "venv", "training"):
        shutil.rmtree(root / old, ignore_errors=True)
    shutil.copyfile(ROOT / "models" / "digits_resnet20.onnx", folder / "digits_resnet20.onnx")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    example = re.search(r"```python\n(import bngrad\n.*?load_digits.*?)```", readme, re.DOTALL)
    (folder / "readme.py").write_text(example[1], encoding="utf-8")
    call = partial(inside, root, folder=folder)
    call("python3", "-m", "venv", "/venv")
    begun, cpu = time.monotonic(), _cpu_seconds()
    call("/venv/bin/pip", "install", "--quiet", f"/trial/{wheel}", "scikit-learn")
    installed = time.monotonic()
    step = "/venv/bin/bngrad step digits_resnet20.onnx -o step.onnx --momentum 0.9"
    said = call("sh", "-ec", f"cd /trial && {step} && /venv/bin/python readme.py").stdout.split()
    ended = time.monotonic()
    accuracy = float(said[-1])
    seen = (
        f"{ended - begun:.0f} s, of which {_cpu_seconds() - cpu:.0f} s of CPU time: "
        f"pip install {installed - begun:.0f} s, step and 100 training steps {ended - installed:.0f} s; "
        f"accuracy {accuracy:.2f}"
    )
    what = "a fresh environment to a trained network, as in README.md"
    row.add(where, what, seen, good=ended - begun < LIMIT and accuracy > ACCURACY)
    arguments = ["digits_resnet20.onnx", "digits.npz", "training", str(programs.STEPS)]
    call_step = f"cd /trial && /venv/bin/python training_step.py {' '.join(arguments)}"
    programs.note_training(row, where, call("sh", "-ec", call_step, OMP_NUM_THREADS="1").stdout)


def try_musl(row: Row, target: Target, wheel: Path) -> None:
    """The C programs by the loader of Debian's package musl."""
    folder = programs.prepare(target.zig, wheel, WORK / row.target)
    loader = debian("trixie") / "usr" / "lib" / "x86_64-linux-musl" / "libc.so"
    version = re.search(r"Version (\S+)", run(loader, check=False).stderr)

    def start(program: str, *arguments: str, **options: str):
        return run(loader, "--library-path", folder, folder / program, *arguments, **options)

    programs.try_c_programs(row, f"musl {version[1]}", start, target.kernels, programs.SIGNALS)
    row.not_run = "the Python package: PyPI has no onnxruntime for musl"
