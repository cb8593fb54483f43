"""The kernels at many shapes, beside the memory's limit and other libraries.

    python tests/bench/bench_kernels.py [--quick | --shape N,C,H,W] [--group NAME] [--json FILE] [--chart FILE.svg]
                                        [--torch PYTHON] [--tensorflow PYTHON] [--before LIBRARY] [--alone]

Beside ours: ``roof``, c = a + b past the caches over as many bytes as X has; ``bare_double`` and
``bare_float``, the least that a gradient has to do (`kernel_bare_worker.cc`); ``bngrad_in_ort``, ours as an op
of ONNX Runtime's training build; ``ort_training``, the kernel of that build; oneDNN in its three layouts;
PyTorch and TensorFlow. Those two allocate their outputs at every call, TensorFlow from memory that it keeps;
``PyTorch_memory_kept`` is PyTorch in a process whose allocator gives nothing back to the system, which then has
no pages to find and to clear; and ``before``, a library of ours of another day. Every library has a process of
its own, but ours of another day, which shares that of ours and its arrays; and all take turns at each case. A
ratio is the time of another over ours: above 1, ours is faster. Not a test: it only prints.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

from bngrad.bench.timing import Spread
from bngrad.runtime import native_library
from kernel_cases import GROUPS, Row, full_rows, quick_rows
from kernel_models import write_models
from kernel_report import Timed, draw, section_table, summary_table
from kernel_serve import Asked
from kernel_ways import start, take_turns


def main() -> None:
    options = parse()
    rows = given_rows(options) if options.shape else list(quick_rows() if options.quick else full_rows())
    if options.frozen is not None:
        rows = [row for row in rows if row.asked.frozen == options.frozen]
    for name in ("group", "layout", "dtype", "op", "threads"):
        if choices := getattr(options, name):
            rows = [row for row in rows if (row._asdict() | row.asked._asdict())[name] in choices]
    if not rows:
        raise SystemExit("no case is left of the table; leave out some of the options that choose among them")
    isa = native_library.active_isa()
    version = native_library.version()
    print(f"bngrad {version}, {isa}; ms: median (quartiles) of {options.repeats} turns; **ratio to ours**\n")
    sections = []
    for threads, of_threads in itertools.groupby(rows, lambda row: row.threads):
        sections += run(list(of_threads), threads, options)
    print(summary_table(sections))
    timed = list(itertools.chain.from_iterable(sections))
    if options.json:
        head = {
            "version": version,
            "isa": isa,
            "cpus": os.cpu_count(),
            "repeats": options.repeats,
        }
        options.json.write_text(json.dumps(head | {"rows": [t.to_dict() for t in timed]}, indent=1))
    if options.chart:
        draw(timed, options.chart)


def given_rows(options: argparse.Namespace) -> list[Row]:
    """The shapes of the command line, as it asks for them; by default float gradients in NCHW on two threads."""
    return [
        Row("given", Asked(dtype, op, bool(options.frozen), layout, extents), threads)
        for threads in options.threads or [2]
        for op in options.op or ["grad"]
        for dtype in options.dtype or ["float"]
        for layout in options.layout or ["NCHW"]
        for extents in options.shape
    ]


def extents_of(text: str) -> tuple[int, ...]:
    return tuple(int(extent) for extent in text.split(","))


def run(rows: list, threads: int, options: argparse.Namespace) -> list[list[Timed]]:
    """Times rows of one number of threads, and prints each section when it is complete; returns the sections."""
    done = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "models").mkdir()
        workers = start(threads, folder, options)
        for section, of_section in itertools.groupby(rows, lambda row: row.section):
            in_section = []
            for row in of_section:
                print(f"{section}: {row.asked.extents}", file=sys.stderr, flush=True)
                write_models(row.asked, folder / "models")
                times, left_out = take_turns(workers, row.asked, options.repeats)
                spreads = {way: Spread.of(seconds) for way, seconds in times.items()}
                in_section.append(Timed(row, spreads, left_out))
            print(section_table(in_section))
            for reason in dict.fromkeys(reason for timed in in_section for reason in timed.left_out):
                print(f"Left out: {reason}.", flush=True)
            print(flush=True)
            done.append(in_section)
        for worker in workers:
            worker.end()
    return done


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--quick", action="store_true", help="eight shapes, float, two threads")
    source.add_argument("--shape", action="append", type=extents_of, metavar="N,C,H,W", help="(repeatable)")
    parser.add_argument("--group", action="append", choices=list(GROUPS), help="of shapes (repeatable)")
    parser.add_argument("--layout", action="append", choices=["NCHW", "NHWC"], help="(repeatable)")
    parser.add_argument("--dtype", action="append", choices=["float", "double", "float16", "bfloat16"])
    parser.add_argument("--op", action="append", choices=["grad", "relu-grad"])
    parser.add_argument(
        "--frozen", action=argparse.BooleanOptionalAction, help="with statistics that are constants"
    )
    parser.add_argument("--threads", action="append", type=int, choices=[1, 2])
    parser.add_argument("--repeats", type=int, default=9, help="turns of each way (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="needs matplotlib")
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has PyTorch; default: this one")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="an interpreter that has TensorFlow; the same")
    parser.add_argument("--before", type=Path, metavar="LIBRARY", help="an older library of ours, too")
    parser.add_argument("--alone", action="store_true", help="no other project's library, and no bare gradient")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats is less than 1")
    if options.before and not options.before.is_file():
        parser.error(f"--before: there is no file {options.before}")
    return options


if __name__ == "__main__":
    main()
