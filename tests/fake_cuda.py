"""A CUDA device that is not there: its driver, its memory and ONNX Runtime's provider for it, on the CPU.

Memory of the device is memory of its own, which only copies reach. As on a card, a value on the host that is bound
to a session of the device is copied when it is bound, so later changes of it are not seen. So is a value on the
device that a node on the CPU reads.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest
from onnxruntime import InferenceSession, IOBinding, OrtValue

from bngrad.runtime import cuda, native_library

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"

_from_numpy, _from_shape = OrtValue.ortvalue_from_numpy, OrtValue.ortvalue_from_shape_and_type
_device_name = OrtValue.device_name
_bind_input, _bind_output = IOBinding.bind_ortvalue_input, IOBinding.bind_output


class FakeDriver:
    """The functions of libcuda that are called: a driver for CUDA 13.0 and one device, unless told otherwise."""

    version, devices, status = 13000, 1, 0

    def cuDriverGetVersion(self, version):  # noqa: N802 - NVIDIA's names
        version._obj.value = self.version
        return 0

    def cuInit(self, flags):  # noqa: N802
        assert flags == 0
        return self.status if self.devices else 100

    def cuDeviceGetCount(self, count):  # noqa: N802
        count._obj.value = self.devices
        return 0

    def cuDeviceGet(self, device, index):  # noqa: N802
        device._obj.value = index
        return 0 if index < self.devices else 101

    def cuDeviceGetName(self, name, size, device):  # noqa: N802
        name.value = f"Fake {device.value}".encode()[: size - 1]
        return 0

    def cuGetErrorName(self, status, name):  # noqa: N802
        name._obj.value = {999: b"CUDA_ERROR_UNKNOWN", 100: b"CUDA_ERROR_NO_DEVICE"}.get(status)
        return 0 if name._obj.value else 1


class FakeCuda(SimpleNamespace):
    """Records of the fake, and the errors that it is to raise.

    Attributes:
        driver: The driver.
        loads: False if the provider cannot be loaded: ONNX Runtime then makes a session for the CPU.
        error: The error of the next run, if any.
        session_error: The error of every new session for it, if any.
        allocation_error: The error of every allocation, if any.
        settings: The options of the provider of each session for it.
        sent: The number of arrays that were copied to the device to be data.
        reads_on_cpu: Whether nodes on the CPU read the inputs of sessions for it.
    """

    def session(self, model, options, providers, **keywords):
        """Makes a session for the CPU, whatever the providers."""
        on_cuda = providers[0] != CPU
        if on_cuda:
            self.settings.append(providers[0][1])
        assert not on_cuda or keywords == {"enable_fallback": 0}
        if on_cuda and self.session_error is not None:
            raise self.session_error
        if CPU not in providers:  # ONNX Runtime refuses its own provider for the CPU beside this entry
            assert options.get_session_config_entry("session.disable_cpu_ep_fallback") == "1"
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "0")
        session = InferenceSession(model, options, providers=[CPU])
        if on_cuda and self.loads:
            session._is_fake = True
            session.get_providers = lambda: [CUDA, CPU]
            run = session.run_with_iobinding

            def run_or_fail(binding, options=None):
                if self.error is not None:
                    error, self.error = self.error, None
                    raise error
                run(binding, options)

            session.run_with_iobinding = run_or_fail
            session.io_binding = lambda: _binding(session)
        return session


def _binding(session):
    binding = IOBinding(session)
    binding._is_fake = True
    return binding


@pytest.fixture
def fake_cuda(monkeypatch):
    fake = FakeCuda(
        driver=FakeDriver(),
        loads=True,
        error=None,
        session_error=None,
        allocation_error=None,
        settings=[],
        sent=0,
        reads_on_cpu=False,
    )
    own: dict[int, OrtValue] = {}

    def allocate(shape, dtype, device="cpu", *_):
        value = _from_shape(shape, dtype)
        if device == "cuda":
            if fake.allocation_error is not None:
                raise fake.allocation_error
            own[id(value)] = value
        return value

    def from_numpy(array, device="cpu", *_):
        if device != "cuda":
            return _from_numpy(array)
        value = allocate(list(array.shape), array.dtype.type, "cuda")
        value.update_inplace(array)
        fake.sent += 1
        return value

    def bind_input(binding, name, value):
        if getattr(binding, "_is_fake", False) and (fake.reads_on_cpu or id(value) not in own):
            copy = np.array(value.numpy())
            value = _from_numpy(copy)
        _bind_input(binding, name, value)

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(onnxruntime, "cuda_version", "13.0", raising=False)
    monkeypatch.setattr(cuda, "_driver", lambda: fake.driver)
    monkeypatch.setattr(native_library, "has_cuda", lambda: True)
    monkeypatch.setattr(onnxruntime, "InferenceSession", fake.session)
    monkeypatch.setattr(OrtValue, "ortvalue_from_shape_and_type", staticmethod(allocate))
    monkeypatch.setattr(OrtValue, "ortvalue_from_numpy", staticmethod(from_numpy))
    monkeypatch.setattr(OrtValue, "device_name", lambda value: "cuda" if id(value) in own else _device_name(value))
    monkeypatch.setattr(IOBinding, "bind_ortvalue_input", bind_input)
    monkeypatch.setattr(IOBinding, "bind_output", lambda binding, name, *_: _bind_output(binding, name))
    if hasattr(onnxruntime, "preload_dlls"):
        monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None)
    return fake
