"""A campaign of random graphs over all gradient rules, in processes that may die.

    python tests/gradient_fuzz/campaign.py --count 10000 --seed 1       runs one
    python tests/gradient_fuzz/campaign.py --seed 1 --only 4711         runs one case again and shows it, minimized

It prints the outcomes of the graphs, and the number of graphs for each rule.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import onnx

from fuzz.campaign import run_cases
from fuzz.judge import Finding
from gradient_fuzz.cases import make, on_the_way, rules
from gradient_fuzz.judge import judge
from gradient_fuzz.minimize import minimized
from gradient_fuzz.running import crashes_forward
from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gradient_fuzz.cases import Case


_chosen: list[tuple[str, str]] = []
"""The rules that graphs are made for, in turn; all if it is empty."""


def making(campaign: int, index: int) -> Case | None:
    """The case of a number; None where nothing could be drawn."""
    try:
        return make(campaign, index, _chosen[index % len(_chosen)] if _chosen else None)
    except NotDrawableError:
        return None


def judging(case: Case | None) -> tuple[list[Finding], Counter[str]]:
    """Returns the finds of a case, its outcome, and the rules that were used, as ``rule <domain>.<op>``."""
    warnings.simplefilter("ignore")
    if case is None:
        return [], Counter(["not drawable"])
    verdict = judge(case)
    ends = Counter({verdict.end: 1, "directions with a kink": verdict.kinks})
    if verdict.end.startswith("right"):
        ends.update({f"rule {domain}.{op_type}": 1 for domain, op_type in on_the_way(case)})
    return [Finding(case.story, find.what, find.detail) for find in verdict.finds], +ends


def run(campaign: int, indices: range) -> Iterator[tuple[int, list[Finding], Counter[str]]]:
    """Yields the number of each case, its finds, and its outcome."""
    for index, finds, ends in run_cases(campaign, indices, judging, making):
        if any(find.what == "worker died" for find in finds) and crashes_forward(making(campaign, index)):
            yield index, [], Counter(["ONNX Runtime crashes at the forward graph"])
        else:
            yield index, finds, ends


def _in_processes(
    campaign: int, start: int, count: int, jobs: int
) -> Iterator[tuple[int, list[Finding], Counter[str]]]:
    """Yields the same, from several processes of this program."""
    share = -(-count // jobs)
    results: list[tuple[int, list[Finding], Counter[str]]] = []
    ready = threading.Semaphore(0)

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            index, finds, ends = json.loads(line)
            results.append((index, [Finding(*find) for find in finds], Counter(ends)))
            ready.release()
        process.wait()
        ready.release()

    threads = []
    for begin in range(start, start + count, share):
        number = min(share, start + count - begin)
        arguments = [
            "--seed",
            str(campaign),
            "--start",
            str(begin),
            "--count",
            str(number),
            "--jobs",
            "1",
            "--json",
        ]
        arguments += [word for _, op_type in _chosen for word in ("--rule", op_type)]
        process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
        threads.append(threading.Thread(target=read, args=(process,), daemon=True))
        threads[-1].start()
    ended = taken = 0
    while ended < len(threads):
        ready.acquire()
        if taken < len(results):
            yield results[taken]
            taken += 1
        else:
            ended += 1


@click.command()
@click.option("--count", default=1000, show_default=True, help="How many graphs.")
@click.option("--seed", "campaign", default=1, show_default=True)
@click.option("--start", default=0, show_default=True, help="The first case's number.")
@click.option("--jobs", default=os.cpu_count() or 1, help="How many processes.")
@click.option(
    "--rule", "op_types", multiple=True, help="An op: graphs are made for its rule alone. Several in turn."
)
@click.option("--only", type=int, help="Run this case alone and show it, minimized.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON for each case, for the program itself.")
@click.option("--record", type=click.Path(path_type=Path), help="File to which finds are added, as JSON.")
def main(
    campaign: int,
    count: int,
    start: int,
    jobs: int,
    op_types: tuple[str, ...],
    only: int | None,
    as_json: bool,
    record: Path | None,
) -> None:
    """Run a campaign; exit 1 if it finds anything."""
    warnings.simplefilter("ignore")
    _chosen.extend(key for key in rules() if key[1] in op_types)
    if only is not None:
        _tell(campaign, only)
        return
    if as_json:
        for index, finds, ends in run(campaign, range(start, start + count)):
            print(json.dumps([index, finds, ends]), flush=True)
        return
    began = time.monotonic()
    cases = (
        run(campaign, range(start, start + count)) if jobs == 1 else _in_processes(campaign, start, count, jobs)
    )
    done, find_count, ends = _told(campaign, cases, record, began)
    for line in table(ends):
        print(line)
    seconds = time.monotonic() - began
    print(f"{done} graphs of {count} in {seconds:.0f} s ({done / seconds:.0f} a second), {find_count} finds")
    sys.exit(1 if find_count or done != count else 0)


def _told(
    campaign: int, cases: Iterable[tuple[int, list[Finding], Counter[str]]], record: Path | None, began: float
) -> tuple[int, int, Counter[str]]:
    ends: Counter[str] = Counter()
    done = find_count = 0
    for index, finds, how in cases:
        done += 1
        ends.update(how)
        for find in finds:
            find_count += 1
            line = f"FINDING --seed {campaign} --only {index}: {find.command}: {find.what}: {find.detail[:400]}"
            print(" ".join(line.split()), flush=True)
            if record is not None:
                with record.open("a") as file:
                    file.write(json.dumps([campaign, index, *find]) + "\n")
        if done % 1000 == 0:
            print(
                f"{done} graphs, {find_count} finds, {done / (time.monotonic() - began):.0f} a second", flush=True
            )
    return done, find_count, ends


def table(ends: Counter[str]) -> Iterator[str]:
    """Lines: the outcomes of graphs, and the right graphs by rule."""
    for end, number in sorted(ends.items(), key=lambda item: (-item[1], item[0])):
        if not end.startswith("rule "):
            yield f"{number:8} {end}"
    counts = {key: ends[f"rule {key[0]}.{key[1]}"] for key in rules()}
    called = sorted(counts, key=lambda key: (counts[key], key))
    yield "graphs that were right, by rule:"
    names = [f"{'.'.join(filter(None, key))} {counts[key]}" for key in called]
    for begin in range(0, len(names), 6):
        yield "    " + ", ".join(names[begin : begin + 6])


def _tell(campaign: int, index: int) -> None:
    case = making(campaign, index)
    if case is None:
        print("nothing could be drawn")
        return
    print(case.story, "wrt", *case.wrt, "frozen", *case.frozen, "training", *case.training)
    print(onnx.printer.to_text(case.model), flush=True)
    for _, finds, ends in run(campaign, range(index, index + 1)):
        print(dict(ends))
        for find in finds:
            print(f"FINDING {find.what}: {find.detail}", flush=True)
    smaller = minimized(case)
    if smaller is not None:
        print("minimized: wrt", *smaller.wrt)
        print(onnx.printer.to_text(smaller.model))
        for name, array in smaller.feeds.items():
            print(name, array.tolist())
        print(judge(smaller, range(4)))


if __name__ == "__main__":
    main()
