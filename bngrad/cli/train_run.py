"""The run of ``bngrad train``: what it prints and writes while it goes on, and at its end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli import train_setup
from bngrad.cli.console import print_json, print_text, print_warnings, printing
from bngrad.cli.interrupts import interrupts
from bngrad.cli.progress import Display, progress
from bngrad.cli.train_display import StatusLine
from bngrad.cli.train_files import RunFiles, options_text
from bngrad.cli.train_report import document, epoch_line, epoch_warnings, lines
from bngrad.passes.quantize.deploy import UnseenRangeError
from bngrad.reports.visible import visible
from bngrad.training import curve
from bngrad.training.fit import Reports
from bngrad.training.run_log import RunLog
from bngrad.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bngrad.cli.train_setup import Run
    from bngrad.training.checkpoints import Position
    from bngrad.training.fit import Outcome
    from bngrad.training.ranks import Ranks

_NOT_FINITE, _INTERRUPTED = 1, 130
"""Exit codes."""


def run(context: click.Context, step: Path, ranks: Ranks, options: dict[str, Any], *, as_json: bool) -> int:
    """Trains a model, and returns the exit code.

    Args:
        context: The context of the command, which records the options that were given.
        step: The training step.
        ranks: The ranks that train together.
        options: The options of the command.
        as_json: Whether to print a document instead of lines.
    """
    ranks.on_first("outputs", lambda: train_setup.check_files(step, options))
    trainer = Trainer(
        step,
        learning_rate=0,
        implementation=options["implementation"],
        device=options["device"],
        threads=options["threads"],
        tf32=options["tf32"],
        cuda_graph=options["cuda_graph"],
        comm=ranks.comm,
    )
    if options["output"] is not None:
        with contextlib.suppress(UnseenRangeError):  # the first step sets the ranges
            trainer.finalize()  # a model that cannot be finalized is refused before it is trained
    run = train_setup.prepare(context, trainer, options)
    if ranks.is_first:
        print_warnings(train_setup.warnings(trainer, run, options))
    with ranks.together("log"):
        own = options_text(options, (*train_setup.OUTPUTS, "tensorboard"))
        made_with = {"step": str(step), **trainer.history.options, **own}
        log = RunLog(options["log"] if ranks.is_first else None, run.position.step, run.position.epoch, made_with)
        files = RunFiles(step, run if ranks.is_first else None, options)
    display = progress("training", bar=False) if ranks.is_first else contextlib.nullcontext(Display(None))
    with interrupts(terminated=ranks.size > 1) as stop, display as show, log.open(), files.closed():
        shown = show if ranks.is_first else None
        outcome = run.fit.run(_reports(run, log, files, shown, stop, as_json=as_json))
    ranks.on_first("page", lambda: files.end(log.records, outcome.status))
    if options["plot"] is not None:
        ranks.on_first("plot", lambda: curve.draw(curve.check_plot(options["plot"]), log.records))
    if outcome.status in ("finished", "stopped early"):
        _write_results(trainer, outcome, options, run.fit.samples)
    if ranks.is_first:
        _print_end(outcome, run.position, log, options, as_json=as_json)
    return {"not finite": _NOT_FINITE, "interrupted": _INTERRUPTED}.get(outcome.status, 0)


def _reports(
    run: Run, log: RunLog, files: RunFiles, show: Display | None, stop: Callable[[], bool], *, as_json: bool
) -> Reports:
    """Returns the callbacks of a run; without a display those of a rank that prints nothing."""
    status = StatusLine(run.epochs, "ascii" if show is None else show.encoding)
    heading = [] if as_json else [run.header]

    def step(record: dict[str, Any], done: float) -> None:
        files.add(log.records)
        if show is not None and heading:  # data may be refused in the first step
            with show.hidden(), contextlib.suppress(BrokenPipeError):
                print_text(heading.pop())
        if show is not None and show.room:
            show("training", done, status(record, show.room))

    def epoch(record: dict[str, Any]) -> None:
        files.add(log.records)
        if show is not None:
            _print_epoch(record, run.epochs, show, as_json=as_json)

    def warning(line: str) -> None:
        if show is not None:
            _print_warning(line, show)

    return Reports(log, step=step, epoch=epoch, warning=warning, stop=stop)


def _print_end(
    outcome: Outcome, position: Position, log: RunLog, options: dict[str, Any], *, as_json: bool
) -> None:
    last: dict[str, Any] = next((record for record in reversed(log.records) if "training_loss" in record), {})
    with printing():
        if as_json:
            print_json(document(outcome, position, last, options))
        else:
            for line in lines(outcome, position, options):
                click.echo(visible(line))


def _print_epoch(record: dict[str, Any], epochs: int, show: Display, *, as_json: bool) -> None:
    # A closed pipe, as of `| head`, must not end the training.
    with show.hidden(), contextlib.suppress(BrokenPipeError):
        if not as_json:
            click.echo(epoch_line(record, epochs))
        print_warnings(epoch_warnings(record))


def _print_warning(line: str, show: Display) -> None:
    with show.hidden(), contextlib.suppress(BrokenPipeError):
        print_warnings([line])


def _write_results(trainer: Trainer, outcome: Outcome, options: dict[str, Any], samples: int) -> None:
    """Writes the model and the state with the lowest validation loss, or the last ones."""
    if outcome.best is not None:
        trainer.load_state_dict(outcome.best)
    if options["state_out"] is not None:
        trainer.save(options["state_out"], samples=samples)
    if options["output"] is not None:
        trainer.finalize(options["output"])
