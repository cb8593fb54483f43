"""`bngrad oracle install` where it cannot succeed, or is stopped: one line, an exit code, and no leftovers.

Needs neither network nor packages: what goes wrong here does so before pip is asked, or because it has no index.
Killed, two at once, damage and other versions are in test_oracle_environment.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bngrad.oracle import child

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals and limits")

COMMAND = [sys.executable, "-m", "bngrad", "oracle", "install"]
LIMITED = """
import resource, sys
from bngrad.cli import run
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
sys.exit(run(["oracle", "install"]))
"""


def environ(base):
    """No index for pip, and none of the user's settings."""
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    return settings | {"BNGRAD_ORACLE_DIR": str(base), "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1"}


def install(base, command=COMMAND):
    done = subprocess.run(command, env=environ(base), capture_output=True, text=True, check=False, timeout=600)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr.removeprefix("bngrad: error: ")


def left(base):
    return sorted(path.name for path in base.iterdir() if path.name != ".lock")


def test_no_network(tmp_path):
    code, line = install(tmp_path)
    assert code == 2
    assert line.startswith("pip cannot install the oracle's packages (numpy==")
    assert "check the network and pip's index settings, then run `bngrad oracle install`" in line
    assert left(tmp_path) == []


@pytest.mark.long
def test_a_full_disk(tmp_path):
    code, line = install(tmp_path, [sys.executable, "-c", LIMITED])
    assert code == 2
    assert "File too large" in line
    assert left(tmp_path) == []


@pytest.mark.parametrize("place", ["file", pytest.param("/proc", marks=pytest.mark.long), "/proc/self"])
def test_a_folder_that_takes_nothing(place, tmp_path):
    """In /proc/self no lock can be made, and waiting for it would last for ever."""
    if place.startswith("/proc") and not Path(place).is_dir():
        pytest.skip(f"there is no {place} on this system")
    (tmp_path / "file").write_text("")
    code, line = install(tmp_path / place)
    assert code == 2
    assert line.startswith(f"cannot write to the oracle's folder {tmp_path / place}: ")
    assert line.endswith("; name another one with BNGRAD_ORACLE_DIR\n")


@pytest.mark.parametrize(
    "everybody",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["as-a-terminal-does", "the-command-alone"],
)
def test_interrupted(everybody, tmp_path):
    with subprocess.Popen(
        COMMAND,
        env=environ(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while not any(".partial-" in path.name for path in tmp_path.iterdir()):
            assert process.poll() is None
            time.sleep(0.001)
        if everybody:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=600)
    assert (process.returncode, output) == (130, "")
    where = r"(bngrad: interrupted: at (['\"]).*\2, after \d+:\d\d; files are as they were, or complete)?"
    assert re.fullmatch(where, errors.strip())
    assert left(tmp_path) == []


def test_interrupted_while_a_child_starts(monkeypatch):
    """`subprocess.Popen` then forgets its child, which would go on writing to a folder that is gone."""
    begun = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            begun.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.run([sys.executable, "-c", "import time; time.sleep(600)"])
    assert [process.returncode for process in begun] == [-signal.SIGKILL]
