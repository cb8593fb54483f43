"""What element types and modes of the gradient gain over float in training mode, all in turns in one process.

python tests/bench/bench_variants.py
"""

from __future__ import annotations

from functools import partial

from bngrad import native_library
from bngrad.bench.case import Case
from bngrad.bench.prepared import PreparedCase
from bngrad.bench.timing import run_turn, take_turns

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
LAYOUTS = {
    "NCHW": lambda n, c, h, w: ((n, c, h, w), (0, 2, 3)),
    "NHWC": lambda n, c, h, w: ((n, h, w, c), (0, 1, 2)),
}
VARIANTS = {
    "float": {},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
    "double": {"dtype": "double"},
    "frozen": {"frozen": True},
    "relu-grad": {"op": "relu-grad"},
}
THREADS, REPEATS = 2, 9


def main() -> None:
    build = f"{native_library.version()}, {native_library.active_isa()}"
    print(f"bngrad {build}, {THREADS} threads; median ms of {REPEATS} turns, float's time over it in brackets\n")
    print("| layout | N,C,H,W |" + "".join(f" {variant} |" for variant in VARIANTS))
    print("| --- | --- |" + " --- |" * len(VARIANTS))
    for layout, arrange in LAYOUTS.items():
        for extents in SHAPES:
            shape, axes = arrange(*extents)
            calls = {
                variant: PreparedCase(Case(shape, axes, **options), threads=THREADS).kernel
                for variant, options in VARIANTS.items()
            }
            ways = {variant: partial(run_turn, call) for variant, call in calls.items()}
            spreads = take_turns(ways, REPEATS)
            base = spreads["float"].median
            cells = [",".join(map(str, extents))]
            cells += [f"{1e3 * s.median:.3g} ({base / s.median:.2f})" for s in spreads.values()]
            print(f"| {layout} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
