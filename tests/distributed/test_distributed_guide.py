"""The examples of the guide to distributed training run, on two ranks."""

from __future__ import annotations

import re
import shlex

import pytest

from mpi_run import ROOT, mpi_run
from page_examples import blocks, commands, is_printed, try_command

GUIDE = ROOT / "docs" / "guides" / "distributed.md"
RANKS = 2


@pytest.mark.long
def test_the_guide_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("models", "docs", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "hosts").write_text(f"localhost:{RANKS}\n", encoding="utf-8")
    launched = 0
    for block in blocks(GUIDE):
        if block.language == "python":
            (tmp_path / "train.py").write_text(block.text, encoding="utf-8")
            mpi_run(RANKS if "MPI" in block.text else 1, "train.py")
        for command in commands(block.text) if block.language == "console" else ():
            if started := re.match(r"mpiexec (.*?) +bngrad (.*)", command.line, re.DOTALL):
                launched += run_ranks(command, *map(shlex.split, started.groups()))
            else:
                try_command(command, tmp_path)
    assert launched == 3
    assert (tmp_path / "trained.safetensors").exists()


def run_ranks(command, options, arguments):
    """Runs a command on two ranks, and returns whether it did: not if it is for another launcher."""
    if "--hostfile" in options:
        return False
    hosts = ("-f", "hosts") if "-f" in options else ()
    once = () if command.printed.strip() else ("--epochs", "1")
    job = mpi_run(RANKS, "-m", "bngrad", *arguments, *once, options=hosts)
    assert not command.printed.strip() or is_printed(command.printed, job.ranks[0].out), job
    return True
