"""Lets this environment see the packages of another: python share_packages.py OTHER_PYTHON."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ASK = "import sysconfig; print(sysconfig.get_path('purelib'))"


def main() -> None:
    other = subprocess.run([sys.argv[1], "-c", ASK], check=True, capture_output=True, text=True).stdout.strip()
    line = f"import site; site.addsitedir({other!r})\n"
    (Path(sysconfig.get_path("purelib")) / "shared_packages.pth").write_text(line, encoding="utf-8")


if __name__ == "__main__":
    main()
