"""``bngrad library-path``."""

from __future__ import annotations

import click

from bngrad.cli.options import debug_option


@click.command("library-path")
@debug_option
def library_path_command() -> None:
    """Print the path of the custom-op library."""
    from bngrad.runtime.native_library import library_path

    click.echo(library_path())
