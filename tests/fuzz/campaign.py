"""A campaign: mutated models, one after the other, against the four commands, in a process that may die.

    python tests/fuzz/campaign.py --count 100000 --seed 1       runs one
    python tests/fuzz/campaign.py --seed 1 --only 4711          runs one case again and says all about it

A worker is a fork that has everything imported. It has so much memory more than it began with, and each case so
much processor time; one that dies, or says nothing for long, is a find, and the next worker goes on behind that
case.
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
from fuzz.judge import Find, judge, prepare
from fuzz.seeds import seeds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Judge = Callable[[Any], tuple[list[Find], Counter[str]]]
    Make = Callable[[int, int], Any]

SECONDS = 20
"""Of processor time that one case may take, all commands and the judging of their outputs."""
MEMORY = 1 << 30
"""How much address space a worker may add to what it began with, in bytes."""
SILENCE = 120
"""Seconds on the clock after which a worker that says nothing hangs: it waits for something."""
SLICE = 5
"""They are counted in slices, of which one is lost when the whole campaign is paused."""
CASES_OF_A_WORKER = 2000
MEMORY_DISK = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - a folder of its own is made there


def run_cases(
    campaign: int, indices: range, judging: Judge = judge, making: Make | None = None
) -> Iterator[tuple[int, list[Find], Counter[str]]]:
    """Yields each case's index, what is wrong with it, and how its commands ended."""
    making = making or make
    position = indices.start
    while position < indices.stop:
        chunk = range(position, min(position + CASES_OF_A_WORKER, indices.stop))
        last, how = chunk.start - 1, None
        for message in _worker(campaign, chunk, judging, making):
            if isinstance(message, str):
                how = message
                break
            last, finds, ends = message
            yield last, [Find(*find) for find in finds], Counter(ends)
        position = last + 1
        if how is not None:
            yield position, [Find("any", "a worker's end", how)], Counter()
            position += 1


def _worker(
    campaign: int, indices: range, judging: Judge, making: Make
) -> Iterator[tuple[int, list[list[str]], dict] | str]:
    """Yields what a worker says after each case, and how it ended if that was before the last."""
    with tempfile.TemporaryDirectory(prefix="bngrad-fuzz-", dir=MEMORY_DISK) as folder:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(campaign, indices, judging, making, Path(folder), writing)
        os.close(writing)
        said = 0
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            rest = b""
            while True:
                ready = any(select.select([pipe], [], [], SLICE)[0] for _ in range(SILENCE // SLICE))
                data = pipe.read(1 << 16) if ready else b""
                if not data:
                    break
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    said += 1
                    yield tuple(json.loads(line))
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if said < len(indices):
            code = os.waitstatus_to_exitcode(status)
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
            yield ended if ready else f"silent for {SILENCE} seconds"


def _work(campaign: int, indices: range, judging: Judge, making: Make, folder: Path, writing: int) -> None:
    """What a worker does; it never returns."""
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        warnings.simplefilter("always")
        prepare(folder)
        # What is there before the first case is no garbage, and much to look through.
        gc.collect()
        gc.freeze()
        limit_memory()
        for index in indices:
            limit_time()
            finds, ends = judging(making(campaign, index))
            os.write(writing, json.dumps([index, finds, ends]).encode() + b"\n")
    except BaseException:  # noqa: BLE001 - a fork must not go on as if it were its parent
        traceback.print_exc()
        os._exit(3)
    os._exit(0)


def limit_memory() -> None:
    """No more than `MEMORY` from here on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time() -> None:
    """No more than `SECONDS` of processor time from here on; the kernel ends a process that needs more."""
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + SECONDS + 1, hard))


@click.command()
@click.option("--count", default=1000, show_default=True, help="How many models.")
@click.option("--seed", "campaign", default=1, show_default=True)
@click.option("--start", default=0, show_default=True, help="The first case's number.")
@click.option("--only", type=int, help="Run this case alone and tell of it; --keep its files.")
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for the files of --only.")
@click.option("--finds", "record", type=click.Path(path_type=Path), help="File to which finds are added.")
def main(campaign: int, count: int, start: int, only: int | None, keep: Path | None, record: Path | None) -> None:
    """Run a campaign; exit 1 if it finds anything."""
    warnings.filterwarnings("ignore", message=".*fork.*", category=DeprecationWarning)
    if only is not None:
        _tell(campaign, only, keep)
        return
    number = sum(map(len, seeds().values()))
    print(f"campaign {campaign}: {count} models from {number} seeds, from case {start} on", flush=True)
    began, ends, done, found = time.monotonic(), Counter(), 0, 0
    for index, finds, how in run_cases(campaign, range(start, start + count)):
        done += 1
        ends.update(how)
        for find in finds:
            found += 1
            line = f"FIND --seed {campaign} --only {index}: {find.command}: {find.what}: {find.detail[:400]}"
            print(" ".join(line.split()), flush=True)
            if record is not None:
                with record.open("a") as file:
                    file.write(json.dumps([campaign, index, make(campaign, index).story, *find]) + "\n")
        if done % 1000 == 0:
            print(f"{done} models, {found} finds, {done / (time.monotonic() - began):.0f} a second", flush=True)
    for end, number in sorted(ends.items()):
        print(f"{number:8} {end}")
    seconds = time.monotonic() - began
    print(f"{done} models of {count} in {seconds:.0f} s ({done / seconds:.0f} a second), {found} finds")
    sys.exit(1 if found or done != count else 0)


def _tell(campaign: int, index: int, keep: Path | None) -> None:
    case = make(campaign, index)
    print(f"{case.story}\noutput exists before: {case.output_exists}")
    folder = keep if keep is not None else Path(tempfile.mkdtemp(prefix="bngrad-fuzz-"))
    folder.mkdir(exist_ok=True)
    for name, content in (("model.onnx", case.content), ("weights.npz", case.weights)):
        (folder / name).write_bytes(content)
    for arguments in case.commands:
        print(f"(cd {folder} && bngrad {' '.join(arguments)})")
    sys.stdout.flush()
    for one, finds, ends in run_cases(campaign, range(index, index + 1)):
        print(one, dict(ends))
        for find in finds:
            print(f"FIND {find.command}: {find.what}\n    {find.detail}")


if __name__ == "__main__":
    main()
