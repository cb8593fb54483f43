"""The faults of a wheel's native library, as lines of text. LIEF reads ELF, Mach-O and PE."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import lief

from ops.wheels.macho import signature_is_valid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from ops.wheels.targets import Target

lief.logging.disable()

_PE_FLAGS = lief.PE.OptionalHeader.DLL_CHARACTERISTICS


class _Library(NamedTuple):
    """The properties that every format has."""

    machine: str
    """In LIEF's words for this format."""
    exports: set[str]
    needed: set[str]
    faults: list[str]
    """Violations of the rules of the format."""


_MACHINES = {"X86_64": "X86_64", "AMD64": "X86_64", "AARCH64": "ARM64", "ARM64": "ARM64"}
"""LIEF's words to those of targets.py."""


def library_problems(content: bytes, target: Target, functions: AbstractSet[str]) -> Iterator[str]:
    """Yields what is wrong with a library.

    Args:
        content: The file.
        target: The platform that it is for.
        functions: The names that it has to export.
    """
    binary = lief.parse(list(content))
    file_format = binary.format.name if binary is not None else "unknown"
    if file_format != target.file_format:
        yield f"the file format is {file_format}, expected {target.file_format}"
        return
    library = {"ELF": _elf, "MACHO": _macho, "PE": _pe}[file_format](binary, content, target)
    machine = _MACHINES.get(library.machine, library.machine)
    if machine != target.machine:
        yield f"the machine is {machine}, expected {target.machine}"
        return
    yield from (f"does not export {name}" for name in sorted(functions - library.exports))
    yield from (f"exports {name}, which is not in bngrad.h" for name in sorted(library.exports - functions))
    for name in sorted(library.needed - target.system_libraries):
        yield f"needs {name}, which not every system has"
    for kernel in target.kernels:
        if f"{kernel}\0".encode() not in content:  # a linker may write a name as the end of a longer text
            yield f"has no kernels for {kernel}"
    yield from library.faults


def _elf(binary: lief.ELF.Binary, _: bytes, __: Target) -> _Library:
    faults = []
    if binary.has(lief.ELF.DynamicEntry.TAG.RPATH) or binary.has(lief.ELF.DynamicEntry.TAG.RUNPATH):
        faults.append("has a run path")
    if any(section.name == ".symtab" or section.name.startswith(".debug") for section in binary.sections):
        faults.append("is not stripped")
    stack = binary.get(lief.ELF.Segment.TYPE.GNU_STACK)
    if stack is None or lief.ELF.Segment.FLAGS.X in stack.flags:
        faults.append("asks for an executable stack")
    exports = {symbol.name for symbol in binary.exported_symbols}
    return _Library(binary.header.machine_type.name, exports, set(binary.libraries), faults)


def _macho(binary: lief.MachO.Binary, content: bytes, target: Target) -> _Library:
    faults = []
    # zig's linker adds the names of thunks after it has stripped.
    local = {s.name for s in binary.symbols if s.category == lief.MachO.Symbol.CATEGORY.LOCAL}
    if any(not name.endswith("__thunk") for name in local):
        faults.append("is not stripped")
    if binary.has(lief.MachO.LoadCommand.TYPE.RPATH):
        faults.append("has a run path")
    oldest = ".".join(target.tag.split("_")[1:3])
    stated = ".".join(map(str, binary.build_version.minos[:2])) if binary.has_build_version else "not stated"
    if stated != oldest:
        faults.append(f"the oldest macOS is {stated}, expected {oldest}")
    if binary.header.has(lief.MachO.Header.FLAGS.WEAK_DEFINES):
        faults.append("defines weak symbols, which other libraries may bind to")
    signed = binary.has_code_signature
    if signed or target.machine == "ARM64":  # where every library has to be signed
        valid = signed and signature_is_valid(content, binary.code_signature.data_offset)
        faults += [] if valid else ["has no valid ad-hoc signature"]
    exports = {export.symbol.name.removeprefix("_") for export in binary.dyld_info.exports}
    loads = [library for library in binary.libraries if library.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB]
    return _Library(binary.header.cpu_type.name, exports, {library.name for library in loads}, faults)


def _pe(binary: lief.PE.Binary, _: bytes, __: Target) -> _Library:
    flags = (_PE_FLAGS.DYNAMIC_BASE, _PE_FLAGS.NX_COMPAT, _PE_FLAGS.HIGH_ENTROPY_VA)
    faults = [f"{flag.name} is not set" for flag in flags if not binary.optional_header.has(flag)]
    if binary.header.numberof_symbols or any(
        section.name.startswith((".debug", "/")) for section in binary.sections
    ):
        faults.append("is not stripped")
    exports = {entry.name for entry in binary.get_export().entries} if binary.has_exports else set()
    needed = {library.name.lower() for library in binary.imports}
    return _Library(binary.header.machine.name, exports, needed, faults)
