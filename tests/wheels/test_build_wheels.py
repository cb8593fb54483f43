"""The lines that `make wheels` prints while it works."""

from __future__ import annotations

import sys

import pytest

from ops.wheels import build_wheels

COMPILER = """
print("configuring")
print("[1/3] Building a.cc", flush=True)
print("[3/3] Linking", flush=True)
"""


def run(program):
    build_wheels.run("linux-x86_64: compiling", sys.executable, "-c", program)


def test_a_stage_says_its_steps_and_time(capsys, monkeypatch):
    monkeypatch.setattr(build_wheels, "QUIET", 0.0)
    run(COMPILER)
    assert capsys.readouterr().out.splitlines() == [
        "linux-x86_64: compiling",
        "linux-x86_64: compiling, 1 of 3 steps, 0 s",
        "linux-x86_64: compiling, 3 of 3 steps, 0 s",
    ]


def test_a_short_stage_is_one_line(capsys):
    run(COMPILER)
    assert capsys.readouterr().out == "linux-x86_64: compiling\n"


def test_a_stage_that_fails_shows_its_output(capsys):
    with pytest.raises(SystemExit, match=r"(?s)^a\.cc:3: error\n\nfailed: .*python"):
        run("import sys; print('a.cc:3: error'); sys.exit(2)")
    assert capsys.readouterr().out == "linux-x86_64: compiling\n"
