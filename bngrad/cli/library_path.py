"""``bngrad library-path``."""

from __future__ import annotations

import click

from bngrad.cli.help import Command


@click.command("library-path", cls=Command, examples="$ bngrad library-path", json=False)
def library_path_command() -> None:
    """Print the path of the custom-op library.

    Sessions of [other languages](../guides/cpp-csharp.md) register it.
    """
    from bngrad.runtime.native_library import library_path

    click.echo(library_path())
