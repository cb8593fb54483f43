"""A campaign of equivalent spellings of batch norm, and of near misses, against the recognizing pass.

    python tests/spellings/campaign.py --count 20000 --seed 1             runs both campaigns
    python tests/spellings/campaign.py --near-misses --seed 1 --only 4711 runs one case again, and shows it
    python tests/spellings/campaign.py --write                            writes docs/measurements/spellings.md

All spellings must be taken, and no near miss.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import onnx

from spellings.cases import make_near_miss, make_spelling
from spellings.judge import Verdict, judge
from spellings.tables import page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spellings.cases import Case

CHUNK = 50
"""The number of cases of one task of a process."""
MOST_SHOWN = 200
MOST_STEPS = 40
MAKERS: dict[str, Callable[..., Case]] = {"spellings": make_spelling, "near misses": make_near_miss}


def run_case(
    what: str, seed: int, index: int, *arguments: int, generator_only: bool = False
) -> tuple[Verdict, Case | None]:
    """Builds and judges a case; an exception is a find."""
    case = None
    try:
        case = MAKERS[what](seed, index, *arguments)
        return judge(case, index, generator_only=generator_only), case
    except Exception as error:  # noqa: BLE001 - every exception is a find
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {error}"
        return Verdict("raised", [message]), case


def run_chunk(
    what: str, seed: int, generator_only: bool, indices: range
) -> list[tuple[int, list[str], str, list[str]]]:
    """For each case its number, its faults, its outcome, and the forms and rewrites that it uses."""
    results = []
    for index in indices:
        verdict, case = run_case(what, seed, index, generator_only=generator_only)
        used = (
            sorted({*case.used, *(f"expected: {kind}" for kind in (*case.taken, *case.not_taken))}) if case else []
        )
        results.append((index, verdict.finds, verdict.end, used))
    return results


def run(
    what: str, seed: int, indices: range, jobs: int, *, generator_only: bool = False
) -> Iterator[tuple[int, list[str], str, list[str]]]:
    """The same for many cases, in processes."""
    chunks = [
        range(begin, min(begin + CHUNK, indices.stop)) for begin in range(indices.start, indices.stop, CHUNK)
    ]
    work = partial(run_chunk, what, seed, generator_only)
    if jobs == 1:
        for chunk in chunks:
            yield from work(chunk)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(work, chunks):
            yield from results


@click.command()
@click.option("--count", default=1000, show_default=True, help="The number of spellings, and of near misses.")
@click.option("--seed", default=1, show_default=True)
@click.option("--start", default=0, show_default=True, help="The number of the first case.")
@click.option("--jobs", default=os.cpu_count() or 1, help="The number of processes.")
@click.option("--near-misses/--spellings", "near", default=None, help="Only one of the two.")
@click.option("--generator-only", is_flag=True, help="Check the generators, without the pass.")
@click.option("--only", type=int, help="Run only the case of this number, and show it.")
@click.option("--write", is_flag=True, help="Write the tables to docs/measurements/spellings.md.")
def main(
    count: int,
    seed: int,
    start: int,
    jobs: int,
    near: bool | None,
    generator_only: bool,
    only: int | None,
    write: bool,
) -> None:
    """Run a campaign; exit 1 if it finds anything."""
    kinds = [what for what in MAKERS if near is None or near == (what == "near misses")]
    if only is not None:
        for what in kinds:
            _show(what, seed, only, generator_only=generator_only)
        return
    tables, findings = {}, 0
    for what in kinds:
        began, ends, used = time.monotonic(), Counter[str](), Counter[str]()
        for index, finds, end, names in run(
            what, seed, range(start, start + count), jobs, generator_only=generator_only
        ):
            ends[end] += 1
            used.update(names)
            findings += bool(finds)
            if finds and findings <= MOST_SHOWN:
                option = "--near-misses" if what == "near misses" else "--spellings"
                print(f"FINDING {option} --seed {seed} --only {index}: {' | '.join(finds)[:500]}", flush=True)
        seconds = time.monotonic() - began
        print(
            f"{sum(ends.values())} {what} in {seconds:.0f} s ({count / seconds:.0f} a second): {dict(ends)}",
            flush=True,
        )
        tables[what] = (ends, used)
    text = page(tables, count, seed)
    if write:
        (ROOT / "docs" / "measurements" / "spellings.md").write_text(text, encoding="utf-8")
    else:
        print(text)
    print(f"{findings} finds")
    sys.exit(1 if findings else 0)


def _show(what: str, seed: int, index: int, *, generator_only: bool) -> None:
    """Prints a case; of a spelling that fails, with the fewest rewrites that still fail."""
    verdict, case = run_case(what, seed, index, generator_only=generator_only)
    if verdict.finds and what == "spellings":
        for steps in range(MOST_STEPS):
            fewer, smaller = run_case(what, seed, index, steps, generator_only=generator_only)
            if fewer.finds:
                print(f"fails with {steps} of its rewrites; all: {verdict.finds}")
                verdict, case = fewer, smaller
                break
    if case is not None:
        print(case.story)
        print("taken:", case.taken, "not taken:", case.not_taken)
        print("made of:", ", ".join(dict.fromkeys(case.used)))
        print(onnx.printer.to_text(case.model))
    print(verdict.end, *verdict.finds, sep="\n")
    if verdict.result is not None:
        print(onnx.printer.to_text(verdict.result))


if __name__ == "__main__":
    main()
