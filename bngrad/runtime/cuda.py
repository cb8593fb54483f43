"""The checks of a CUDA device before a session is made on it.

ONNX Runtime trains on the CPU with a log line where its CUDA provider cannot be loaded. Nothing here falls back.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import sys
from pathlib import Path

import onnxruntime
from packaging.version import Version

from bngrad.errors import DeviceError, VersionError

OLDEST = "1.18"
"""The first release whose CUDA provider can be kept from rounding float32 to TF32."""

_DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE, the status of the driver."""


def require_device(index: int) -> None:
    """Checks that there is a CUDA device, a driver for this ONNX Runtime, and its libraries.

    Args:
        index: The index of the device.

    Raises:
        VersionError: ONNX Runtime is too old.
        DeviceError: There is no driver or no such device, or the driver is too old.
    """
    if Version(onnxruntime.__version__) < Version(OLDEST):
        raise VersionError(
            f"onnxruntime {onnxruntime.__version__} is too old for device 'cuda', which needs {OLDEST}; run pip "
            f"install 'onnxruntime-gpu>={OLDEST}'"
        )
    driver = _driver()
    supported = ctypes.c_int()
    _check(driver, driver.cuDriverGetVersion(ctypes.byref(supported)))
    built = getattr(onnxruntime, "cuda_version", "")
    if built and supported.value // 1000 < int(built.partition(".")[0]):
        raise DeviceError(
            f"the NVIDIA driver is too old: it supports CUDA {_version_text(supported.value)}, and onnxruntime "
            f"{onnxruntime.__version__} is built for CUDA {built}; update the driver"
        )
    count = ctypes.c_int()
    status = driver.cuInit(0)
    if status != _NO_DEVICE:
        _check(driver, status)
        _check(driver, driver.cuDeviceGetCount(ctypes.byref(count)))
    if index >= count.value:
        existing = ", ".join(f"'cuda:{number}'" for number in range(count.value)) or "none"
        raise DeviceError(
            f"device 'cuda:{index}' does not exist: the driver lists {existing}; CUDA_VISIBLE_DEVICES hides others"
        )
    if hasattr(onnxruntime, "preload_dlls"):  # since 1.21: CUDA and cuDNN of the packages nvidia-*
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does not find
            onnxruntime.preload_dlls()


def name_of(index: int) -> str:
    """Returns the name of a CUDA device, such as that of the card; empty if the driver does not give it."""
    try:
        driver = _driver()
    except DeviceError:
        return ""
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return ""
    return "" if driver.cuDeviceGetName(name, len(name), device) else name.value.decode(errors="replace")


def loading_error() -> str:
    """Returns the reason why the library of ONNX Runtime's CUDA provider cannot be loaded, or where to look.

    Call it only after ONNX Runtime failed to: the library finds no host if it is loaded first.
    """
    folder = Path(onnxruntime.__file__).parent / "capi"
    name = "onnxruntime_providers_{}.dll" if sys.platform == "win32" else "libonnxruntime_providers_{}.so"
    try:
        for part in ("shared", "cuda"):
            ctypes.CDLL(str(folder / name.format(part)), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        return " ".join(str(error).split())
    return "its log has the reason"


def _driver() -> ctypes.CDLL:
    """Returns NVIDIA's driver.

    Raises:
        DeviceError: It is not installed.
    """
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError as error:
        raise DeviceError(f"device 'cuda' needs NVIDIA's driver, which cannot be loaded: {error}") from error


def _check(driver: ctypes.CDLL, status: int) -> None:
    """Checks the status that a function of the driver returns.

    Raises:
        DeviceError: The function failed.
    """
    if status:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(status, ctypes.byref(name))  # leaves a null pointer for an unknown status
        text = name.value.decode() if name.value else f"error {status}"
        raise DeviceError(f"NVIDIA's driver does not start: {text}; nvidia-smi may have the reason")


def _version_text(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
