"""Fuzzes the commands with mutated models, in worker processes that may crash.

    python tests/fuzz/campaign.py --count 100000 --seed 1       runs a campaign
    python tests/fuzz/campaign.py --seed 1 --only 4711          runs one case again, with details

A worker is a fork of a process that has imported everything. Its additional memory and the processor time of each
case are limited. A worker that crashes or hangs is a finding, and the next worker continues after that case.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz.cases import make
from fuzz.judge import Finding, judge, prepare
from fuzz.seeds import seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Judge = Callable[[Any], tuple[list[Finding], Counter[str]]]
    Make = Callable[[int, int], Any]

SECONDS = 20
"""The limit on the processor time of a case, for all commands and the checks of their outputs."""
MEMORY = 1 << 30
"""The limit on the additional address space of a worker, in bytes."""
TIMEOUT = 120
"""Seconds without a result after which a worker is considered to hang."""
POLL_SECONDS = 5
"""The timeout is counted in steps of this length, so that pausing the campaign costs only one step."""
CASES_PER_WORKER = 2000
MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - used with a temporary folder


def run_cases(
    campaign: int, indices: range, judging: Judge = judge, making: Make | None = None
) -> Iterator[tuple[int, list[Finding], Counter[str]]]:
    """Yields the index of each case, its findings, and the numbers of exit codes by command."""
    making = making or make
    position = indices.start
    while position < indices.stop:
        chunk = range(position, min(position + CASES_PER_WORKER, indices.stop))
        last, end = chunk.start - 1, None
        for message in _worker(campaign, chunk, judging, making):
            if isinstance(message, str):
                end = message
                break
            last, findings, ends = message
            yield last, [Finding(*finding) for finding in findings], Counter(ends)
        position = last + 1
        if end is not None:
            yield position, [Finding("any", "worker died", end)], Counter()
            position += 1


def _worker(
    campaign: int, indices: range, judging: Judge, making: Make
) -> Iterator[tuple[int, list[list[str]], dict] | str]:
    """Yields the result of each case, and how the worker ended if not all cases ran."""
    with tempfile.TemporaryDirectory(prefix="bngrad-fuzz-", dir=MEMORY_DISK) as folder:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(campaign, indices, judging, making, Path(folder), writing)
        os.close(writing)
        results = 0
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            rest = b""
            while True:
                ready = any(select.select([pipe], [], [], POLL_SECONDS)[0] for _ in range(TIMEOUT // POLL_SECONDS))
                data = pipe.read(1 << 16) if ready else b""
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    results += 1
                    yield tuple(json.loads(line))
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if results < len(indices):
            code = os.waitstatus_to_exitcode(status)
            end = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            yield end if ready else f"timeout after {TIMEOUT} seconds"


def _work(campaign: int, indices: range, judging: Judge, making: Make, folder: Path, writing: int) -> None:
    """Runs cases in a worker process; never returns."""
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        warnings.simplefilter("always")
        prepare(folder)
        # Objects from before the first case are never garbage, and scanning them is slow.
        gc.collect()
        gc.freeze()
        limit_memory()
        for index in indices:
            limit_time()
            findings, ends = judging(making(campaign, index))
            os.write(writing, json.dumps([index, findings, ends]).encode() + b"\n")
    except BaseException:  # noqa: BLE001 - the fork must not continue with its parent's code
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def limit_memory() -> None:
    """Limits the additional memory of this process to `MEMORY`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time() -> None:
    """Limits the processor time of this process from now on to `SECONDS`; the kernel kills it after that."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS + 1, hard))


@click.command()
@click.option("--count", default=1000, show_default=True, help="Number of models.")
@click.option("--seed", "campaign", default=1, show_default=True)
@click.option("--start", default=0, show_default=True, help="Number of the first case.")
@click.option("--only", type=int, help="Run only this case and show details; --keep keeps its files.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the files of --only.")
@click.option("--findings", "record", type=click.Path(path_type=Path), help="Append findings to this file.")
def main(campaign: int, count: int, start: int, only: int | None, keep: Path | None, record: Path | None) -> None:
    """Run a campaign; exit with 1 if there are findings."""
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    if only is not None:
        _report(campaign, only, keep)
        return
    number = sum(map(len, seeds().values()))
    if count > CASES_PER_WORKER:
        _build_seeds()
    print(f"campaign {campaign}: {count} models from {number} seeds, starting with case {start}", flush=True)
    began, ends, done, total = time.monotonic(), Counter(), 0, 0
    for index, findings, exits in run_cases(campaign, range(start, start + count)):
        done += 1
        ends.update(exits)
        for finding in findings:
            total += 1
            where = f"--seed {campaign} --only {index}: {finding.command}"
            print(" ".join(f"FINDING {where}: {finding.what}: {finding.detail[:400]}".split()), flush=True)
            if record is not None:
                with record.open("a") as file:
                    file.write(json.dumps([campaign, index, make(campaign, index).story, *finding]) + "\n")
        if done % 1000 == 0:
            rate = done / (time.monotonic() - began)
            print(f"{done} models, {total} findings, {rate:.0f} per second", flush=True)
    for end, number in sorted(ends.items()):
        print(f"{number:8} {end}")
    seconds = time.monotonic() - began
    print(f"{done} models of {count} in {seconds:.0f} s ({done / seconds:.0f} per second), {total} findings")
    sys.exit(1 if total or done != count else 0)


def _build_seeds() -> None:
    """Builds all seeds, so that no worker has to."""
    for group in seeds().values():
        for seed in group:
            seed()


def _report(campaign: int, index: int, keep: Path | None) -> None:
    """Runs one case and prints its mutations, commands and findings."""
    case = make(campaign, index)
    print(f"{case.story}\noutput exists before: {case.output_exists}")
    folder = keep if keep is not None else Path(tempfile.mkdtemp(prefix="bngrad-fuzz-"))
    folder.mkdir(exist_ok=True)
    for name, content in (("model.onnx", case.content), ("weights.npz", case.weights)):
        (folder / name).write_bytes(content)
    for arguments in case.commands:
        print(f"(cd {folder} && bngrad {' '.join(arguments)})")
    sys.stdout.flush()
    for _, findings, ends in run_cases(campaign, range(index, index + 1)):
        print(index, dict(ends))
        for finding in findings:
            print(f"FINDING {finding.command}: {finding.what}\n    {finding.detail}")


if __name__ == "__main__":
    main()
