"""Commands that run in this process."""

from __future__ import annotations

import pytest

from bngrad.cli import run


@pytest.fixture
def command(capsys):
    """A function that runs a command, and returns its exit code, stdout and stderr."""

    def call(*arguments):
        code = run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call
