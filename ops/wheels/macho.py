"""Mach-O libraries: exports that zig's linker cannot be told to leave out, and ad-hoc signatures."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, NamedTuple

import lief

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

lief.logging.disable()

_CODE_DIRECTORY = 0xFADE0C02
_SHA256 = 2
_ADHOC = 2


class CodeDirectory(NamedTuple):
    """The part of an ad-hoc signature that has the hash of each page: CS_CodeDirectory of XNU's cs_blobs.h."""

    begin: int
    """Where it begins in the file."""
    flags: int
    hash_offset: int
    slots: int
    limit: int
    """The number of bytes that are signed, from the beginning of the file."""
    page: int

    def hash_of(self, content: bytes | bytearray, slot: int) -> bytes:
        """Returns the hash of a page, as the signature should have it."""
        return hashlib.sha256(content[slot * self.page : min((slot + 1) * self.page, self.limit)]).digest()

    def slot(self, slot: int) -> slice:
        """Returns where in the file the hash of a page is."""
        begin = self.begin + self.hash_offset + slot * hashlib.sha256().digest_size
        return slice(begin, begin + hashlib.sha256().digest_size)


def code_directory(content: bytes | bytearray, signature: int) -> CodeDirectory:
    """Reads the code directory of the signature that begins at an offset of a file.

    Raises:
        ValueError: It is not an ad-hoc signature as linkers make them: one code directory, with SHA-256.
    """
    count, _, offset = struct.unpack_from(">3I", content, signature + 8)
    begin = signature + offset
    magic, _, _, flags, hash_offset, _, _, slots, limit = struct.unpack_from(">9I", content, begin)
    size, kind, _, page = struct.unpack_from("4B", content, begin + 36)
    if (count, magic, flags & _ADHOC, size, kind) != (1, _CODE_DIRECTORY, _ADHOC, 32, _SHA256):
        raise ValueError("not an ad-hoc signature with one code directory of SHA-256 hashes")
    return CodeDirectory(begin, flags, hash_offset, slots, limit, 1 << page)


def signature_is_valid(content: bytes, signature: int) -> bool:
    """Returns whether every page of a file has the hash that its signature has, up to the signature itself."""
    try:
        directory = code_directory(content, signature)
    except (ValueError, struct.error):
        return False
    return directory.limit == signature <= directory.slots * directory.page and all(
        content[directory.slot(slot)] == directory.hash_of(content, slot) for slot in range(directory.slots)
    )


def hide_exports(library: bytes, names: AbstractSet[str]) -> bytes:
    """Removes names from the exports of a library, and renews the hashes of its signature. Nothing moves.

    Raises:
        ValueError: The signature cannot be renewed.
    """
    binary = lief.MachO.parse(list(library)).at(0)
    content = bytearray(library)
    begin, size = binary.dyld_info.export_info
    trie = content[begin : begin + size]
    _prune(trie, 0, b"", {name.encode() for name in names})
    content[begin : begin + size] = trie
    if binary.has_code_signature:
        directory = code_directory(content, binary.code_signature.data_offset)
        for slot in range(directory.slots):
            content[directory.slot(slot)] = directory.hash_of(content, slot)
    return bytes(content)


def _prune(trie: bytearray, node: int, name: bytes, hidden: AbstractSet[bytes]) -> bool:
    """Removes hidden names from the node of an export trie (mach-o/loader.h) and from those below it.

    A node is the size of its data, the data if its name is exported, the number of edges, and the edges: the
    characters that they add to the name, and where the next node begins. No node moves; unused bytes become zero.

    Returns:
        Whether the node still exports something.
    """
    edges = node + 1 + trie[node]  # the data takes less than 128 bytes
    data = b"" if name in hidden else bytes(trie[node + 1 : edges])
    end, kept = edges + 1, []
    for _ in range(trie[edges]):
        begin, label_end = end, trie.index(0, end)
        child, end = _uleb128(trie, label_end + 1)
        if _prune(trie, child, name + trie[begin:label_end], hidden):
            kept.append(bytes(trie[begin:end]))
    trie[node:end] = (bytes([len(data)]) + data + bytes([len(kept)]) + b"".join(kept)).ljust(end - node, b"\0")
    return bool(data or kept)


def _uleb128(data: bytearray, begin: int) -> tuple[int, int]:
    """Returns the number that begins at an offset, and where it ends."""
    value = shift = 0
    while True:
        byte = data[begin]
        begin += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, begin
