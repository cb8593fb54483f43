"""The processes that `bench_kernels.py` takes turns with, and how each is started.

Everything has a process of its own, for libraries that bring threads and allocators do not share one well. What
cannot be started is left out, and said so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bngrad.bench.timing import calls_per_trial
from bngrad.errors import BngradError
from bngrad.oracle import ensure
from bngrad.runtime.native_library import library_path

if TYPE_CHECKING:
    import argparse

    from kernel_serve import Asked

FOLDER = Path(__file__).parent
HEADERS = FOLDER.parents[1] / "ops"
REST_SECONDS = 0.02
"""Between turns: for so long the idle threads of OpenMP spin, and would take the next one's time."""

MEMORY_KEPT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
}
"""glibc keeps freed memory: outputs that an op allocates are then memory that the process has already."""


class LeftOutError(Exception):
    """A way to be timed is missing; the message names it."""


class Worker:
    """A process that prepares a case, and then runs a turn when told."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str] | None = None) -> None:
        self.name = name
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if name == "TensorFlow" else None,
            text=True,
            env=os.environ | (environment or {}),
        )
        self._expect("ready", self._read())

    def prepare(self, asked: Asked) -> list[str]:
        """The names of what it can do; raises `LeftOutError` if that is nothing."""
        words = [asked.dtype, asked.op, int(asked.frozen), asked.layout, *asked.extents]
        kind, _, rest = self._ask("case", *words).partition(" ")
        if kind == "refused":
            raise LeftOutError(f"{self.name}: {rest}")
        self._expect("ways", kind)
        return rest.split()

    def turn(self, way: str, calls: int) -> float:
        """Seconds of a call."""
        time.sleep(REST_SECONDS)
        return float(self._ask("turn", way, calls))

    def end(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it may have ended by itself
            self._process.stdin.close()
        self._process.wait()

    def _ask(self, *words: object) -> str:
        try:
            print(*words, file=self._process.stdin, flush=True)
        except BrokenPipeError:
            raise LeftOutError(f"{self.name} ended") from None
        return self._read()

    def _read(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise LeftOutError(f"{self.name} ended with code {self._process.wait()}")
        return line.strip()

    def _expect(self, expected: str, got: str) -> None:
        if got != expected:
            raise LeftOutError(f"{self.name} said {got!r}, not {expected!r}")


def start_ours(threads: int, folder: Path, before: Path | None = None) -> Worker:
    """Starts ours and the roof and, in the same process and on the same arrays, an older library of ours."""
    program = _compile("bngrad", folder, "Linux or macOS", f"-I{HEADERS}", "-ldl")
    paths = [library_path(), *([before.resolve()] if before else [])]
    return Worker("bngrad", [program, threads, *paths], _environment(threads))


def start_bare(threads: int, folder: Path) -> Worker:
    program = _compile("bare", folder, "a compiler and a CPU with AVX-512", "-march=native")
    return Worker("bare", [program, threads], _environment(threads))


def start(threads: int, folder: Path, options: argparse.Namespace) -> list[Worker]:
    """Starts all that there is; prints what there is not.

    Args:
        threads: The number that each may use.
        folder: For compiled programs; models for ONNX Runtime are expected in ``folder/models``.
        options: The command line's.
    """
    workers = [start_ours(threads, folder, options.before)]
    if options.alone:
        return workers
    environment = _environment(threads)
    both = {"": environment, "_memory_kept": environment | MEMORY_KEPT}
    makers = (
        lambda: start_bare(threads, folder),
        lambda: Worker(
            "oneDNN", [_compile("oneDNN", folder, "libdnnl-dev of Debian", "-ldnnl"), threads], environment
        ),
        lambda: Worker("ORT-training", _ort_command(threads, folder)),
        *_python_workers("PyTorch", "torch", options.torch, threads, both),
        *_python_workers("TensorFlow", "tensorflow", options.tensorflow, threads, {"": environment}),
    )
    for make in makers:
        try:
            workers.append(make())
        except (LeftOutError, OSError, BngradError) as error:
            print(f"Left out: {error}.\n", flush=True)
    return workers


def take_turns(workers: list[Worker], asked: Asked, repeats: int) -> tuple[dict[str, list[float]], list[str]]:
    """Times a case everywhere.

    Returns:
        The seconds of each turn by the name of the way, and what was left out, with the reasons.

    Raises:
        LeftOutError: Ours could not be timed.
    """
    left_out, ways = [], {}
    for worker in workers:
        try:
            for way in worker.prepare(asked):
                ways[f"oneDNN {way}" if worker.name == "oneDNN" else way] = (worker, way)
        except LeftOutError as error:
            left_out.append(str(error))
    calls: dict[str, int] = {}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        # Each round begins with another one, so that none is always next after the same neighbour.
        for name in np.roll(list(ways), turn):
            worker, way = ways.get(name, (None, ""))
            if worker is None:
                continue
            try:
                seconds = worker.turn(way, calls.get(name, 1))
            except LeftOutError as error:
                left_out.append(str(error))
                ways = {other: place for other, place in ways.items() if place[0] is not worker}
                continue
            if turn == 0:  # the first turn shows only how many calls the others have
                calls[name] = calls_per_trial(seconds)
            else:
                times[name].append(seconds)
    if not {"bngrad", "roof"} <= ways.keys():
        raise LeftOutError("; ".join(left_out))
    return {name: times[name] for name in ways}, left_out


def _environment(threads: int) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(threads)}


def _compile(name: str, folder: Path, needs: str, *flags: str) -> Path:
    """A worker in C++; raises `LeftOutError`, which names its requirement, if it cannot be built."""
    source = FOLDER / f"kernel_{name.lower()}_worker.cc"
    program, compiler = folder / source.stem, shutil.which("c++")
    if compiler is None:
        raise LeftOutError(f"{name}: there is no C++ compiler")
    if not program.exists():
        command = [compiler, "-std=c++17", "-O2", "-fopenmp", source, "-o", program, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:200])
            raise LeftOutError(f"{name}: its worker does not compile (it needs {needs}): {reason}")
    return program


def _ort_command(threads: int, folder: Path) -> list[str]:
    return [ensure().python, FOLDER / "kernel_ort_worker.py", threads, library_path(), folder / "models"]


def _python_workers(
    title: str, name: str, python: str | None, threads: int, environments: dict[str, dict[str, str]]
):
    """Functions that start a library's worker in each of some environments, by what they add to its name."""
    interpreter = python or sys.executable
    probe = subprocess.run(
        [interpreter, "-c", f"import importlib.util as u, sys; sys.exit(u.find_spec('{name}') is None)"],
        capture_output=True,
        check=False,
    )
    if probe.returncode != 0:
        print(f"Left out: {title} is not in {interpreter}; --{name} PYTHON names another.\n", flush=True)
        return []
    command = [interpreter, FOLDER / f"kernel_{name}_worker.py", threads]
    return [
        partial(Worker, title, [*command, f"{title}{suffix}"], environment)
        for suffix, environment in environments.items()
    ]
