"""`make networks`: compares networks with PyTorch, and writes docs/reference/networks.md.

The networks are those of torchvision and timm in `rows`, and small ones of `modules`. Results are kept under
build/networks; the next run tries those that are missing, or the named networks again. Exit code 1 if a result is
wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from networks import report
from networks.rows import NETWORKS, WAYS

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KEPT = ROOT / "build" / "networks"
DOCUMENT = ROOT / "docs" / "reference" / "networks.md"
SHARE = HERE.parent / "from_torch" / "share_packages.py"
PACKAGES = ("torch", "torchvision", "timm")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NETWORK", help="try these again; by default, what is missing")
    parser.add_argument("--way", choices=WAYS, action="append", help="only this way")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="the number of networks at a time")
    parser.add_argument("--python", help="an interpreter with PyTorch, torchvision, timm and this project")
    parser.add_argument("--report-only", action="store_true", help="write the page from what is kept")
    options = parser.parse_args()
    names = [network.name for network in NETWORKS]
    if unknown := set(options.names) - set(names):
        parser.error(f"no network {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    if not options.report_only:
        python = options.python or environment()
        tasks = iter(
            [
                (name, way)
                for way in options.way or WAYS
                for name in options.names or names
                if options.names or not _file(name, way).is_file()
            ]
        )
        with ThreadPoolExecutor(options.jobs) as pool:
            for done in [pool.submit(attempt, python, tasks) for _ in range(options.jobs)]:
                done.result()
    results = [kept(network.name, way) for network in NETWORKS for way in WAYS]
    DOCUMENT.write_text(report.page(NETWORKS, results), encoding="utf-8")
    wrong = [
        result
        for result in results
        if result["way"] == WAYS[0] and report.is_tried(result) and not report.is_good(result)
    ]
    for result in wrong:
        print(f"{result['name']}: {report.log_line(result)}")
    print(f"{len(wrong)} networks are neither right nor refused by the name of an op; {DOCUMENT}")
    return 1 if wrong else 0


def environment() -> str:
    """Makes the environment with PyTorch, which also sees the packages of this interpreter; returns its Python."""
    folder = KEPT / "venv"
    python = str(folder / "bin" / "python")
    if not Path(python).is_file():
        venv.create(folder, with_pip=True)
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True
    )
    subprocess.run([python, SHARE, sys.executable], check=True)
    return python


def attempt(python: str, tasks: Iterator[tuple[str, str]]) -> None:
    """Tries networks, one after the other, in an environment; keeps the results."""
    command = [python, str(HERE / "trial.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes) as process:
        for name, way in tasks:
            process.stdin.write(f"{name} {way}\n")
            process.stdin.flush()
            result = json.loads(process.stdout.readline())
            file = _file(name, way)
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(result, indent=2), encoding="utf-8")
            partial.replace(file)
            print(f"{way:12} {name:34} {report.log_line(result)}", file=sys.stderr, flush=True)


def kept(name: str, way: str) -> dict:
    """The result of an earlier run."""
    file = _file(name, way)
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    return {"name": name, "way": way, "outcome": "not tried"}


def _file(name: str, way: str) -> Path:
    return KEPT / "results" / way / f"{name}.json"


if __name__ == "__main__":
    sys.exit(main())
