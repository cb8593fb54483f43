"""The platforms that wheels are built for: everything that differs between them is in this table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Target:
    """A platform. zig.cmake derives CMake's system and processor from `zig`."""

    zig: str
    """The target as zig spells it, with the oldest release of the system's C library."""

    tag: str
    """The wheel's platform tag; more than one separated by dots, as in a file name."""

    file_format: Literal["ELF", "MACHO", "PE"]
    machine: Literal["X86_64", "ARM64"]

    kernels: tuple[str, ...]
    """The instruction sets of ops/kernels/kernels.inc, best first."""

    system_libraries: frozenset[str]
    """The libraries that ours may need; each is part of every system with this tag."""

    @property
    def library(self) -> str:
        """The library's file name."""
        return {"ELF": "libbngrad.so", "MACHO": "libbngrad.dylib", "PE": "bngrad.dll"}[self.file_format]


_X86_64, _ARM64 = ("avx512", "avx2", "scalar"), ("neon", "scalar")
_GLIBC = frozenset(
    {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
)
_MUSL = frozenset({"libc.so"})
_MACOS = frozenset({"/usr/lib/libSystem.B.dylib"})
_WINDOWS = frozenset(
    {"kernel32.dll"}
    | {
        f"api-ms-win-crt-{part}-l1-1-0.dll"  # the universal C runtime, which every Windows 10 has
        for part in (
            "convert",
            "environment",
            "filesystem",
            "heap",
            "locale",
            "math",
            "private",
            "runtime",
            "stdio",
            "string",
            "time",
            "utility",
        )
    }
)

TARGETS = {
    "linux-x86_64": Target(
        "x86_64-linux-gnu.2.17", "manylinux2014_x86_64.manylinux_2_17_x86_64", "ELF", "X86_64", _X86_64, _GLIBC
    ),
    "linux-aarch64": Target(
        "aarch64-linux-gnu.2.17", "manylinux2014_aarch64.manylinux_2_17_aarch64", "ELF", "ARM64", _ARM64, _GLIBC
    ),
    "musl-x86_64": Target("x86_64-linux-musl", "musllinux_1_2_x86_64", "ELF", "X86_64", _X86_64, _MUSL),
    "musl-aarch64": Target("aarch64-linux-musl", "musllinux_1_2_aarch64", "ELF", "ARM64", _ARM64, _MUSL),
    "macos-arm64": Target("aarch64-macos.11.0", "macosx_11_0_arm64", "MACHO", "ARM64", _ARM64, _MACOS),
    "macos-x86_64": Target("x86_64-macos.11.0", "macosx_11_0_x86_64", "MACHO", "X86_64", _X86_64, _MACOS),
    "windows-x86_64": Target("x86_64-windows-gnu", "win_amd64", "PE", "X86_64", _X86_64, _WINDOWS),
    "windows-arm64": Target("aarch64-windows-gnu", "win_arm64", "PE", "ARM64", _ARM64, _WINDOWS),
}
