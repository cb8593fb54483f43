"""Tests and measures bngrad on a GPU, in at most six minutes: ``python tests/gpu/run_gpu.py`` or ``make gpu``.

It needs bngrad's wheel with what it depends on, onnxruntime-gpu and PyTorch, and no network. They are those of the
interpreter, and before them those of the folders in ``BNGRAD_SITES``, separated as in PATH. Every part runs in a
process of its own, with a limit; after a failure the next part runs. Results are written to ``results.json`` and
``results.md``. The exit code is 1 if a check failed or a part did not end.

``--device cpu --quick`` tries the programs themselves where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
PREFIX = "RESULT "
NETWORKS = ("resnet50", "mobilenet_v2", "densenet121")
PRECISIONS = ("float32", "tf32", "bfloat16", "float16")
SYSTEMS = (
    "torch",
    "torch --channels-last",
    "bngrad",
    "bngrad --cuda-graph",
    "bngrad --channels-last",
    "bngrad --channels-last --cuda-graph",
)
QUICK_SIZES = ("--small", "--batch", 4, "--pixels", 32, "--seconds", 0.2)
KINDS = ("float", "double", "float16", "float16-float", "bfloat16", "bfloat16-float")
"""The types of an op: all values of one, or the data only, with parameters and statistics in float."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Tests and measures bngrad on a GPU.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="small networks, few shapes: no figure counts")
    parser.add_argument("--seconds", type=float, default=330, help="no part begins later; a running one is ended")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--only", nargs="*", help="parts of this run: environment, ops, training, kernels, steps")
    parser.add_argument("--networks", nargs="*", default=NETWORKS, help=f"of the steps: {', '.join(NETWORKS)}")
    parser.add_argument("--systems", nargs="*", default=SYSTEMS, help=f"of the steps: {', '.join(SYSTEMS)}")
    parser.add_argument("--precisions", nargs="*", default=PRECISIONS, help=f"{', '.join(PRECISIONS)}")
    options = parser.parse_args()
    if options.quick:
        options.networks, options.precisions = options.networks[:1], options.precisions[:1]
    options.out.mkdir(parents=True, exist_ok=True)
    run = Run(options)
    parts = {name: part for name, part in PARTS.items() if not options.only or name in options.only}
    with tempfile.TemporaryDirectory() as folder:
        if run_steps in parts.values():
            run.start_exports(Path(folder))
        for part in parts.values():
            part(run, Path(folder))
    run.write()
    print(f"{len(run.failed)} failures; {options.out}/results.md", flush=True)
    for line in run.failed:
        print(f"FAILED {line}"[:400])
    return 1 if run.failed else 0


class Run:
    """The results of a run, and the processes that make them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device, self.quick = options.device, options.quick
        self.sizes = QUICK_SIZES if options.quick else ()
        self.end = time.monotonic() + options.seconds
        self.tables: dict[str, list[dict]] = {}
        self.failed: list[str] = []
        self.environment = environment(options.device)
        with self.start("-c", "import torch") as process:
            process.communicate()
        self.has_torch = process.returncode == 0
        self.exports: list[subprocess.Popen[str]] = []
        self.log = options.out / "log.txt"
        self.log.write_text("", encoding="utf-8")

    def start(self, *command: object) -> subprocess.Popen[str]:
        """Starts Python, in this folder."""
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=HERE,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def start_exports(self, folder: Path) -> None:
        """Starts to write the training steps, on the CPU, while the parts before them use the GPU."""
        if self.has_torch:
            precisions = dict.fromkeys(p.replace("tf32", "float32") for p in self.options.precisions)
            pairs = [(network, precision) for network in self.options.networks for precision in precisions]
            ours = [system for system in self.options.systems if system.startswith("bngrad")]
            layouts = dict.fromkeys(("--channels-last",) * ("--channels-last" in system) for system in ours)
            for pair in pairs:
                for layout in layouts:
                    command = ("measure_steps.py", "prepare", *pair, folder, *layout, *self.sizes)
                    self.exports.append(self.start(*command))

    def finish(self, process: subprocess.Popen[str], limit: float) -> None:
        """Waits for a program, and takes its results."""
        name, start = " ".join(Path(word).name for word in process.args[1:]), time.monotonic()
        try:
            text, _ = process.communicate(timeout=max(min(limit, self.end - time.monotonic()), 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            self.failed.append(f"{name}: ended at its limit")
        else:
            if process.returncode:
                last = " | ".join(text.strip().splitlines()[-3:])
                self.failed.append(f"{name}: exit code {process.returncode}: {last}")
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n===== {name}\n{text}")
        print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
        for line in text.splitlines():
            if line.startswith(PREFIX):
                self.add(json.loads(line[len(PREFIX) :]))

    def run(self, *command: object, limit: float) -> None:
        """Runs a program if there is time left."""
        if self.end - time.monotonic() < 5:
            self.skip(" ".join(map(str, command)), "no time is left")
            return
        self.finish(self.start(*command), limit)

    def skip(self, name: str, reason: str) -> None:
        self.add({"table": "skipped", "part": name, "reason": reason})

    def add(self, row: dict) -> None:
        table = row.pop("table")
        self.tables.setdefault(table, []).append(row)
        if row.get("passed") is False:
            self.failed.append(f"{row['check']}: {row['note']}")

    def write(self) -> None:
        """Writes the results as JSON and as tables."""
        out = self.options.out
        document = {"device": self.device, "quick": self.quick, "tables": self.tables, "failed": self.failed}
        (out / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        text = [f"# {self.device}{', quick: no figure counts' if self.quick else ''}"]
        for name, rows in self.tables.items():
            columns = list(dict.fromkeys(key for row in rows for key in row))
            text += ["", f"## {name}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
            text += [f"| {' | '.join(_cell(row.get(column)) for column in columns)} |" for row in rows]
        (out / "results.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, list):
        return " ".join(map(_cell, value))
    return "" if value is None else str(value).replace("|", "\\|")


def environment(device: str) -> dict[str, str]:
    """The environment of the programs: the folders given, and NVIDIA's libraries in them."""
    sites = [site for site in os.environ.get("BNGRAD_SITES", "").split(os.pathsep) if site]
    folders = [Path(site) for site in [*sites, *sys.path] if site]
    libraries = [str(path) for folder in folders for path in folder.glob("nvidia/*/lib")]
    shared = str(HERE.parent)  # what tests share
    more = {"PYTHONPATH": [*sites, shared, os.environ.get("PYTHONPATH", "")]}
    if not device.startswith("cpu"):
        more["LD_LIBRARY_PATH"] = [*dict.fromkeys(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return os.environ | {name: os.pathsep.join(filter(None, paths)) for name, paths in more.items()}


def run_environment(run: Run, _folder: Path) -> None:
    run.run("describe.py", run.device, limit=60)
    if smi := shutil.which("nvidia-smi"):
        query = "name,driver_version,memory.total,clocks.max.sm"
        result = subprocess.run(
            [smi, f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
        run.add({"table": "environment", "what": query, "is": result.stdout.strip()})


def run_ops(run: Run, _folder: Path) -> None:
    """Checks all types at once: most of the time is that of the references, on the CPU."""
    kinds = KINDS[:1] if run.quick else KINDS
    processes = [run.start("check_ops.py", run.device, kind, *_quick(run)) for kind in kinds]
    convolutions = ("check_conv_grad.py", "check_conv_channels_last.py")
    processes += [run.start(program, run.device, *_quick(run)) for program in convolutions]
    for process in processes:
        run.finish(process, limit=90)


def run_training(run: Run, _folder: Path) -> None:
    run.run("check_training.py", run.device, *_quick(run), limit=90)


def run_kernels(run: Run, _folder: Path) -> None:
    if not run.has_torch:
        run.skip("kernels", "PyTorch is missing")
        return
    run.run("measure_ops.py", run.device, *_quick(run), limit=60)


def run_steps(run: Run, folder: Path) -> None:
    """Measures one network after another."""
    if not run.has_torch:
        run.skip("steps", "PyTorch is missing")
        return
    for process in run.exports:
        run.finish(process, limit=100)
    for network in run.options.networks:
        for precision in run.options.precisions:
            for system in run.options.systems:
                name, *more = system.split()
                command = ("measure_steps.py", name, network, precision, folder, "--device", run.device)
                if "--cuda-graph" not in more or not run.device.startswith("cpu"):
                    run.run(*command, *more, *run.sizes, limit=40)
    run.tables["steps over PyTorch"] = list(ratios(run.tables.get("steps", [])))


def ratios(rows: list[dict]):
    """The best times of both, and the largest relative difference of the first losses."""
    for network, precision in dict.fromkeys((row["network"], row["precision"]) for row in rows):
        same = [row for row in rows if (row["network"], row["precision"]) == (network, precision)]
        ours, theirs = (
            min((row for row in same if row["system"].startswith(system)), key=lambda row: row["ms"], default=None)
            for system in ("bngrad", "torch")
        )
        if ours and theirs:
            pairs = zip(ours["losses"], theirs["losses"], strict=True)
            yield {
                "network": network,
                "precision": precision,
                "bngrad ms": ours["ms"],
                "torch ms": theirs["ms"],
                "ratio": ours["ms"] / theirs["ms"],
                "memory ratio": ours["gib"] / theirs["gib"] if ours["gib"] and theirs["gib"] else None,
                "losses differ by": max(abs(a / b - 1) for a, b in pairs),
            }


def _quick(run: Run) -> list[str]:
    return ["--quick"] if run.quick else []


PARTS = {
    "environment": run_environment,
    "ops": run_ops,
    "training": run_training,
    "kernels": run_kernels,
    "steps": run_steps,
}

if __name__ == "__main__":
    sys.exit(main())
