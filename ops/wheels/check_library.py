"""What is wrong with the native library of a wheel, as lines of text. LIEF reads ELF, Mach-O and PE."""

from __future__ import annotations

from typing import TYPE_CHECKING

import lief

from ops.wheels.macho import signature_is_valid

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from ops.wheels.targets import Target

lief.logging.disable()

_MACHINES = {
    "ELF": {lief.ELF.ARCH.X86_64: "X86_64", lief.ELF.ARCH.AARCH64: "ARM64"},
    "MACHO": {lief.MachO.Header.CPU_TYPE.X86_64: "X86_64", lief.MachO.Header.CPU_TYPE.ARM64: "ARM64"},
    "PE": {lief.PE.Header.MACHINE_TYPES.AMD64: "X86_64", lief.PE.Header.MACHINE_TYPES.ARM64: "ARM64"},
}
_PE_FLAGS = lief.PE.OptionalHeader.DLL_CHARACTERISTICS


def library_problems(content: bytes, target: Target, functions: AbstractSet[str]) -> Iterator[str]:
    """Yields what is wrong with a library.

    Args:
        content: The file.
        target: The platform that it is for.
        functions: The names that it has to export.
    """
    binary = lief.parse(list(content))
    found = binary.format.name if binary is not None else "unknown"
    if found != target.file_format:
        yield f"the file format is {found}, expected {target.file_format}"
        return
    cpu = binary.header.cpu_type if found == "MACHO" else getattr(binary.header, "machine_type", None)
    cpu = binary.header.machine if found == "PE" else cpu
    machine = _MACHINES[found].get(cpu, str(cpu))
    if machine != target.machine:
        yield f"the machine is {machine}, expected {target.machine}"
        return
    yield from _name_problems(_exports(binary), functions)
    needed = {name.lower() if found == "PE" else name for name in _needed(binary)}
    yield from (f"needs {name}, which not every system has" for name in sorted(needed - target.system_libraries))
    for kernel in target.kernels:
        if f"\0{kernel}\0".encode() not in content:
            yield f"has no kernels for {kernel}"
    yield from {"ELF": _elf_problems, "MACHO": _macho_problems, "PE": _pe_problems}[found](binary, content, target)


def _exports(binary: lief.ELF.Binary | lief.MachO.Binary | lief.PE.Binary) -> set[str]:
    if isinstance(binary, lief.ELF.Binary):
        return {symbol.name for symbol in binary.exported_symbols}
    if isinstance(binary, lief.MachO.Binary):
        exports = binary.dyld_info.exports if binary.has_dyld_info else binary.dyld_exports_trie.exports
        return {export.symbol.name.removeprefix("_") for export in exports}
    return {entry.name for entry in binary.get_export().entries} if binary.has_exports else set()


def _needed(binary: lief.ELF.Binary | lief.MachO.Binary | lief.PE.Binary) -> set[str]:
    if isinstance(binary, lief.ELF.Binary):
        return set(binary.libraries)
    if isinstance(binary, lief.MachO.Binary):
        loads = (command for command in binary.libraries if command.command != lief.MachO.LoadCommand.TYPE.ID_DYLIB)
        return {command.name for command in loads}
    return {entry.name for entry in binary.imports}


def _name_problems(exports: set[str], functions: AbstractSet[str]) -> Iterator[str]:
    yield from (f"does not export {name}" for name in sorted(functions - exports))
    yield from (f"exports {name}, which is not in bngrad.h" for name in sorted(exports - functions))


def _elf_problems(binary: lief.ELF.Binary, _: bytes, __: Target) -> Iterator[str]:
    if binary.has(lief.ELF.DynamicEntry.TAG.RPATH) or binary.has(lief.ELF.DynamicEntry.TAG.RUNPATH):
        yield "has a run path"
    if any(section.name == ".symtab" or section.name.startswith(".debug") for section in binary.sections):
        yield "is not stripped"
    stack = binary.get(lief.ELF.Segment.TYPE.GNU_STACK)
    if stack is None or lief.ELF.Segment.FLAGS.X in stack.flags:
        yield "asks for an executable stack"


def _macho_problems(binary: lief.MachO.Binary, content: bytes, target: Target) -> Iterator[str]:
    # Of the names that are left, all are exported or imported, but for the thunks that zig's linker adds last.
    debug_or_local = [s for s in binary.symbols if s.raw_type & 0xE0 or not s.raw_type & 0x01]
    if any(not symbol.name.endswith("__thunk") for symbol in debug_or_local):
        yield "is not stripped"
    if binary.has(lief.MachO.LoadCommand.TYPE.RPATH):
        yield "has a run path"
    minimum = tuple(int(part) for part in target.tag.split("_")[1:3])
    found = tuple(binary.build_version.minos[:2]) if binary.has_build_version else None
    if found != minimum:
        yield f"the oldest macOS is {found}, expected {minimum}"
    if binary.header.has(lief.MachO.Header.FLAGS.WEAK_DEFINES):
        yield "defines weak symbols, which other libraries may bind to"
    signed = binary.has_code_signature and signature_is_valid(content, binary.code_signature.data_offset)
    if not signed and (binary.has_code_signature or target.machine == "ARM64"):
        yield "has no valid ad-hoc signature"


def _pe_problems(binary: lief.PE.Binary, _: bytes, __: Target) -> Iterator[str]:
    for flag in (_PE_FLAGS.DYNAMIC_BASE, _PE_FLAGS.NX_COMPAT, _PE_FLAGS.HIGH_ENTROPY_VA):
        if not binary.optional_header.has(flag):
            yield f"{flag.name} is not set"
    if binary.header.numberof_symbols or any(section.name.startswith("/") for section in binary.sections):
        yield "is not stripped"
