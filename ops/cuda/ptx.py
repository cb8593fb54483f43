"""Compiles the CUDA kernels to PTX with the clang of ziglang, a Python package; no CUDA toolkit is needed.

    python ops/cuda/ptx.py OUTPUT.cc

writes the text of all modules as the compressed array of cuda/ptx.hpp. It is for sm_70; a driver compiles it for
that card and later ones.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).parents[1]
MODULES = {"float32": "float", "float64": "double", "float16": "Float16", "bfloat16": "BFloat16"}
"""The element types by the names of their modules, in the order of kElementTypes."""

LZMA = dict(id=lzma.FILTER_LZMA1, preset=9 | lzma.PRESET_EXTREME, dict_size=1 << 23, lc=0, lp=0, pb=0)  # noqa: C408
"""The stream that cuda/lzma.hpp reads."""


def module_text(module: str) -> str:
    """Returns the PTX of a module.

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
        *("-o", "-", SOURCES / "cuda" / "kernels" / "kernels.cu"),
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"ptx.py: {module}: {done.stdout}{done.stderr}")
    return done.stdout


def embedded(text: bytes) -> str:
    """Returns the C++ source of the array with a text."""
    compressed = lzma.compress(text, format=lzma.FORMAT_RAW, filters=[LZMA])
    rows = (compressed[begin : begin + 32] for begin in range(0, len(compressed), 32))
    return "\n".join(
        [
            "// Written by cuda/ptx.py.",
            '#include "cuda/ptx.hpp"',
            "namespace bngrad::cuda {",
            f"const size_t kPtxSize = {len(compressed)}, kPtxTextSize = {len(text)};",
            "const uint8_t kPtx[] = {",
            *(",".join(map(str, row)) + "," for row in rows),
            "};",
            "}  // namespace bngrad::cuda",
            "",
        ]
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python ops/cuda/ptx.py OUTPUT.cc")
    modules = "".join(f"{module_text(name)}\0" for name in MODULES)
    Path(sys.argv[1]).write_text(embedded(modules.encode()), encoding="ascii")
