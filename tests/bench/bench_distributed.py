"""A synchronized training step on one rank and on two of one machine, beside the step without `--sync`.

    python tests/bench/bench_distributed.py [digits | resnet50] [--batch ROWS] [--rounds ROUNDS]

All ways take turns, each in processes of its own; ROWS is the batch of a rank. Printed are seconds a step, and for
the fastest step those in collective operations and in batch norms. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import bngrad
import trainer_worker
from models import light
from mpi_run import job_environment, mpich

WORKER = Path(__file__).with_name("distributed_worker.py")


class Way(NamedTuple):
    """Ranks (0: a process without MPI), threads of each, whether they are synchronized, batches of a rank."""

    ranks: int
    threads: int
    sync: bool
    batches: int = 1


WAYS = {
    "without --sync, one process, one thread": Way(0, 1, sync=False),
    "--sync, one rank, one thread": Way(1, 1, sync=True),
    "--sync, two ranks, one thread each": Way(2, 1, sync=True),
    "without --sync, one process, two threads, twice the batch": Way(0, 2, sync=False, batches=2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", nargs="?", choices=["digits", "resnet50"], default="digits")
    parser.add_argument("--batch", type=int, help="rows of each rank; 32 digits, or 4 images of ResNet-50")
    parser.add_argument("--steps", type=int, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = options.batch or {"digits": 32, "resnet50": 4}[options.network]
    steps = options.steps or {"digits": 50, "resnet50": 3}[options.network]
    runs_by_way: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        prepare(options.network, rows, Path(folder))
        for _ in range(options.rounds):
            for name, way in WAYS.items():
                runs_by_way[name].extend(run(way, Path(folder), steps))
    print(f"{options.network}, {rows} rows a rank, load average {os.getloadavg()[0]:.1f}")
    print("| | s a step: median (quartiles) | fastest | collective operations | batch norms |")
    print("|---|---|---|---|---|")
    for name, runs in runs_by_way.items():
        low, median, high = np.quantile([run["time"] for run in runs], [0.25, 0.5, 0.75])
        fastest = min(runs, key=lambda run: run["time"])
        cells = " | ".join(f"{fastest[kind]:.4f}" for kind in ("time", "collectives", "batch norms"))
        print(f"| {name} | {median:.4f} ({low:.4f}-{high:.4f}) | {cells} |")


def prepare(network: str, rows: int, folder: Path) -> None:
    """Writes both steps, and data of one and of two batches."""
    if network == "digits":
        model, data = trainer_worker.digits()
        data = {name: np.concatenate([array] * (2 * rows // len(array) + 1)) for name, array in data.items()}
    else:
        onnx.save(light.prepare(network), folder / "forward.onnx")
        model, data = trainer_worker.random_images(folder / "forward.onnx", 2 * rows)
    for sync in (False, True):
        step = bngrad.training_step(model, optimizer=bngrad.SGD(momentum=0.9), sync=sync)
        step.save(folder / f"sync_{sync}.onnx")
    for batches in (1, 2):
        np.savez(folder / f"data_{batches}.npz", **{name: array[: batches * rows] for name, array in data.items()})


def run(way: Way, folder: Path, steps: int) -> list[dict[str, float]]:
    """The times of the steps of one way, and of their ops."""
    mpi = mpich()
    words = [sys.executable, WORKER, folder / f"sync_{way.sync}.onnx", folder / f"data_{way.batches}.npz"]
    words += ["--steps", steps, "--threads", way.threads, "--ranks", way.ranks]
    if way.ranks:
        words = [mpi.mpiexec, "-n", way.ranks, *words]
    command = [str(word) for word in words]
    environment = job_environment(mpi, folder)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


if __name__ == "__main__":
    main()
