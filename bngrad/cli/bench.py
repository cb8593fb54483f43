"""``bngrad bench``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bngrad.cli.options import debug_option, dims_option, json_option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from bngrad.bench.case import Case
    from bngrad.bench.measure import Measurement


@click.command("bench")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option("--shape", "shapes", metavar="32x64x56x56", multiple=True, help="A shape of X (repeatable).")
@click.option("--axes", metavar="0,2,3", help="What --shape reduces; by default all but the channels.")
@click.option("--layout", type=click.Choice(["NCHW", "NHWC"]), help="Where the channels of --shape are.  [NCHW]")
@click.option(
    "--dtype",
    type=click.Choice(["float", "double", "float16", "bfloat16"]),
    help="The element type of --shape.  [float]",
)
@dims_option
@click.option(
    "--op",
    type=click.Choice(["grad", "relu-grad", "training", "grad-grad", "statistics"]),
    default="grad",
    show_default=True,
    help="What is timed.",
)
@click.option("--frozen", is_flag=True, help="Take the statistics as constants.")
@click.option("--threads", type=click.IntRange(0, 1024), default=0, help="How many; 0, the default: one per CPU.")
@click.option("--repeats", type=click.IntRange(min=1), default=21, show_default=True, help="Turns of each.")
@json_option
@debug_option
def bench_command(
    model: Path | None,
    shapes: tuple[str, ...],
    axes: str | None,
    layout: str | None,
    dtype: str | None,
    dims: dict[str, int],
    op: str,
    frozen: bool,
    threads: int,
    repeats: int,
    as_json: bool,
) -> None:
    """Time the native kernels, for shapes or for all batch norms of MODEL.

    Beside each, in turns, c = a + b over arrays as large as X: an op that reads and writes arrays once cannot move
    more bytes a second, unless they stay in the caches. MODEL may be a forward model or a training graph.
    """
    from bngrad.bench.case import cases_of_shapes
    from bngrad.bench.measure import measure
    from bngrad.bench.model_cases import cases_of_model
    from bngrad.cli.progress import progress
    from bngrad.io import files
    from bngrad.runtime import native_library

    _check_source(model, shapes, of_shapes={"--axes": axes, "--layout": layout, "--dtype": dtype}, dims=dims)
    if model is not None:
        cases = cases_of_model(files.load(model), dims, op=op, frozen=frozen)
    else:
        cases = cases_of_shapes(shapes, axes=axes, layout=layout, dtype=dtype or "float", op=op, frozen=frozen)
    head = {
        "library": str(native_library.library_path()),
        "version": native_library.version(),
        "isa": native_library.active_isa(),
        "threads": threads or os.cpu_count(),
        "repeats": repeats,
    }
    rows = []
    with progress() as show:
        for done, (case, count) in enumerate(cases.items()):
            show(case.shape_text, done / len(cases))
            rows.append(measure(case, count=count, threads=threads, repeats=repeats))
    if as_json:
        click.echo(json.dumps(head | {"rows": [row.to_dict() for row in rows]}, indent=2))
    else:
        _print(head, rows)


def _check_source(
    model: Path | None, shapes: tuple[str, ...], *, of_shapes: dict[str, str | None], dims: dict[str, int]
) -> None:
    """Refuses options that the one source of shapes has no use for."""
    from bngrad.errors import InputError

    if model is None and not shapes:
        raise InputError("there is nothing to time; give a MODEL or --shape, such as --shape 32x64x56x56")
    if model is not None and shapes:
        raise InputError("MODEL and --shape are both given; shapes come from one of them")
    if model is not None:
        for option, value in of_shapes.items():
            if value is not None:
                raise InputError(f"{option} is for --shape; MODEL says it for each of its batch norms")
    elif dims:
        raise InputError("--dim is for MODEL; --shape has no symbolic dimension")


def _print(head: Mapping[str, object], rows: Iterable[Measurement]) -> None:
    from rich.table import Table

    from bngrad.cli.console import stdout_console

    console = stdout_console()
    console.print(
        f"bngrad {head['version']}, {head['isa']}, threads: {head['threads']}, turns: {head['repeats']}; "
        "ms: median (quartiles)"
    )
    table = Table()
    for heading in ("op", "shape", "axes", "type"):
        table.add_column(heading, overflow="fold")
    for heading in ("count", "ms", "GB/s", "roof ms", "roof GB/s", "of roof"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            *_labels(row.case),
            str(row.count),
            str(row.kernel),
            f"{row.gb_per_s:.3g}",
            str(row.roof),
            f"{row.roof_gb_per_s:.3g}",
            f"{row.of_roof:.2f}",
        )
    console.print(table)


def _labels(case: Case) -> tuple[str, ...]:
    op = f"{case.op}, frozen" if case.frozen else case.op
    return op, case.shape_text, ",".join(map(str, case.axes)), case.dtype
