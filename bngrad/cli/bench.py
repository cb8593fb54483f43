"""``bngrad bench``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bngrad.cli.console import print_json
from bngrad.cli.help import Command
from bngrad.cli.options import dims_option, option
from bngrad.cli.shell_completion import complete_files
from bngrad.runtime.device import CPU

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bngrad.bench.case import Case
    from bngrad.bench.measure import Measurement
    from bngrad.cli.documents import BenchDocument

_SHAPE = "Shapes"


@click.command(
    "bench",
    cls=Command,
    examples="""
        $ bngrad bench --shape 32x64x56x56 --shape 8x512x7x7
        $ bngrad bench --shape 32x56x56x64 --layout NHWC --dtype bfloat16 \\
            --op relu-grad
        $ bngrad bench model.onnx --dim N=8
    """,
)
@click.argument("model", required=False, type=click.Path(path_type=Path), shell_complete=complete_files(".onnx"))
@option("--shape", "shapes", metavar="32x64x56x56", multiple=True, group=_SHAPE, help="Shape of X (repeatable).")
@option(
    "--axes", metavar="0,2,3", group=_SHAPE, help="Reduction axes of --shape.  [default: all except the channels]"
)
@option(
    "--layout",
    type=click.Choice(["NCHW", "NHWC"]),
    group=_SHAPE,
    help="Position of the channels in --shape.  [default: NCHW]",
)
@option(
    "--dtype",
    type=click.Choice(["float", "double", "float16", "bfloat16"]),
    group=_SHAPE,
    help="Element type of --shape.  [default: float]",
)
@dims_option
@option(
    "--op",
    type=click.Choice(["grad", "relu-grad", "training", "grad-grad", "statistics"]),
    default="grad",
    show_default=True,
    help="Op to time.",
)
@option("--frozen", is_flag=True, help="Take the statistics as constants.")
@option(
    "--threads",
    type=click.IntRange(0, 1024),
    default=0,
    show_default=True,
    help="Number of threads; 0 for one per CPU.",
)
@option(
    "--device",
    default=CPU,
    show_default=True,
    metavar="DEVICE",
    help="Device to time the ops on: `cpu`, `cuda` or `cuda:1` ([GPUs](../guides/gpu.md)).",
)
@option("--repeats", type=click.IntRange(min=1), default=21, show_default=True, help="Trials per case.")
@option("--html", type=click.Path(), metavar="FILE", help="Write an HTML report.")
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
    device: str,
    repeats: int,
    html: str | None,
    as_json: bool,
) -> None:
    """Time the native kernels, for given shapes or for a model.

    MODEL is a forward model or a training graph; every distinct shape of its batch norms is timed. On the CPU the
    kernels run without a session of ONNX Runtime, on a GPU in one. Each case is compared with the memory
    bandwidth, measured by c = a + b over arrays of X's size: an op cannot exceed it unless its arrays stay in the
    caches ([performance](../explanation/performance.md)).
    """
    from bngrad.bench.case import cases_of_shapes
    from bngrad.bench.measure import measure
    from bngrad.bench.model_cases import cases_of_model
    from bngrad.cli.progress import progress
    from bngrad.io import files, writing
    from bngrad.runtime import native_library
    from bngrad.runtime.device_session import require_available

    require_available(device)
    _check_source(model, shapes, shape_options={"--axes": axes, "--layout": layout, "--dtype": dtype}, dims=dims)
    loaded = None if model is None else files.load(model)
    page = None if html is None else writing.check_output(html, source=model, model=loaded)
    if loaded is not None:
        cases = cases_of_model(loaded, dims, op=op, frozen=frozen)
    else:
        cases = cases_of_shapes(shapes, axes=axes, layout=layout, dtype=dtype or "float", op=op, frozen=frozen)
    rows = []
    with progress("measuring the bandwidth") as show:
        for done, (case, count) in enumerate(cases.items()):
            show("timing the kernels", done / len(cases), case.shape_text)
            rows.append(measure(case, count=count, threads=threads, repeats=repeats, device=device))
    document: BenchDocument = {
        "library": str(native_library.library_path()),
        "version": native_library.version(),
        "isa": native_library.active_isa() if device.startswith(CPU) else device,
        "threads": threads or os.cpu_count() or 1,
        "repeats": repeats,
        "rows": [row.to_dict() for row in rows],
    }
    if page is not None:
        from bngrad.reports.html.bench import write_html

        write_html(document, rows, "" if model is None else str(model), page)
    if as_json:
        print_json(document)
    else:
        _print(document, rows)


def _check_source(
    model: Path | None, shapes: tuple[str, ...], *, shape_options: dict[str, str | None], dims: dict[str, int]
) -> None:
    """Checks that either MODEL or --shape is given, and only with the options that apply to it."""
    from bngrad.errors import InputError

    if model is None and not shapes:
        raise InputError("there is nothing to time; pass MODEL or --shape, such as --shape 32x64x56x56")
    if model is not None and shapes:
        raise InputError("MODEL and --shape are both given; pass only one of them")
    if model is not None:
        for option, value in shape_options.items():
            if value is not None:
                raise InputError(f"{option} applies to --shape only; it cannot be combined with MODEL")
    elif dims:
        raise InputError("--dim applies to MODEL only; --shape has no symbolic dimensions")


def _print(head: BenchDocument, rows: Iterable[Measurement]) -> None:
    from rich.box import HEAVY_HEAD

    from bngrad.cli.console import stdout_console
    from bngrad.reports.tables import Column, print_table, print_text_line

    console = stdout_console()
    print_text_line(
        console,
        f"bngrad {head['version']}, {head['isa']}, threads: {head['threads']}, trials: {head['repeats']}; "
        "ms: median (quartiles)",
    )
    columns = [Column("op"), Column("shape", name=True), Column("axes"), Column("type")]
    columns += [Column(heading, right=True) for heading in ("count", "ms", "GB/s")]
    columns += [Column("addition ms", right=True, optional=True)]
    columns += [Column(heading, right=True) for heading in ("bandwidth GB/s", "of bandwidth")]
    cells = [
        (
            *_labels(row.case),
            str(row.count),
            str(row.kernel),
            f"{row.gb_per_s:.3g}",
            str(row.addition),
            f"{row.bandwidth_gb_per_s:.3g}",
            f"{row.bandwidth_fraction:.2f}",
        )
        for row in rows
    ]
    print_table(console, columns, cells, style=HEAVY_HEAD)


def _labels(case: Case) -> tuple[str, ...]:
    return case.op_text, case.shape_text, ",".join(map(str, case.axes)), case.dtype
