"""Export tries and ad-hoc signatures of Mach-O libraries, on a few bytes."""

from __future__ import annotations

import hashlib
import struct

import pytest

from ops.wheels.macho import _prune, code_directory, signature_is_valid

TRIE = bytes.fromhex(
    "00 01 5f00 05"  # 0: one edge, "_", to 5
    "00 02 6100 0d 6200 18"  # 5: "a" to 13, "b" to 24
    "02 0010 01 6200 14"  # 13: _a, and "b" to 20
    "02 0020 00"  # 20: _ab
    "02 0030 00"  # 24: _b
)


def exports(trie, node=0, name=""):
    """The names of a trie whose numbers all take one byte."""
    position = node + 2 + trie[node]
    names = {name} if trie[node] else set()
    for _ in range(trie[position - 1]):
        end = trie.index(0, position)
        names |= exports(trie, trie[end + 1], name + trie[position:end].decode())
        position = end + 2
    return names


@pytest.mark.parametrize(
    "hidden",
    [set(), {"_b"}, {"_a"}, {"_ab"}, {"_a", "_ab"}, {"_a", "_b"}, {"_c"}, {"_a", "_ab", "_b"}],
    ids=lambda names: " ".join(sorted(names)) or "none",
)
def test_prune(hidden):
    trie = bytearray(TRIE)
    assert exports(trie) == {"_a", "_ab", "_b"}
    _prune(trie, 0, b"", {name.encode() for name in hidden})
    assert exports(trie) == {"_a", "_ab", "_b"} - hidden
    assert len(trie) == len(TRIE)


def signed(content, page=4):
    """Content with an ad-hoc signature after it, whose pages have 2**page bytes."""
    pages = [content[begin : begin + (1 << page)] for begin in range(0, len(content), 1 << page)]
    hashes = b"".join(hashlib.sha256(page).digest() for page in pages)
    head = struct.pack(
        ">9I4BI", 0xFADE0C02, 44 + len(hashes), 0x20400, 2, 44, 44, 0, len(pages), len(content), 32, 2, 0, page, 0
    )
    blob = head + hashes
    return content + struct.pack(">5I", 0xFADE0CC0, 20 + len(blob), 1, 0, 20) + blob


def test_signature():
    content = signed(bytes(range(40)))
    assert signature_is_valid(content, 40)
    assert code_directory(content, 40).slots == 3


POSITIONS = {
    "first-page": 7,
    "last-page": 39,
    "number-of-directories": 40 + 11,
    "flags": 40 + 20 + 15,
    "limit": 40 + 20 + 35,
    "hash-type": 40 + 20 + 37,
    "last-hash": -1,
}


@pytest.mark.parametrize("position", POSITIONS.values(), ids=POSITIONS)
def test_a_changed_byte_makes_it_invalid(position):
    content = bytearray(signed(bytes(range(40))))
    content[position] ^= 2
    assert not signature_is_valid(bytes(content), 40)


def test_no_signature():
    assert not signature_is_valid(bytes(40), 40)
