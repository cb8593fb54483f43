"""The licences of what zig links into the library statically, as one text for all wheels."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_INTRODUCTION = """\
The native library in this wheel contains compiled parts of the following projects.
Their licenses follow, as the compiler's distribution has them.
"""

_NOTICES = {
    "LLVM libc++ (all wheels)": "lib/libcxx/LICENSE.TXT",
    "LLVM libc++abi (all wheels)": "lib/libcxxabi/LICENSE.TXT",
    "LLVM libunwind (all wheels)": "lib/libunwind/LICENSE.TXT",
    "Zig compiler runtime (all wheels)": "LICENSE",
    "MinGW-w64 runtime (Windows wheels)": "lib/libc/mingw/COPYING",
    "musl libc, functions that MinGW-w64 lacks (Windows wheels)": "lib/libc/musl/COPYRIGHT",
}
"""Title to file in the package ziglang. The startup files of glibc and musl may be linked without a notice."""


def write_notices(path: Path, ziglang: Path) -> None:
    """Writes the text to a file.

    Args:
        path: The file.
        ziglang: The folder of the package ziglang.
    """
    texts = [_INTRODUCTION]
    for title, name in _NOTICES.items():
        line = "=" * len(title)
        texts += [f"{line}\n{title}\n{line}\n", (ziglang / name).read_text(encoding="utf-8").strip() + "\n"]
    path.write_text("\n".join(texts), encoding="utf-8", newline="\n")
