"""Building the library from its sources with CMake, as a C++ user does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "ops"

CMAKE = shutil.which("cmake", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
"""That of this Python's environment, which the tests require, before any other."""


def cmake(*arguments):
    done = subprocess.run([CMAKE, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
