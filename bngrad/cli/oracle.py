"""``bngrad oracle``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from bngrad.cli.console import print_json, printing
from bngrad.cli.help import Group

if TYPE_CHECKING:
    from bngrad.cli.documents import OracleDocument, OracleRemoveDocument


@click.group("oracle", cls=Group)
def oracle_group() -> None:
    """Manage the environment of ONNX Runtime's gradient builder.

    It is a virtual environment with ONNX Runtime's training build 1.19.2, which has the gradient builder.
    `validate --against ort` and `--builder ort` create it on first use.

    Documentation: [In CI, the oracle](../guides/ci.md#the-oracle).
    """


@oracle_group.command("install", examples="$ bngrad oracle install")
def install_command(as_json: bool) -> None:
    """Create the environment.

    Commands that need it also create it.
    """
    from bngrad.cli.progress import progress
    from bngrad.oracle import install

    with progress("the oracle's environment") as show:
        environment = install(show)
    if as_json:
        document: OracleDocument = {"state": "ready", "path": str(environment.path), "problem": None}
        print_json(document)
    else:
        click.echo(f"ready: {environment.path}")


@oracle_group.command("status", examples="$ bngrad oracle status --json")
def status_command(as_json: bool) -> int:
    """Report whether the environment is ready.

    Exit code 1 if it is missing or broken.
    """
    from bngrad.oracle import status

    oracle = status()
    state: Literal["ready", "broken", "missing"] = (
        "ready" if oracle.ready else "broken" if oracle.installed else "missing"
    )
    with printing():
        if as_json:
            document: OracleDocument = {"state": state, "path": str(oracle.path), "problem": oracle.problem}
            print_json(document)
        else:
            click.echo(f"{state}: {oracle.path}" + (f" ({oracle.problem})" if oracle.problem else ""))
    return 0 if oracle.ready else 1


@oracle_group.command("key", examples="$ bngrad oracle key", json=False)
def key_command() -> None:
    """Print the key under which a CI job caches the environment.

    It changes with the packages of the environment, the platform and the release of Python.
    """
    from bngrad.oracle.environment import cache_key

    click.echo(cache_key())


@oracle_group.command("remove", examples="$ bngrad oracle remove")
def remove_command(as_json: bool) -> None:
    """Delete the environment and those of other versions."""
    from bngrad.oracle import remove

    removed = remove()
    if as_json:
        document: OracleRemoveDocument = {"removed": [str(path) for path in removed]}
        print_json(document)
        return
    for path in removed:
        click.echo(f"removed: {path}")
    if not removed:
        click.echo("nothing to remove")
