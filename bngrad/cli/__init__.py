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
from bngrad.cli.causes import came_of
from bngrad.cli.differentiate import differentiate_command
from bngrad.cli.finalize import finalize_command
from bngrad.cli.inspect import inspect_command
from bngrad.cli.library_path import library_path_command
from bngrad.cli.oracle import oracle_group
from bngrad.cli.out_of_memory import Commands
from bngrad.cli.rewrite import rewrite_command
from bngrad.cli.validate import validate_command
from bngrad.errors import BngradError

_WITHOUT_A_MODEL = ("library-path", "oracle")
"""Commands that need none of the packages whose versions are checked."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What a write fails with that the user, not a programmer, has to do something about."""

_NO_MEMORY = "out of memory: the command needs more than it may have; raise the limit (ulimit -v, a container's)"


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Batch-normalization training for ONNX Runtime."""
    if context.invoked_subcommand not in _WITHOUT_A_MODEL:
        from bngrad.runtime import versions

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
        result = cli.main(arguments, prog_name="bngrad", standalone_mode=False, obj=debug)
        sys.stdout.flush()
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (SystemExit, BrokenPipeError):
        # Only where stdout was closed does click exit here: whoever reads it has seen enough.
        return 0
    except Exception as error:  # noqa: BLE001 - every error becomes one line
        if debug:
            traceback.print_exc()
        # A module of C++ makes an ImportError of what interrupts it.
        if came_of(error, KeyboardInterrupt):
            return 130
        message = _message(error)
    else:
        return result if isinstance(result, int) else 0
    # Not before the error is gone, which holds all that the command had in memory.
    return _fail(message)


def _fail(message: str) -> int:
    """Says what went wrong in one line."""
    click.echo("bngrad: error: " + " ".join(message.split()), err=True)
    return 2


def _message(error: Exception) -> str:
    """What went wrong."""
    if came_of(error, MemoryError):
        return _NO_MEMORY
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "bngrad"
        return f"{error.format_message().rstrip('.')} (see {command} --help)"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, BngradError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return f"{error.filename or 'the output, or a temporary file,'} cannot be written: {error.strerror}"
    return f"internal error: {type(error).__name__}: {error} (--debug shows where)"
