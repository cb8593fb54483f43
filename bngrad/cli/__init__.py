"""The command line: ``bngrad COMMAND``.

Exit codes: 0 success, 1 a check failed, 2 error (one line on stderr), 3 a check was not run, 130 interrupted.

Neither this module nor a command's module imports anything slow at the top, so that ``--help`` starts fast.
"""

from __future__ import annotations

import logging
import sys
import traceback

import click

from bngrad import __version__
from bngrad.cli.average import average_command
from bngrad.cli.batchnorm import batchnorm_command
from bngrad.cli.bench import bench_command
from bngrad.cli.causes import is_caused_by, notes_of
from bngrad.cli.compare import compare_command
from bngrad.cli.completion import completion_command
from bngrad.cli.console import print_line
from bngrad.cli.differentiate import differentiate_command
from bngrad.cli.error_message import error_message
from bngrad.cli.finalize import finalize_command
from bngrad.cli.help import Group
from bngrad.cli.inspect import inspect_command
from bngrad.cli.library_path import library_path_command
from bngrad.cli.oracle import oracle_group
from bngrad.cli.ranks import usage_error
from bngrad.cli.restore import restore_command
from bngrad.cli.rewrite import rewrite_command
from bngrad.cli.statistics import statistics_command
from bngrad.cli.step import step_command
from bngrad.cli.train import train_command
from bngrad.cli.validate import validate_command
from bngrad.reports.visible import LINES, visible

_WITHOUT_A_MODEL = ("completion", "library-path", "oracle")
"""Commands that run without the packages whose versions are checked."""

_SECTIONS = {
    "Exit codes": {
        "0": "Success.",
        "1": "A check failed: `validate` found a difference; `inspect --fail-on` found a hazard or a warning; "
        "`train` had a loss that is not finite; `oracle status` found no complete environment.",
        "2": "An error: one line on stderr, `bngrad: error: MESSAGE`. No output was written.",
        "3": "`validate` is incomplete: no comparison failed, but a check that decides could not be run.",
        "130": "Interrupted (Ctrl-C).",
    },
    "Environment variables": {
        "BNGRAD_ISA": "Instruction set to use, one that the machine has: `scalar`, `avx2`, `avx512` or `neon`.",
        "BNGRAD_LIBRARY": "Custom-op library to use, instead of the one in the package.",
        "BNGRAD_ORACLE_DIR": "Folder for the oracle's environments, instead of the user's cache.",
        "NO_COLOR": "If set and not empty, the output has no colors. In a file or a pipe it has none, either.",
        "FORCE_COLOR": "If set and not empty, tables have colors in a file or a pipe as well.",
    },
}


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    sections=_SECTIONS,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Training on stock ONNX Runtime.

    `bngrad COMMAND --help` has the options and examples of a command. The documentation is at
    https://bngrad.github.io/bngrad/.
    """
    if context.invoked_subcommand not in _WITHOUT_A_MODEL:
        from bngrad.runtime import versions

        versions.check()


for command in (
    inspect_command,
    step_command,
    train_command,
    finalize_command,
    statistics_command,
    average_command,
    restore_command,
    batchnorm_command,
    differentiate_command,
    rewrite_command,
    validate_command,
    bench_command,
    compare_command,
    oracle_group,
    library_path_command,
    completion_command,
):
    cli.add_command(command)


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code.

    Args:
        arguments: The command line without the program's name.
    """
    debug = "--debug" in arguments
    if not debug:
        # onnx-ir logs a traceback for an invalid model; our own message says what is wrong.
        for logger in ("bngrad", "onnx_ir"):
            logging.getLogger(logger).addHandler(logging.NullHandler())
    try:
        result = cli.main(arguments, prog_name="bngrad", standalone_mode=False, obj=debug)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt) as interrupt:
        return _interrupted(interrupt)
    except (SystemExit, BrokenPipeError):
        # click exits here only if stdout was closed, as by `bngrad ... | head`.
        return 0
    except Exception as error:  # noqa: BLE001 - every error becomes one line
        if debug:
            click.echo(visible(traceback.format_exc(), keep=LINES), err=True, nl=False)
        # A C++ module turns an interrupt during its import into an ImportError.
        if is_caused_by(error, KeyboardInterrupt):
            return _interrupted(error)
        message = error_message(error)
        if isinstance(error, click.UsageError) and "--distributed" in arguments:
            message = usage_error(message)
    else:
        return result if isinstance(result, int) else 0
    # Outside of the except block: the exception keeps all of the command's memory alive.
    return _fail(message)


def _interrupted(error: BaseException) -> int:
    """Prints where the work was, if it was long enough to have a progress display, and returns the exit code."""
    for note in notes_of(error):
        print_line("interrupted", f"{note}; files are as they were, or complete")
    return 130


def _fail(message: str) -> int:
    """Prints an error as one line, unless another process does, and returns the exit code."""
    if message:
        print_line("error", message)
    return 2
