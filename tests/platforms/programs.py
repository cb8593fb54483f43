"""The programs that every platform runs, with the expected results."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from harness import ROOT, Row, compile_program, unpack

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable
    from pathlib import Path

    Start = Callable[..., "subprocess.CompletedProcess[str]"]
    """start(program, *arguments, **environment) runs a program on the platform."""

SOURCES = (
    ROOT / "tests" / "ops" / "c_caller.c",
    ROOT / "tests" / "ops" / "fault.c",
    ROOT / "tests" / "platforms" / "digest.c",
)
SIGNALS = {"abort": "SIGABRT", "null": "SIGSEGV", "overflow": "SIGSEGV", "illegal": "SIGILL"}
EXCEPTIONS = {
    "abort": "abort",
    "null": "access violation",
    "overflow": "stack overflow",
    "illegal": "illegal instruction",
}
STEPS = 10
FIRST_STEPS, TOLERANCE = 5, 1e-5
"""The largest relative difference of the first losses, where ONNX Runtime's convolutions sum in another order.

The difference grows with each step; that of all steps is reported, too.
"""


def prepare(target: str, wheel: Path, folder: Path) -> Path:
    """Unpacks a wheel's library and compiles the C programs against it, all in one folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (library,) = unpack(wheel, folder / "wheel").iterdir()
    for source in SOURCES:
        compile_program(target, source, library, folder)
    return folder


def try_c_programs(row: Row, where: str, start: Start, sets: Iterable[str], faults: dict[str, str]) -> None:
    """Runs c_caller and digest with each instruction set, and every fault of the crash handler."""
    hashes = {}
    for isa in sets:
        done = start("c_caller", check=False, BNGRAD_ISA=isa)
        if "is not supported" in done.stdout:
            row.add(where, f"C ABI, {isa}", "the CPU lacks it", good=True)
            continue
        hashes[isa] = start("digest", check=False, BNGRAD_ISA=isa).stdout.strip().removeprefix(isa).strip()
        row.add(where, f"C ABI, {isa}", f"exit code {done.returncode}", good=done.returncode == 0)
    expected = row.reference.setdefault("digest", next(iter(hashes.values())))
    same = set(hashes.values()) == {expected}
    row.add(
        where,
        f"bits of every op, {', '.join(hashes)}",
        "the same" if same else str(hashes),
        good=same and bool(expected),
    )
    wrong = []
    for fault, name in faults.items():
        done = start("fault", fault, "message", "7", check=False)
        if done.returncode != 7 or f"message ({name})" not in done.stderr:
            wrong.append(f"{fault}: exit code {done.returncode}, {done.stderr.strip()[-100:]!r}")
    seen = "; ".join(wrong) or f"exit code and message of {', '.join(faults.values())}"
    row.add(where, "crash handler", seen, good=not wrong)


def write_digits(folder: Path) -> None:
    """Puts the network, the images and the training script into a folder."""
    import numpy as np
    from sklearn.datasets import load_digits

    shutil.copyfile(ROOT / "models" / "digits_resnet20.onnx", folder / "digits_resnet20.onnx")
    for script in ("training_step.py", "windows_process.py"):
        shutil.copyfile(ROOT / "tests" / "platforms" / script, folder / script)
    digits = load_digits()
    images = digits.images[:, None].astype(np.float32) / 16
    np.savez(folder / "digits.npz", images=images, labels=digits.target.astype(np.int64))


def note_training(row: Row, where: str, output: str) -> None:
    """Records a run of training_step.py from its output, compared with that of linux-x86_64."""
    document = json.loads(output.strip().splitlines()[-1])
    versions = f"Python {document['python']}, onnxruntime {document['onnxruntime']}, {document['isa']}"
    reference = json.loads(row.reference.setdefault("training", json.dumps(document)))
    what = f"`bngrad step` and {STEPS} steps of `Trainer`: {versions}"
    if document["losses"] == reference["losses"] and document["weights"] == reference["weights"]:
        row.add(where, what, "losses and trained weights have the same bits", good=True)
        return
    pairs = zip(document["losses"], reference["losses"], strict=True)
    differences = [abs(actual - expected) / abs(expected) for actual, expected in pairs]
    first = max(differences[:FIRST_STEPS])
    seen = (
        f"losses of {FIRST_STEPS} steps within {first:.0e} of linux-x86_64's, of all within {max(differences):.0e}"
    )
    row.add(where, what, seen, good=first < TOLERANCE)
