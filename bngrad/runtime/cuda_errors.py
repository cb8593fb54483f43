"""Errors of ONNX Runtime about a CUDA device, as one line."""

from __future__ import annotations

import re

from bngrad.errors import DeviceError

_FAILURE = re.compile(r"(?:CUDA|CUDNN|CUBLAS|CUFFT)\w* failure \w+: [^;]*[^;\s]", re.IGNORECASE)
_NO_MEMORY = re.compile(
    r"Failed to allocate memory for requested buffer of size (?P<size>\d+)|is smaller than requested bytes of "
    r"(?P<requested>\d+)|CUDA failure 2: out of memory|CUDA_ERROR_OUT_OF_MEMORY|CU\w+_STATUS_ALLOC_FAILED"
)
_NO_CAPTURE = re.compile(
    r"cannot use the (?:graph capture|CUDA Graph) feature.*?(?:as|since) ((?:all|the model).*)"
)


def failure(device: str, error: Exception) -> DeviceError | None:
    """Returns the error to raise for one of ONNX Runtime about a CUDA device; None if it is about something else.

    Args:
        device: The device.
        error: The error of ONNX Runtime.
    """
    text = " ".join(str(error).split())
    if match := _NO_MEMORY.search(text):
        size = match["size"] or match["requested"]
        requested = f" ({int(size):,} bytes more were requested)" if size else ""
        return DeviceError(
            f"device {device!r} is out of memory{requested}; take smaller batches, or free its memory"
        )
    if match := _NO_CAPTURE.search(text):
        return DeviceError(
            f"cuda_graph needs a step whose nodes are all on the device ({match[1].rstrip('. ')}); leave it out"
        )
    if match := _FAILURE.search(text):
        return DeviceError(f"device {device!r} failed: {match[0]}")
    return None
