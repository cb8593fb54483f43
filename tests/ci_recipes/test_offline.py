"""The oracle is installed without a network from wheels that pip has downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bngrad.oracle.interpreter import find_interpreter
from bngrad.oracle.packages import REQUIREMENTS
from page_examples import blocks

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "ci.md"
NOWHERE = {"PIP_NO_INDEX": "1", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


@pytest.mark.long
def test_the_oracle_is_installed_from_downloaded_wheels(tmp_path):
    (page,) = (block.text for block in blocks(GUIDE) if "pip download" in block.text)
    (line,) = (line for line in page.splitlines() if "requirements.txt" in line)
    (tmp_path / "requirements.txt").write_bytes(REQUIREMENTS.read_bytes())
    words = line.removeprefix("$ pip ").split()
    subprocess.run([find_interpreter(), "-m", "pip", *words], cwd=tmp_path, check=True)
    environment = os.environ | NOWHERE | {"BNGRAD_ORACLE_DIR": str(tmp_path / "oracle")}
    command = [sys.executable, "-m", "bngrad", "oracle", "install"]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "bngrad: error: " in refused.stderr
    subprocess.run(command, env=environment | {"PIP_FIND_LINKS": str(tmp_path / "wheels")}, check=True)
    status = [*command[:-1], "status"]
    assert subprocess.run(status, env=environment, check=False).returncode == 0
