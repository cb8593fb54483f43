"""Writes a training run as an event file of TensorBoard, record by record.

A file is a sequence of TFRecords: the length of the data as 8 bytes, its checksum, the data, their checksum. The
data are a message ``Event`` of Protocol Buffers with the time, the step, and a ``Summary`` of named numbers.
"""

from __future__ import annotations

import os
import platform
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bngrad.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from io import FileIO

_TAGS = {
    "loss": "loss/step",
    "training_loss": "loss/epoch",
    "validation_loss": "loss/validation",
    "accuracy": "accuracy/validation",
    "learning_rate": "learning_rate",
    "gradient_norm": "gradient_norm",
}
"""The tags of the values of a record."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types of Protocol Buffers."""

_CASTAGNOLI = 0x82F63B78
"""The polynomial of CRC-32C, reversed."""


class EventFile:
    """An event file in a folder, which is made if it is not there.

    Args:
        folder: The folder; a run that is resumed adds a file to it.

    Raises:
        InputError: The file cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        name = f"events.out.tfevents.{int(time.time())}.{platform.node() or 'localhost'}.{os.getpid()}.bngrad"
        self.path = Path(folder, name)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file: FileIO = self.path.open("xb", buffering=0)
        except OSError as error:
            raise self._unwritable(error) from None
        self._write(_field(1, _FIXED64, struct.pack("<d", time.time())) + _text(3, "brain.Event:2"))

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds the numbers of a record of a step or an epoch.

        Raises:
            InputError: The file cannot be written.
        """
        numbers = [(tag, record[key]) for key, tag in _TAGS.items() if record.get(key) is not None]
        values = b"".join(
            _message(1, _text(1, tag) + _field(2, _FIXED32, struct.pack("<f", number))) for tag, number in numbers
        )
        moment = _field(1, _FIXED64, struct.pack("<d", time.time()))
        self._write(moment + _field(2, _VARINT, _varint(record["step"])) + _message(5, values))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        framed = length + _checksum(length) + event + _checksum(event)
        try:
            written = self._file.write(framed)
        except OSError as error:
            raise self._unwritable(error) from None
        if written != len(framed):
            raise InputError(f"{self.path} cannot be written: the disk is full")

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"{self.path} cannot be written: {error.strerror or error}")


def _field(number: int, wire_type: int, content: bytes) -> bytes:
    return _varint(number << 3 | wire_type) + content


def _message(number: int, content: bytes) -> bytes:
    return _field(number, _BYTES, _varint(len(content)) + content)


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _table() -> Iterable[int]:
    for remainder in range(256):
        value = remainder
        for _ in range(8):
            value = value >> 1 ^ (_CASTAGNOLI if value & 1 else 0)
        yield value


_CRC_TABLE = tuple(_table())


def crc32c(content: bytes) -> int:
    """Returns the CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _checksum(content: bytes) -> bytes:
    """Returns the checksum of a TFRecord, which is rotated and shifted by a constant."""
    crc = crc32c(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
