"""Linux AArch64, in QEMU's user-mode emulation: the C programs, and the wheel in Debian's Python for arm64."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import programs
from harness import WORK, Row, debian, run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from ops.wheels.targets import Target

SETTINGS = {
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}


def try_glibc(row: Row, target: Target, wheel: Path) -> None:
    """The C programs, and the wheel in Debian's Python. QEMU 7.2 would crash in ONNX Runtime's own library."""
    emulator, root = _emulator(), debian("bookworm", "arm64")
    folder = programs.prepare(target.zig, wheel, WORK / row.target)
    programs.write_digits(folder)
    where = f"{_version(emulator)}, Debian bookworm"

    def start(program: str, *arguments: str, **options: str):
        return _emulate(emulator, root, folder / program, *arguments, **options)

    programs.try_c_programs(row, where, start, target.kernels, programs.SIGNALS)
    python, site = root / "usr" / "bin" / "python3", folder / "site"
    (pip,) = (root / "usr" / "share" / "python-wheels").glob("pip-*.whl")
    _emulate(emulator, root, python, pip / "pip", "install", "--quiet", "--target", site, wheel, **SETTINGS)
    row.add(where, "pip install of the wheel", "chose and installed it with its dependencies", good=True)
    arguments = [folder / name for name in ("training_step.py", "digits_resnet20.onnx", "digits.npz", "training")]
    python_path = {"PYTHONPATH": str(site), **SETTINGS}
    done = _emulate(emulator, root, python, *arguments, str(programs.STEPS), **python_path)
    programs.note_training(row, where, done.stdout)


def try_musl(row: Row, target: Target, wheel: Path) -> None:
    """The C programs by the loader of Debian's package musl."""
    emulator, root = _emulator(), debian("bookworm", "arm64")
    folder = programs.prepare(target.zig, wheel, WORK / row.target)
    loader = root / "usr" / "lib" / "aarch64-linux-musl" / "libc.so"

    def start(program: str, *arguments: str, **options: str):
        return _emulate(emulator, root, loader, "--library-path", folder, folder / program, *arguments, **options)

    version = re.search(r"Version (\S+)", _emulate(emulator, root, loader, check=False).stderr)
    programs.try_c_programs(
        row, f"{_version(emulator)}, musl {version[1]}", start, target.kernels, programs.SIGNALS
    )
    row.not_run = "the Python package: PyPI has no onnxruntime for musl"


def _emulator() -> Path:
    return debian("trixie") / "usr" / "bin" / "qemu-aarch64"


def _version(emulator: Path) -> str:
    return "QEMU " + re.search(r"version (\S+)", run(emulator, "--version").stdout)[1]


def _emulate(
    emulator: Path, root: Path, program: Path, *arguments: str | Path, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    options = [part for name, value in environment.items() for part in ("-E", f"{name}={value}")]
    return run(emulator, "-L", root, *options, program, *arguments, check=check, seconds=1800)
