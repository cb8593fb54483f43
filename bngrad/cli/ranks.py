"""The ranks of ``bngrad train --distributed``, and which of them prints an error."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

import click

from bngrad.cli.error_message import error_message
from bngrad.cli.options import option_name
from bngrad.errors import BngradError, DistributedError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bngrad.training.ranks import Ranks

_OPTIONS = "options"
"""The key of the exchange of the options."""

_OF_ONE_RANK = ("threads", "timeout")
"""Options that may be different on each rank."""

_PRINTED_ELSEWHERE = re.compile(r"\brank \d+ failed: ")
"""In an error of a collective that another rank prints."""

_SEEN_BY_ALL = re.compile(r"\branks \d+ and \d+ do not match: ")
"""In an error of a collective that all ranks have."""


@contextlib.contextmanager
def joined(options: dict[str, Any], **arguments: Any) -> Iterator[Ranks]:  # noqa: ANN401 - as the options
    """Connects the ranks of a command for the time of a block.

    Args:
        options: The options of the command.
        arguments: Its arguments.

    Raises:
        InputError: The process is one of several, and ``--distributed`` is not given.
        DistributedError: The ranks cannot be connected, or their options are different.
        click.ClickException: Any other error in the block, with the rank, if not all ranks have it.
        click.exceptions.Exit: Another rank prints the error.
    """
    from bngrad.distributed import Communicator, launched
    from bngrad.training.ranks import Ranks

    if not options["distributed"]:
        if launched():
            raise InputError(
                "this is one of several processes of an MPI launcher, which would each train alone; "
                "add --distributed"
            )
        yield Ranks()
        return
    comm = Communicator(timeout=options["timeout"])
    ranks = Ranks(comm)
    try:
        with ranks.alone():
            same = {
                option_name(key): value for key, value in options.items() if key not in _OF_ONE_RANK
            } | arguments
            ranks.require_same(_OPTIONS, same, "the same options")
            yield ranks
    except Exception as error:
        if _is_printed_elsewhere(error, ranks.rank):
            raise click.exceptions.Exit(2) from error
        if ranks.size == 1 or _says_where(error):
            raise
        raise click.ClickException(f"rank {ranks.rank}: {error_message(error)}") from error
    finally:
        comm.detach()


def usage_error(message: str) -> str:
    """Returns the text that this rank prints for an error in its command line; empty if rank 0 prints the same."""
    from bngrad.distributed import Communicator

    try:
        comm = Communicator()
        messages = comm.gather_text(_OPTIONS, json.dumps({"the command line": message}))
        comm.detach()
    except BngradError:
        return message
    if len(set(messages)) > 1:
        return f"rank {comm.rank}: {message}"
    return message if comm.rank == 0 else ""


def _is_printed_elsewhere(error: Exception, rank: int) -> bool:
    if not isinstance(error, BngradError):
        return False
    if isinstance(error, DistributedError) and _PRINTED_ELSEWHERE.search(str(error)):
        return True
    return rank != 0 and (error.on_all_ranks or _SEEN_BY_ALL.search(str(error)) is not None)


def _says_where(error: Exception) -> bool:
    """Returns whether all ranks have an error, or it names its rank."""
    return isinstance(error, DistributedError) or (isinstance(error, BngradError) and error.on_all_ranks)
