"""Times element types and modes of the gradient beside float in training mode, all in turns.

    python tests/bench/bench_variants.py [--later BYTES] [--variant NAME ...]

A second table times the bare gradient (`kernel_bare_worker.cc`), which has the same bytes and operations and no
channels. After each layout come the geometric means of its shapes that stay in the caches, and of the others.
`--later` sets where arrays lie in their pages, instead of where the heap puts them. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from functools import partial
from math import prod
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from bngrad.bench.timing import time_interleaved
from bngrad.runtime import native_library
from kernel_serve import Asked
from kernel_ways import LeftOutError, start_bare, start_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bngrad.bench.timing import Spread
    from kernel_ways import Worker

SHAPES = [
    (32, 64, 112, 112),
    (32, 256, 56, 56),
    (32, 512, 28, 28),
    (8, 64, 56, 56),
    (8, 512, 28, 28),
    (8, 256, 14, 14),
    (8, 512, 14, 14),
    (8, 512, 7, 7),
    (32, 512, 7, 7),
]
LAYOUTS = ("NCHW", "NHWC")
# dtype, op, frozen
VARIANTS = {
    "float": ("float", "grad", False),
    "float16": ("float16", "grad", False),
    "bfloat16": ("bfloat16", "grad", False),
    "double": ("double", "grad", False),
    "frozen": ("float", "grad", True),
    "relu-grad": ("float", "relu-grad", False),
}
BARE_WAYS = {"float": "bare_double", "float16": "bare_float", "bfloat16": "bare_float", "frozen": "bare_double"}
THREADS, REPEATS = 2, 9
# Of X: from here on dX is written past the caches.
CACHED_BYTES = 8 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--later", type=of_lines, metavar="BYTES", help="of each array in its page than the one before"
    )
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="beside float (repeatable)")
    options = parser.parse_args()
    if options.later is not None:
        os.environ["BNGRAD_LATER"] = str(options.later)
    variants = ["float", *(name for name in VARIANTS if name != "float" and name in (options.variant or VARIANTS))]
    build = f"{native_library.version()}, {native_library.active_isa()}"
    print(f"bngrad {build}, {THREADS} threads; median ms of {REPEATS} turns, float's time over it in brackets\n")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A process holds one case.
        ours = {variant: start_ours(THREADS, folder) for variant in variants}
        try:
            bare = {variant: start_bare(THREADS, folder) for variant in variants if variant in BARE_WAYS}
        except LeftOutError as error:
            print(f"Left out: {error}.\n")
            bare = {}
        rows_of_bare = []
        print(head("", ours), flush=True)
        for layout in LAYOUTS:
            timed, timed_bare = {}, {}
            for extents in SHAPES:
                ways = {variant: prepared(worker, variant, layout, extents) for variant, worker in ours.items()}
                ways |= {
                    f"bare {variant}": prepared(worker, variant, layout, extents)
                    for variant, worker in bare.items()
                }
                spreads = time_interleaved(ways, REPEATS)
                timed[extents] = [spreads[variant] for variant in ours]
                timed_bare[extents] = [spreads[f"bare {variant}"] for variant in bare]
                print(row(layout, extents, timed[extents]), flush=True)
                rows_of_bare.append(row(layout, extents, timed_bare[extents]))
            print("\n".join(means(layout, timed)), flush=True)
            rows_of_bare += means(layout, timed_bare)
        if bare:
            print("\nThe bare gradient, in the same turns:\n")
            print("\n".join([head("bare ", bare), *rows_of_bare]))
        for worker in (*ours.values(), *bare.values()):
            worker.end()


def of_lines(text: str) -> int:
    if not text.isdecimal() or int(text) % 64:
        raise argparse.ArgumentTypeError(f"{text} is not a multiple of 64")
    return int(text)


def prepared(worker: Worker, variant: str, layout: str, extents: tuple[int, ...]) -> Callable[[int], float]:
    """A function that times so many calls of a variant, as `time_interleaved` asks."""
    dtype, op, frozen = VARIANTS[variant]
    worker.prepare(Asked(dtype, op, frozen, layout, extents))
    return partial(worker.turn, "bngrad" if worker.name == "bngrad" else BARE_WAYS[variant])


def head(prefix: str, variants: Iterable[str]) -> str:
    names = ["layout", "N,C,H,W", *(prefix + variant for variant in variants)]
    return f"| {' | '.join(names)} |\n|{' --- |' * len(names)}"


def row(layout: str, extents: tuple[int, ...], spreads: list[Spread]) -> str:
    """Of a table; the first of its times is that of float."""
    cells = [layout, ",".join(map(str, extents))]
    cells += [f"{1e3 * s.median:.3g} ({ratio:.2f})" for s, ratio in zip(spreads, over_float(spreads), strict=True)]
    return f"| {' | '.join(cells)} |"


def over_float(spreads: list[Spread]) -> list[float]:
    return [spreads[0].median / spread.median for spread in spreads]


def means(layout: str, timed: dict[tuple[int, ...], list[Spread]]) -> list[str]:
    """Two rows: of a layout's shapes that stay in the caches, and of the others."""
    rows = []
    for title, cached in (("in the caches", True), ("past them", False)):
        of = [spreads for extents, spreads in timed.items() if (4 * prod(extents) < CACHED_BYTES) == cached]
        columns = zip(*map(over_float, of), strict=True)
        cells = [
            f"{layout}, {title}",
            "geometric mean",
            *(f"({geometric_mean(column):.2f})" for column in columns),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


if __name__ == "__main__":
    main()
