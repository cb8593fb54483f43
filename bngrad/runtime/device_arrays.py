"""Arrays on a device, from ONNX Runtime or by DLPack, which a step takes without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

from bngrad.errors import InputError, VersionError
from bngrad.runtime.device import CPU, CUDA, Device
from bngrad.runtime.ort_values import to_array, to_ort_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_KINDS = {1: CPU, 2: CUDA, 3: CPU}
"""The kinds of devices by their numbers in DLPack; 3 is pinned memory of the CPU."""

_LEGACY_STREAM = 1
"""CUDA's legacy default stream in DLPack. The producer has it wait for the array; every copy to the device by ONNX
Runtime waits for the stream."""


class DeviceArray:
    """An array on a device, with a copy on the host if that exists or is asked for.

    Args:
        value: The array as a value of ONNX Runtime.
        host: The same array on the host.

    Attributes:
        value: The array as a value of ONNX Runtime.
        shape: The shape.
        dtype: The type of the elements.
    """

    def __init__(self, value: onnxruntime.OrtValue, host: Array | None = None) -> None:
        self.value, self._host = value, host
        self.shape = tuple(value.shape())
        self.dtype: np.dtype[Any] = onnx.helper.tensor_dtype_to_np_dtype(value.element_type())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:  # noqa: ANN401 - NumPy's protocol
        """Returns the array on the host, as NumPy's protocol has it."""
        if self._host is None:
            self._host = to_array(self.value)
        return np.array(self._host, dtype) if copy or dtype not in (None, self.dtype) else self._host


def send(array: Array, device: Device) -> DeviceArray | Array:
    """Returns a copy of an array on a device; the array itself where that is of no use, as on the CPU.

    Also for WebGPU: a second thread, which calls this, must not give it commands while a session runs.
    """
    if device.kind != CUDA or array.dtype.kind not in "biuf":
        return array
    array = np.asarray(array, order="C")
    with device.errors():
        return DeviceArray(onnxruntime.OrtValue.ortvalue_from_numpy(array, device.kind, device.index), host=array)


def on_device(name: str, data: Any, device: Device) -> DeviceArray | None:  # noqa: ANN401 - anything
    """Returns data that are on a device as they are; None if they are an array on the host, or NumPy's to convert.

    Args:
        name: The name of the data in messages.
        data: Anything; an array on a device is an `onnxruntime.OrtValue`, or has the methods of DLPack.
        device: The device that the data have to be on.

    Raises:
        InputError: They are on another device, or ONNX Runtime takes no such array.
        VersionError: This ONNX Runtime has no DLPack.
    """
    if isinstance(data, np.ndarray):
        return None
    if isinstance(data, DeviceArray):
        return data
    if isinstance(data, onnxruntime.OrtValue):
        return DeviceArray(data) if _require_device(name, data.device_name(), device) else None
    if not hasattr(data, "__dlpack_device__"):
        return None
    number, index = data.__dlpack_device__()
    kind = _KINDS.get(int(number), f"device type {int(number)} of DLPack")
    if not _require_device(name, kind if kind == CPU else f"{kind}:{index}", device):
        return None
    if not hasattr(onnxruntime.OrtValue, "from_dlpack"):
        raise VersionError(
            f"onnxruntime {onnxruntime.__version__} takes no arrays by DLPack; update onnxruntime-gpu"
        )
    try:
        return DeviceArray(onnxruntime.OrtValue.from_dlpack(data.__dlpack__(stream=_LEGACY_STREAM)))
    except Exception as error:
        raise InputError(f"{name!r} cannot be taken from {device}: {' '.join(str(error).split())}") from error


def value_of(array: Array | DeviceArray) -> onnxruntime.OrtValue:
    """Returns an array as a value of ONNX Runtime, on the memory that it has."""
    return array.value if isinstance(array, DeviceArray) else to_ort_value(array)


def _require_device(name: str, actual: str, device: Device) -> bool:
    """Returns whether data are on a device that is not the CPU.

    Raises:
        InputError: They are on another device than the expected one.
    """
    if actual == CPU:
        return False
    if actual not in (str(device), device.kind):  # ONNX Runtime names the kind only
        raise InputError(
            f"{name!r} is on {actual}; expected data on {device}"
            + ("" if device.kind == CPU else ", or on the CPU")
        )
    return True
