"""Sessions on WebGPU without a plugin: what is refused in one line; test_webgpu_plugin.py has one."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

import bngrad
from bngrad.bench.session_case import SessionCase
from bngrad.errors import DeviceError, InputError, UnsupportedNodeError, VersionError
from bngrad.runtime import webgpu
from bngrad.runtime.device import Device
from bngrad.runtime.device_arrays import send
from bngrad.runtime.environment import environment
from bngrad.training.data_inputs import require_data
from bngrad.training.step_info import DataInput
from bngrad.validation.implementations import available_implementations
from training.trainer_cases import step_of

WEBGPU = Device.of("webgpu")


class FakePlugin(SimpleNamespace):
    """The module of the plugin, and what ONNX Runtime does with its library.

    Attributes:
        devices: The devices that ONNX Runtime lists once the library is registered.
        registered: The names by which it has been.
        error: The error of the registration, if any.
    """

    def get_library_path(self):
        return "/plugin.so"

    def get_ep_name(self):
        return "WebGpu"

    def register(self, name, path):
        assert path == self.get_library_path()
        if self.error is not None:
            raise RuntimeError(self.error)
        if name in self.registered:
            raise RuntimeError(f"EP library is already registered under {name}")
        self.registered.append(name)

    def listed(self):
        others = [SimpleNamespace(ep_name="CPU")]
        return others + self.devices if self.registered else others


def hardware(type_, vendor):
    device = SimpleNamespace(type=SimpleNamespace(name=type_), vendor=vendor)
    return SimpleNamespace(ep_name="WebGpu", device=device)


@pytest.fixture
def plugin(monkeypatch):
    fake = FakePlugin(devices=[hardware("GPU", "Intel")], registered=[], error=None)
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", fake)
    monkeypatch.setattr(onnxruntime, "__version__", "1.30.0")
    monkeypatch.setattr(onnxruntime, "register_execution_provider_library", fake.register, raising=False)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", fake.listed, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _name, **_: None)
    return fake


def refusal(kind=DeviceError):
    with pytest.raises(kind) as error:
        webgpu.require_device()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_plugin_is_registered_once(plugin):
    webgpu.require_device()
    webgpu.require_device()
    assert plugin.registered == ["bngrad.webgpu"]


def test_a_plugin_that_the_user_has_registered(plugin):
    plugin.registered.append("mine")
    webgpu.require_device()
    assert plugin.registered == ["mine"]


def test_an_onnxruntime_that_is_too_old(plugin, monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.29.0")
    assert refusal(VersionError) == (
        "onnxruntime 1.29.0 is too old for device 'webgpu', which needs 1.30; run pip install 'onnxruntime>=1.30'"
    )
    assert plugin.registered == []


def test_no_plugin(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)  # its import fails
    monkeypatch.setattr(onnxruntime, "__version__", "1.30.0")
    assert refusal() == (
        "device 'webgpu' needs ONNX Runtime's plugin for it; run pip install onnxruntime-ep-webgpu"
    )
    assert webgpu.name_of_device() == ""


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_no_loader_of_vulkan(system, plugin, monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    monkeypatch.setattr(sys, "platform", system)
    if system == "linux":
        assert refusal() == (
            "device 'webgpu' needs Vulkan's loader, which cannot be loaded: libvulkan.so.1: cannot open shared "
            "object file; install libvulkan1 or vulkan-loader"
        )
    else:
        webgpu.require_device()
    assert plugin.registered == ([] if system == "linux" else ["bngrad.webgpu"])


def test_no_device(plugin):
    plugin.devices = []
    for _ in range(2):  # the library is registered by now
        assert refusal() == (
            "device 'webgpu' does not exist: ONNX Runtime finds no GPU; an adapter in software is taken with "
            "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 in the environment"
        )


def test_a_plugin_that_cannot_be_loaded(plugin):
    plugin.error = 'ORT runtime version "1.30.0" is below\n the minimum required version "1.40"'
    assert refusal() == (
        'ONNX Runtime cannot load onnxruntime-ep-webgpu: ORT runtime version "1.30.0" is below the minimum '
        'required version "1.40"'
    )


def test_the_first_device_is_added_once(plugin):
    added = []
    options = SimpleNamespace(
        has_providers=lambda: bool(added), add_provider_for_devices=lambda *arguments: added.append(arguments)
    )
    plugin.devices = [hardware("GPU", "Intel"), hardware("GPU", "NVIDIA")]
    plugin.register("mine", "/plugin.so")
    webgpu.add_to(options)
    webgpu.add_to(options)
    ((devices, settings),) = added
    assert devices == plugin.devices[:1]
    assert settings["preferredLayout"] == "NCHW"
    on_cpu = settings["forceCpuNodeNames"].split("\n")
    assert len(settings["forceCpuNodeNames"]) < 8192
    assert {"_inlfunc_MaxPoolInputGrad_Y", "_inlfunc_MaxPoolInputGrad_token_4_Y"} < set(on_cpu)


@pytest.mark.parametrize(("type_", "name"), [("GPU", "Intel"), ("CPU", "an adapter in software")])
def test_the_device_is_named(type_, name, plugin):
    plugin.devices = [hardware(type_, "Intel")]
    assert environment("webgpu").machine["GPU"] == "unknown (webgpu)"
    plugin.register("mine", "/plugin.so")
    assert environment("webgpu:0").machine["GPU"] == f"{name} (webgpu)"


# The texts are those of onnxruntime-ep-webgpu 0.4.0 with SwiftShader.
ERRORS = {
    "adapter": (
        """[ONNXRuntimeError] : 11 : EP_FAIL : webgpu_context.cc:136 Initialize(const Config&)::<lambda()>
        adapter_result.status == wgpu::RequestAdapterStatus::Success was false. Failed to get a WebGPU adapter: No
        supported adapters""",
        """device 'webgpu' has no adapter (Failed to get a WebGPU adapter: No supported adapters); install or
        update the driver of the GPU""",
    ),
    "size": (
        """[ONNXRuntimeError] : 1 : FAIL : WebGPU validation failed. Buffer size (1600000000) exceeds the max
        buffer size limit (1073741824). - While calling [Device].CreateBuffer([BufferDescriptor]).""",
        """device 'webgpu' takes arrays of at most 1,073,741,824 bytes, and one has 1,600,000,000; take smaller
        batches""",
    ),
    "memory": (
        """WebGPU validation failed. [Invalid Buffer (unlabeled)] is invalid due to a previous error. - While
        validating entries[2] against { binding: 2 }.""",
        "device 'webgpu' is out of memory; take smaller batches, or free its memory",
    ),
    "reading": (
        """buffer_manager.cc:641 Download(WGPUBuffer, void*, size_t) const map_async_result.status == Success was
        false. Failed to download data from buffer. wgpu::MapAsyncStatus value: 3, message: gone""",
        """device 'webgpu' failed: Failed to download data from buffer. wgpu::MapAsyncStatus value: 3, message:
        gone""",
    ),
    "validation": (
        """WebGPU validation failed. Write range exceeds the buffer. - While encoding [CommandEncoder].""",
        "device 'webgpu' failed: WebGPU validation failed. Write range exceeds the buffer.",
    ),
    "kernel": (
        """Non-zero status code returned while running MaxPool node. Name:'pool' Status Message: pool.cc:276
        ComputeInternal The Indices output is not supported yet.""",
        """device 'webgpu' cannot run MaxPool (pool.cc:276 ComputeInternal The Indices output is not supported
        yet); use another device""",
    ),
    "activation": (
        """Non-zero status code returned while running LSTM node. Name:'LSTM_0' Status Message: lstm.cc:28
        Unsupported LSTM activation for WebGPU: HardSigmoid""",
        """device 'webgpu' cannot run LSTM (lstm.cc:28 Unsupported LSTM activation for WebGPU: HardSigmoid); use
        another device""",
    ),
    "float16": (
        """Non-zero status code returned while running Cast node. Name:'x' Status Message: shader_helper.cc:416
        GenerateSourceCode Program Cast requires f16 but the device does not support it.""",
        "device 'webgpu' has no float16; expected a model without it",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_of_the_device(case):
    text, message = ERRORS[case]
    with pytest.raises(DeviceError) as error, WEBGPU.errors():
        raise RuntimeError(text)
    assert str(error.value) == " ".join(message.split())


@pytest.mark.parametrize("text", ["Got invalid dimensions for input: x", "CUDA failure 2: out of memory"])
def test_errors_of_other_things(text):
    with pytest.raises(RuntimeError, match=text), WEBGPU.errors():
        raise RuntimeError(text)


def test_mixed_precision():
    with pytest.raises(InputError) as error:
        bngrad.Trainer(step_of(precision="mixed"), learning_rate=0.1, device="webgpu")
    assert str(error.value) == (
        "the step has precision mixed, which finds infinite and NaN gradients, and arithmetic on 'webgpu' need "
        "not have those; expected a step without it, or another device"
    )


@pytest.mark.parametrize("implementation", ["native", "python", "function", "all"])
def test_implementations_to_validate(implementation):
    if implementation in ("function", "all"):
        assert available_implementations(implementation, "webgpu") == (("function",), [])
        return
    with pytest.raises(InputError) as error:
        available_implementations(implementation, "webgpu")
    assert str(error.value) == f"the {implementation} implementation has no kernels for 'webgpu'; use function"


def test_kernels_to_time():
    with pytest.raises(UnsupportedNodeError) as error:
        SessionCase(None, "webgpu")
    assert str(error.value) == "the library has no kernels for 'webgpu'; expected 'cpu' or 'cuda'"


FLOATS = np.array([1, 2], np.float32)
DATA = {
    "floats": (FLOATS, True),
    "integers": (np.array([1, 2]), True),
    "nan": (np.array([1, np.nan], np.float32), False),
    "infinity": (np.array([-np.inf, 1]), False),
}


@pytest.mark.parametrize("case", DATA)
@pytest.mark.parametrize("device", ["cpu", "cuda", "webgpu"])
def test_data_have_to_be_finite(case, device):
    array, finite = DATA[case]
    inputs = {"x": DataInput(array.dtype.name, ("N",))}
    if finite or device != "webgpu":
        assert require_data({"x": array}, inputs, (), Device.of(device))["x"] is array
        return
    with pytest.raises(InputError) as error:
        require_data({"x": array}, inputs, (), WEBGPU)
    assert str(error.value) == (
        "'x' has an infinity or a NaN; expected finite numbers on webgpu, where a ReLU of NaN is 0"
    )


def test_no_thread_gives_commands_beside_a_session():
    assert send(FLOATS, WEBGPU) is FLOATS
