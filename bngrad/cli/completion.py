"""``bngrad completion``."""

from __future__ import annotations

import click

from bngrad.cli.help import Command
from bngrad.cli.shell_completion import SHELLS, script


@click.command(
    "completion",
    cls=Command,
    examples="""
        $ echo 'eval "$(bngrad completion bash)"' >> ~/.bashrc
        $ echo 'eval "$(bngrad completion zsh)"' >> ~/.zshrc
        $ bngrad completion fish > ~/.config/fish/completions/bngrad.fish
    """,
    json=False,
)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    The script completes commands, options, their values, and files by their suffixes: .onnx for models; .npz, .npy
    and .safetensors for data. The examples install it for new sessions.

    - Bash needs version 4.4 or newer.
    - Zsh needs its completion system: `autoload -Uz compinit; compinit` comes before the line in ~/.zshrc.
    """
    click.echo(script(shell, context.find_root().command), nl=False)
