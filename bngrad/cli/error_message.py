"""The text that a command prints for an exception."""

from __future__ import annotations

import errno

import click

from bngrad.cli.causes import is_caused_by
from bngrad.errors import BngradError
from bngrad.graph.name_messages import phrase

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a write that the user can solve; others are reported as internal errors."""

_OUT_OF_MEMORY = "out of memory: raise the process's memory limit (ulimit -v, or the container's), or free memory"


_FEW = 3
"""The most commands that a message on an option of others names."""


def error_message(error: Exception) -> str:
    """Returns the text to print for an exception."""
    if is_caused_by(error, MemoryError):
        return _OUT_OF_MEMORY
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else "bngrad"
        return f"{_elsewhere(error) or error.format_message().rstrip('.')} (see {command} --help)"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, BngradError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return f"{error.filename or 'the output or a temporary file'} cannot be written: {error.strerror}"
    return f"internal error: {type(error).__name__}: {error} (rerun with --debug for a traceback)"


def _elsewhere(error: click.UsageError) -> str:
    """Returns the message on an option that a few other commands have; empty if the error is another one."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    group = error.ctx.find_root().command
    commands = group.commands.items() if isinstance(group, click.Group) else ()
    having = [name for name, command in commands if any(error.option_name in p.opts for p in command.params)]
    if not 0 < len(having) <= _FEW:
        return ""
    return f"{error.message.rstrip('.')}: it is an option of {phrase([f'bngrad {name}' for name in having])}"
