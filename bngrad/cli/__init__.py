"""The command line: ``bngrad COMMAND``.

Exit code 0: clean. 1: a finding. 2: an error, one line on stderr. 130: interrupted.

Nothing heavy is imported here nor at the top of a command's file, so that ``--help`` answers at once.
"""

from __future__ import annotations

import errno
import logging
import sys
import traceback

import click

from bngrad import __version__
from bngrad.cli.bench import bench_command
from bngrad.cli.differentiate import differentiate_command
from bngrad.cli.finalize import finalize_command
from bngrad.cli.inspect import inspect_command
from bngrad.cli.library_path import library_path_command
from bngrad.cli.oracle import oracle_group
from bngrad.cli.rewrite import rewrite_command
from bngrad.cli.validate import validate_command
from bngrad.errors import BngradError

_WITHOUT_A_MODEL = ("library-path", "oracle")
"""Commands that need none of the packages whose versions are checked."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a write fails with that the user, not a programmer, has to do something about."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Batch-normalization training for ONNX Runtime."""
    if context.invoked_subcommand not in _WITHOUT_A_MODEL:
        from bngrad import versions

        versions.check()


for command in (
    inspect_command,
    rewrite_command,
    differentiate_command,
    finalize_command,
    validate_command,
    bench_command,
    oracle_group,
    library_path_command,
):
    cli.add_command(command)


def run(arguments: list[str]) -> int:
    """Runs a command and returns its exit code.

    Args:
        arguments: The command line without the program's name.
    """
    debug = "--debug" in arguments
    if not debug:
        # onnx-ir tells of a bad model by a traceback on stderr; what it means for the user is in our own message.
        logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
    try:
        result = cli.main(arguments, prog_name="bngrad", standalone_mode=False)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (SystemExit, BrokenPipeError):
        # Only where stdout was closed does click exit here: whoever reads it has seen enough.
        return 0
    except Exception as error:  # noqa: BLE001 - every error becomes one line
        if debug:
            traceback.print_exc()
        return _fail(error)
    return result if isinstance(result, int) else 0


def _fail(error: Exception) -> int:
    """Says what went wrong in one line."""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "bngrad"
        message = f"{error.format_message().rstrip('.')} (see {command} --help)"
    elif isinstance(error, click.ClickException):
        message = error.format_message()
    elif isinstance(error, BngradError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno in _NO_ROOM:
        message = f"{error.filename or 'the output, or a temporary file,'} cannot be written: {error.strerror}"
    else:
        message = f"internal error: {type(error).__name__}: {error} (--debug shows where)"
    click.echo("bngrad: error: " + " ".join(message.split()), err=True)
    return 2
