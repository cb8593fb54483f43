"""Compiles the CUDA kernels to PTX with the clang of ziglang, a Python package; no CUDA toolkit is needed.

    python ops/cuda/ptx.py FOLDER

writes FOLDER/MODULE.ptx for each element type. The text is for sm_70, and a driver compiles it for that card and
later ones.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parents[1]
MODULES = {"float32": "float", "float64": "double", "float16": "Float16", "bfloat16": "BFloat16"}
"""The element types by the names of their modules."""


def compile_module(module: str, output: Path) -> None:
    """Writes the PTX of a module to a file.

    Raises:
        SystemExit: The compiler is missing or failed; the message has its output.
    """
    package = find_spec("ziglang")
    if package is None or package.origin is None:
        sys.exit("ptx.py: ziglang is missing; install it with: pip install ziglang==0.17.1")
    headers = Path(package.origin).parent / "lib" / "include"  # stdint.h and stddef.h, no others
    command = [
        *(sys.executable, "-m", "ziglang", "clang", "-S", "-O3", "-std=c++17", "-fno-exceptions", "-fno-rtti"),
        *("-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_70", "--cuda-feature=+ptx60"),
        *("-nocudainc", "-nocudalib", "-nostdinc"),
        *("-ffp-contract=off", "-Wno-unknown-cuda-version"),  # products and sums round as on the CPU
        *("-isystem", headers, f"-I{SOURCES}", f"-DBNGRAD_MODULE={module}", f"-DBNGRAD_T={MODULES[module]}"),
        *("-o", output, SOURCES / "cuda" / "kernels" / "kernels.cu"),
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"ptx.py: {module}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python ops/cuda/ptx.py FOLDER")
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODULES:
        compile_module(name, folder / f"{name}.ptx")
