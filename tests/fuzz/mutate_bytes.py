"""Mutations of bytes, regardless of the file format."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fuzz.draw import Draw


def flip_bits(draw: Draw, data: bytearray) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def set_bytes(draw: Draw, data: bytearray) -> None:
    for _ in range(draw.choice((1, 1, 2, 8))):
        data[draw.randrange(len(data))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))


def truncate(draw: Draw, data: bytearray) -> None:
    del data[draw.randrange(len(data)) :]


def cut(draw: Draw, data: bytearray) -> None:
    start = draw.randrange(len(data))
    del data[start : start + draw.choice((1, 2, 4, 16, 64))]


def repeat(draw: Draw, data: bytearray) -> None:
    start = draw.randrange(len(data))
    part = data[start : start + draw.choice((1, 2, 8, 64))]
    data[start:start] = part * draw.choice((1, 2, 20))


def insert(draw: Draw, data: bytearray) -> None:
    start = draw.randrange(len(data) + 1)
    data[start:start] = draw.randbytes(draw.choice((1, 2, 8, 64)))


def zero(draw: Draw, data: bytearray) -> None:
    start = draw.randrange(len(data))
    length = min(draw.choice((4, 16, 64)), len(data) - start)
    data[start : start + length] = bytes(length)


def long_number(draw: Draw, data: bytearray) -> None:
    """Inserts a varint of maximum length, which may be a length, a tag or a number."""
    data[draw.randrange(len(data))] = 0xFF
    start = draw.randrange(len(data))
    data[start : start + 1] = b"\xff" * draw.choice((3, 8, 9, 10)) + b"\x01"


MUTATIONS = (flip_bits, flip_bits, set_bytes, truncate, cut, repeat, insert, zero, long_number)
"""The mutations; listed twice means twice as often."""
