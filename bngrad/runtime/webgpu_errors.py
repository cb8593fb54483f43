"""Errors of ONNX Runtime about a WebGPU device, as one line."""

from __future__ import annotations

import re

from bngrad.errors import DeviceError

_MESSAGES = {
    re.compile(pattern): message
    for pattern, message in (
        (
            r"(?P<reason>Failed to get a WebGPU (?:adapter|device)\b.*?)[. ]*$",
            "has no adapter ({reason}); install or update the driver of the GPU",
        ),
        (
            r"Buffer size \((?P<size>\d+)\) exceeds the max buffer size limit \((?P<limit>\d+)\)",
            "takes arrays of at most {limit} bytes, and one has {size}; take smaller batches",
        ),
        (
            r"\[Invalid Buffer[^]]*\] is invalid due to a previous error|OUT_OF_(?:DEVICE_|HOST_)?MEMORY",
            "is out of memory; take smaller batches, or free its memory",
        ),
        (r"requires f16 but the device does not support it", "has no float16; expected a model without it"),
        (
            r"running (?P<op>\w+) node\..* Status Message: (?P<reason>.*(?:not supported|Unsupported).*?)[. ]*$",
            "cannot run {op} ({reason}); use another device",
        ),
        (
            r"(?P<reason>(?:WebGPU validation failed|Failed to download data from buffer).*?)(?: - While|$)",
            "failed: {reason}",
        ),
    )
}
"""The message after the name of the device, by a pattern of ONNX Runtime's text; the first one counts."""


def failure(device: str, error: Exception) -> DeviceError | None:
    """Returns the error to raise for one of ONNX Runtime about a WebGPU device; None if it is about other things.

    Args:
        device: The device.
        error: The error of ONNX Runtime.
    """
    text = " ".join(str(error).split())
    for pattern, message in _MESSAGES.items():
        if match := pattern.search(text):
            parts = {
                name: f"{int(part):,}" if part.isdigit() else part for name, part in match.groupdict().items()
            }
            return DeviceError(f"device {device!r} {message.format(**parts)}")
    return None
