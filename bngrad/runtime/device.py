"""The devices that sessions run on, with ONNX Runtime's execution providers, which no other module names.

A new kind of device is a row of `_KINDS`; `execution_providers` adds its options, such as the index.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from bngrad.errors import BngradError, InputError
from bngrad.runtime import cuda_errors, webgpu_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = "cpu"
CUDA = "cuda"
WEBGPU = "webgpu"


class _Kind(NamedTuple):
    """A kind of device: its execution provider, and the indices that its devices can have."""

    provider: str
    indices: range


_KINDS = {
    CPU: _Kind("CPUExecutionProvider", range(1)),
    CUDA: _Kind("CUDAExecutionProvider", range(100)),
    WEBGPU: _Kind("WebGpuExecutionProvider", range(1)),
}
_FAILURES = {CUDA: cuda_errors.failure, WEBGPU: webgpu_errors.failure}
"""The functions that make a `DeviceError` of an error of ONNX Runtime about such a device."""

PROVIDERS = {kind.provider: name for name, kind in _KINDS.items()}
"""The first device of each execution provider."""


class DeviceOptions(NamedTuple):
    """The options of sessions on a CUDA device."""

    tf32: bool = False
    """True to round the factors of convolutions and matrix products to TF32, of 10 bits."""
    cuda_graph: bool = False
    """True to capture a run as a CUDA graph, and to replay it then."""
    cpu_nodes: bool = True
    """False to refuse nodes that the device has no kernel of, which would run on the CPU."""


@dataclass(frozen=True)
class Device:
    """A device by its kind, and by its index among the devices of that kind."""

    kind: str
    index: int

    @classmethod
    def of(cls, name: object) -> Device:
        """Returns the device of a name, such as ``cpu``, ``cuda:1`` or ``webgpu``, whether or not it exists.

        Raises:
            InputError: The name is not a string, or names no supported device.
        """
        if not isinstance(name, str):
            raise InputError(f"device is {name!r}; expected a string such as {CPU!r}")
        kind, colon, index = name.partition(":")
        if kind not in _KINDS or (colon and index not in map(str, _KINDS[kind].indices)):
            raise InputError(
                f"device {name!r} is not supported; expected {CPU!r}, {CUDA!r} or {WEBGPU!r}, or with an index "
                f"'{CUDA}:1'"
            )
        return cls(kind, int(index or 0))

    def __str__(self) -> str:
        """Returns the name, with the index if there can be several of the kind."""
        return self.kind if len(_KINDS[self.kind].indices) == 1 else f"{self.kind}:{self.index}"

    @property
    def provider(self) -> str:
        """The execution provider of ONNX Runtime."""
        return _KINDS[self.kind].provider

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Raises an error of ONNX Runtime about the device, such as no memory left, as a `DeviceError`."""
        try:
            yield
        except BngradError:
            raise
        except Exception as error:
            device_error = _FAILURES[self.kind](str(self), error) if self.kind in _FAILURES else None
            if device_error is None:
                raise
            raise device_error from error


def execution_providers(device: str = CPU, options: DeviceOptions | None = None) -> list[Any]:
    """Returns the ``providers`` that an `onnxruntime.InferenceSession` takes for a device.

    None for WebGPU: the session's options have its plugin, see `open_session`.

    Args:
        device: The name of the device.
        options: The options of a CUDA device.

    Raises:
        InputError: See `Device.of`; or an option is given for another device than CUDA.
    """
    kind, index = (parsed := Device.of(device)).kind, parsed.index
    options = options or DeviceOptions()
    if kind != CUDA:
        if wrong := [name for name in options._fields if getattr(options, name) != options._field_defaults[name]]:
            raise InputError(f"{wrong[0]} is for CUDA devices, and the device is {device!r}")
        return [_KINDS[CPU].provider] if kind == CPU else []
    settings = {
        "device_id": str(index),
        "use_tf32": str(int(options.tf32)),
        "enable_cuda_graph": str(int(options.cuda_graph)),
        # By rules instead of by timing, so that every run takes the same algorithms.
        "cudnn_conv_algo_search": "HEURISTIC",
        # The arena grows by what is needed: doubled, it would take memory that other sessions need.
        "arena_extend_strategy": "kSameAsRequested",
    }
    return [(_KINDS[CUDA].provider, settings), *([_KINDS[CPU].provider] if options.cpu_nodes else [])]
