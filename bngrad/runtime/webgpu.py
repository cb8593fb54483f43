"""WebGPU, which ONNX Runtime has by a plugin: what it needs before a session is made."""

from __future__ import annotations

import ctypes
import sys
from importlib import import_module
from typing import Any

import onnxruntime
from packaging.version import Version

from bngrad.errors import DeviceError, VersionError

OLDEST = "1.30"
"""The first release whose values know that they are in the memory of a WebGPU device."""

PLUGIN = "onnxruntime-ep-webgpu"
"""The package of the plugin."""

_NAME = "bngrad.webgpu"
"""The name that the plugin is registered by, if nobody else has registered it."""

VULKAN = "libvulkan.so.1"
"""The loader of Vulkan, on Linux."""

_MAX_POOL = "_inlfunc_MaxPoolInputGrad"
"""The beginning of ONNX Runtime's names of nodes in the functions of MaxPoolInputGrad; a number may follow."""

_OPTIONS = {
    # With channels last, the default, a ConvTranspose with groups of 2, 4 or 8 channels is wrong (0.4.0).
    "preferredLayout": "NCHW",
    # Their MaxPool has indices, which the plugin takes and cannot compute. An option has at most 8,192 characters.
    "forceCpuNodeNames": "\n".join((f"{_MAX_POOL}_Y", *(f"{_MAX_POOL}_token_{n}_Y" for n in range(200)))),
}

_SOFTWARE = "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"


def require_device() -> None:
    """Checks that ONNX Runtime has a WebGPU device by its plugin, and registers the plugin if nobody has.

    Raises:
        VersionError: ONNX Runtime is too old.
        DeviceError: The plugin or the loader of Vulkan is missing, or ONNX Runtime finds no device.
    """
    if Version(onnxruntime.__version__) < Version(OLDEST):
        raise VersionError(
            f"onnxruntime {onnxruntime.__version__} is too old for device 'webgpu', which needs {OLDEST}; run pip "
            f"install 'onnxruntime>={OLDEST}'"
        )
    try:
        plugin = _plugin()
    except ImportError as error:
        raise DeviceError(
            f"device 'webgpu' needs ONNX Runtime's plugin for it; run pip install {PLUGIN}"
        ) from error
    if sys.platform == "linux":
        try:
            ctypes.CDLL(VULKAN)
        except OSError as error:
            raise DeviceError(
                f"device 'webgpu' needs Vulkan's loader, which cannot be loaded: {error}; install libvulkan1 or "
                "vulkan-loader"
            ) from error
    if not _devices(plugin):
        try:
            onnxruntime.register_execution_provider_library(_NAME, plugin.get_library_path())
        except Exception as error:
            # Registered without a device, it stays so; the environment may name other drivers by now.
            if "already registered" not in str(error):
                raise DeviceError(f"ONNX Runtime cannot load {PLUGIN}: {' '.join(str(error).split())}") from error
    if not _devices(plugin):
        raise DeviceError(
            "device 'webgpu' does not exist: ONNX Runtime finds no GPU; an adapter in software is taken with "
            f"{_SOFTWARE}=1 in the environment"
        )


def add_to(options: onnxruntime.SessionOptions) -> None:
    """Adds the device to the options of a session, unless they have devices; call `require_device` first.

    Of several GPUs, the plugin itself takes one: it accepts no more than one device.
    """
    if not options.has_providers():
        options.add_provider_for_devices(_devices(_plugin())[:1], _OPTIONS)


def name_of_device() -> str:
    """Returns the vendor of the device that ONNX Runtime lists; empty if it lists none."""
    try:
        devices = _devices(_plugin())
    except ImportError:
        return ""
    hardware = [device.device for device in devices[:1]]
    return "".join(str(part.vendor) if part.type.name == "GPU" else "an adapter in software" for part in hardware)


def _plugin() -> Any:  # noqa: ANN401 - a module
    return import_module(PLUGIN.replace("-", "_"))


def _devices(plugin: Any) -> list[Any]:  # noqa: ANN401 - a module
    """Returns the devices of the plugin that ONNX Runtime lists."""
    return [device for device in onnxruntime.get_ep_devices() if device.ep_name == plugin.get_ep_name()]
