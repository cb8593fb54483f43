"""Installs bngrad into an environment of its own, and prints the path of its Python on stdout.

A step of action.yml. It needs the standard library alone, and runs with any Python that bngrad supports.
"""  # noqa: INP001

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def requirement(version: str, against: str) -> str:
    """Returns what pip installs.

    Args:
        version: A version on the package index; a requirement, a path or an address of a wheel; or nothing, for
            the checkout that this file is in.
        against: The reference of ``bngrad validate``; ``torch`` needs PyTorch.
    """
    extra = "[torch]" if against == "torch" else ""
    if not version:
        return f"{CHECKOUT}{extra}"
    return f"bngrad{extra}=={version}" if re.fullmatch(r"\d[\w.+!-]*", version) else version


def main() -> int:
    """Installs; returns the exit code of pip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of the environment")
    parser.add_argument("--version", default="")
    parser.add_argument("--against", default="ort")
    arguments = parser.parse_args()
    venv.create(arguments.folder, with_pip=True, clear=True)
    python = arguments.folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    # After --: a requirement is never read as an option.
    wanted = requirement(arguments.version, arguments.against)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--", wanted]
    code = subprocess.run(pip, stdout=sys.stderr, check=False).returncode
    if code == 0:
        sys.stdout.write(f"{python}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
