"""The parts of other projects that zig links into the library statically, with their licenses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ops.wheels.targets import Target

_LLVM = "Apache-2.0 WITH LLVM-exception"


@dataclass(frozen=True)
class Component:
    """A part of the library. Its files are in the package ziglang."""

    name: str
    wheels: str
    """The wheels that have it, in words."""
    zig: str
    """A regular expression for the targets of zig that have it."""
    license: str
    """Its SPDX expression."""
    license_file: str | None
    """The text of the license in the package; None if the library may be passed on without it."""
    source: tuple[str, str] | None = None
    """The file that has the version, and a regular expression whose groups are its numbers. An empty file name
    stands for the package ziglang itself; None if the package does not record the version."""

    @property
    def title(self) -> str:
        """The name with the wheels that have it."""
        return f"{self.name} ({self.wheels} wheels)"

    def version(self, ziglang: Path, version_of_zig: str) -> str | None:
        """Returns the version, from the files of the package ziglang; None if it does not record it.

        Raises:
            ValueError: The file has none.
        """
        if self.source is None:
            return None
        file, pattern = self.source
        if not file:
            return version_of_zig
        match = re.search(pattern, (ziglang / file).read_text(encoding="utf-8"), re.DOTALL)
        if match is None:
            raise ValueError(f"{file} has no version of {self.name}")
        return ".".join(str(int(group)) for group in match.groups())


_ZIG = ("", "")
_LIBCXX = ("lib/libcxx/include/__config", r"define _LIBCPP_VERSION (\d\d)(\d\d)(\d\d)\b")
_MINGW = (
    "lib/libc/include/any-windows-any/_mingw_mac.h",
    r"VERSION_MAJOR (\d+)\s.*?VERSION_MINOR (\d+)\s.*?VERSION_BUGFIX (\d+)\s",
)
_MUSL = ("lib/libc/musl/src/internal/version.h", r'VERSION "(\d+)\.(\d+)\.(\d+)"')

COMPONENTS = (
    Component("LLVM libc++", "all", "", _LLVM, "lib/libcxx/LICENSE.TXT", _LIBCXX),
    Component("LLVM libc++abi", "all", "", _LLVM, "lib/libcxxabi/LICENSE.TXT", _LIBCXX),
    Component("LLVM libunwind", "Linux and Windows", "linux|windows", _LLVM, "lib/libunwind/LICENSE.TXT", _LIBCXX),
    Component("Zig compiler runtime", "all", "", "MIT", "LICENSE", _ZIG),
    Component("MinGW-w64 runtime", "Windows", "windows", "ZPL-2.1", "lib/libc/mingw/COPYING", _MINGW),
    Component(
        "musl libc, functions that MinGW-w64 lacks", "Windows", "windows", "MIT", "lib/libc/musl/COPYRIGHT", _MUSL
    ),
    Component("musl libc, startup files", "musl", "musl", "MIT", None, _MUSL),
    Component(
        "glibc, startup files and libc_nonshared",
        "glibc",
        r"gnu\.",
        "LGPL-2.1-or-later WITH GCC-exception-2.0-note",
        None,
    ),
)
"""In the order of the notices. The files of glibc and musl may be linked without a notice."""


def components_of(target: Target) -> list[Component]:
    """Returns the components of a platform's library."""
    return [component for component in COMPONENTS if re.search(component.zig, target.zig)]
