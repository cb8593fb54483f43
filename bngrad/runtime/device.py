"""The devices that sessions run on, with ONNX Runtime's execution providers, which no other module names.

A new kind of device is a row of `_KINDS`; `execution_providers` adds its options, such as the index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from bngrad.errors import InputError

CPU = "cpu"


class _Kind(NamedTuple):
    """A kind of device: its execution provider, and the indices of its devices."""

    provider: str
    indices: range


_KINDS = {CPU: _Kind("CPUExecutionProvider", range(1))}


@dataclass(frozen=True)
class Device:
    """A device by its kind, and by its index among the devices of that kind."""

    kind: str
    index: int

    @classmethod
    def of(cls, name: object) -> Device:
        """Returns the device of a name, such as ``cpu`` or ``cpu:0``.

        Raises:
            InputError: The name is not a string, or names no supported device.
        """
        if not isinstance(name, str):
            raise InputError(f"device is {name!r}; expected a string such as {CPU!r}")
        kind, colon, index = name.partition(":")
        if kind not in _KINDS or (colon and index not in map(str, _KINDS[kind].indices)):
            raise InputError(f"device {name!r} is not supported; expected {' or '.join(map(repr, _KINDS))}")
        return cls(kind, int(index or 0))


def execution_providers(device: str = CPU) -> list[Any]:
    """Returns the ``providers`` that an `onnxruntime.InferenceSession` takes for a device.

    Raises:
        InputError: See `Device.of`.
    """
    return [_KINDS[Device.of(device).kind].provider]
