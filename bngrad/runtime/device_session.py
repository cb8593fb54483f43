"""Sessions on a device, which exists and is used."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import onnxruntime

from bngrad.errors import DeviceError
from bngrad.runtime import cuda, webgpu
from bngrad.runtime.device import CPU, CUDA, WEBGPU, Device, DeviceOptions, execution_providers

if TYPE_CHECKING:
    from collections.abc import Iterator


def require_available(device: str) -> None:
    """Checks that there is a device, and what ONNX Runtime needs for it, as far as that shows without a session.

    Raises:
        InputError: See `Device.of`.
        DeviceError: The device, its driver or its libraries are missing or too old.
        VersionError: ONNX Runtime is too old for the device.
    """
    target = Device.of(device)
    if target.kind == CPU:
        return
    if target.kind == WEBGPU:
        with _quiet(target):
            webgpu.require_device()
        return
    if target.provider not in onnxruntime.get_available_providers():
        raise DeviceError(
            f"device {device!r} needs a build of ONNX Runtime for CUDA, and onnxruntime {onnxruntime.__version__} "
            "is built for the CPU; run pip uninstall onnxruntime, and pip install onnxruntime-gpu"
        )
    cuda.require_device(target.index)


def open_session(
    model: str | bytes,
    session_options: onnxruntime.SessionOptions,
    device: str = CPU,
    options: DeviceOptions | None = None,
) -> onnxruntime.InferenceSession:
    """Creates a session that runs on a device, or raises: ONNX Runtime by itself would go on with the CPU.

    Args:
        model: A path, or a serialized model.
        session_options: The options of the session.
        device: The name of the device.
        options: The options of a CUDA device.

    Raises:
        InputError: See `execution_providers`.
        DeviceError: The device, its driver or its libraries are missing or too old, or it has no memory left.
        VersionError: ONNX Runtime is too old for the device.
    """
    providers = execution_providers(device, options)
    require_available(device)
    target = Device.of(device)
    if options is not None and not options.cpu_nodes:
        session_options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if target.kind == WEBGPU:
        webgpu.add_to(session_options)
    with target.errors(), _quiet(target):
        # Without enable_fallback=0, the Python package retries on the CPU; releases before it ignore the keyword.
        session = onnxruntime.InferenceSession(model, session_options, providers=providers, enable_fallback=0)
    session.disable_fallback()
    if target.provider not in session.get_providers():
        reason = cuda.loading_error() if target.kind == CUDA else "the session's options have other devices"
        raise DeviceError(f"ONNX Runtime cannot load its support of {device!r}: {reason}")
    return session


@contextlib.contextmanager
def _quiet(device: Device) -> Iterator[None]:
    """Keeps ONNX Runtime from logging what is raised, and a warning about plugins that each GPU session has."""
    if device.kind == CPU:
        yield
        return
    onnxruntime.set_default_logger_severity(4)
    try:
        yield
    finally:
        onnxruntime.set_default_logger_severity(2)  # the default; it cannot be asked for
