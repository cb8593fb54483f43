"""``bngrad oracle``."""

from __future__ import annotations

import json

import click

from bngrad.cli.options import debug_option, json_option
from bngrad.cli.out_of_memory import Commands


@click.group("oracle", cls=Commands, no_args_is_help=False)
def oracle_group() -> None:
    """Manage the environment of ONNX Runtime's gradient builder."""


@oracle_group.command("install")
@debug_option
def install_command() -> None:
    """Create the environment. Commands that need it also create it."""
    from bngrad.cli.progress import progress
    from bngrad.oracle import install

    with progress() as show:
        environment = install(show)
    click.echo(f"ready: {environment.path}")


@oracle_group.command("status")
@json_option
@debug_option
def status_command(as_json: bool) -> int:
    """Report whether the environment is ready. Exit code 1 if it is missing or broken."""
    from bngrad.oracle import status

    found = status()
    state = "ready" if found.ready else "broken" if found.installed else "missing"
    if as_json:
        document = {"state": state, "path": str(found.path), "problem": found.problem}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo(f"{state}: {found.path}" + (f" ({found.problem})" if found.problem else ""))
    return 0 if found.ready else 1


@oracle_group.command("remove")
@debug_option
def remove_command() -> None:
    """Delete the environment and those of other versions."""
    from bngrad.oracle import remove

    removed = remove()
    for path in removed:
        click.echo(f"removed: {path}")
    if not removed:
        click.echo("nothing to remove")
