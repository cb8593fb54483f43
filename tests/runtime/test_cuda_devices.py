"""Sessions on a CUDA device: what is refused in one line. No card is here: `fake_cuda` fails as drivers do."""

from __future__ import annotations

import ctypes

import numpy as np
import onnx
import onnxruntime
import pytest

import bngrad
from bngrad.errors import DeviceError, LibraryError, VersionError
from bngrad.runtime import cuda, native_library
from fake_cuda import fake_cuda  # noqa: F401

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu (x) }'
)


def on_cuda(device="cuda", **options):
    return bngrad.session(MODEL, device=device, **options)


def refusal(device="cuda", kind=DeviceError, **options):
    with pytest.raises(kind) as error:
        on_cuda(device, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_session(fake_cuda):  # noqa: F811
    session = on_cuda("cuda:0", tf32=True)
    np.testing.assert_array_equal(session.run(None, {"x": np.array([-1, 2], np.float32)})[0], [0, 2])
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    assert fake_cuda.settings[-1].items() >= {"device_id": "0", "use_tf32": "1"}.items()


def test_a_library_without_kernels(fake_cuda, monkeypatch):  # noqa: F811
    monkeypatch.setattr(native_library, "has_cuda", lambda: False)
    assert refusal(kind=LibraryError) == (
        "the native library has no kernels for device 'cuda', because it was built without zig: install a wheel "
        "of bngrad, or run `pip install ziglang==0.17.1` and build it again without isolation; "
        "implementation='function' runs without the kernels, and slowly"
    )
    assert on_cuda(implementation="function").get_providers()[0] == "CUDAExecutionProvider"
    fake_cuda.driver.devices = 0
    assert "does not exist" in refusal()


def test_no_driver(monkeypatch):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(DeviceError) as error:
        cuda.require_device(0)
    reason = f"{cuda._DRIVER}: cannot open shared object file"
    assert str(error.value) == f"device 'cuda' needs NVIDIA's driver, which cannot be loaded: {reason}"


def test_a_driver_that_is_too_old(fake_cuda):  # noqa: F811
    fake_cuda.driver.version = 12040
    assert refusal() == (
        f"the NVIDIA driver is too old: it supports CUDA 12.4, and onnxruntime {onnxruntime.__version__} is built "
        "for CUDA 13.0; update the driver"
    )


@pytest.mark.parametrize(("built", "driver"), [("12.8", 12020), ("12.8", 13000), ("", 11000)])
def test_drivers_of_the_same_major_version_or_later(built, driver, fake_cuda, monkeypatch):  # noqa: F811
    monkeypatch.setattr(onnxruntime, "cuda_version", built, raising=False)
    fake_cuda.driver.version = driver
    assert on_cuda().get_providers()[0] == "CUDAExecutionProvider"


@pytest.mark.parametrize(
    ("device", "count", "existing"),
    [("cuda:1", 1, "'cuda:0'"), ("cuda:2", 2, "'cuda:0', 'cuda:1'"), ("cuda", 0, "none")],
)
def test_no_such_device(device, count, existing, fake_cuda):  # noqa: F811
    fake_cuda.driver.devices = count
    name = device if ":" in device else f"{device}:0"
    assert refusal(device) == (
        f"device '{name}' does not exist: the driver lists {existing}; CUDA_VISIBLE_DEVICES hides others"
    )


@pytest.mark.parametrize(("status", "name"), [(999, "CUDA_ERROR_UNKNOWN"), (4711, "error 4711")])
def test_a_driver_that_does_not_start(status, name, fake_cuda):  # noqa: F811
    fake_cuda.driver.status = status
    assert refusal() == f"NVIDIA's driver does not start: {name}; nvidia-smi may have the reason"


@pytest.mark.usefixtures("fake_cuda")
def test_an_onnxruntime_that_is_too_old(monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.17.3")
    assert refusal(kind=VersionError) == (
        "onnxruntime 1.17.3 is too old for device 'cuda', which needs 1.18; run pip install "
        "'onnxruntime-gpu>=1.18'"
    )


def test_a_provider_that_cannot_be_loaded(fake_cuda, monkeypatch):  # noqa: F811
    """ONNX Runtime only logs it, and makes a session for the CPU."""
    fake_cuda.loads = False

    def missing(_name, **_):
        raise OSError("libcudnn.so.9: cannot open\n shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert refusal() == (
        "ONNX Runtime cannot load its support of 'cuda': libcudnn.so.9: cannot open shared object file"
    )


def test_a_provider_that_loads_but_is_not_there(fake_cuda, monkeypatch):  # noqa: F811
    fake_cuda.loads = False
    monkeypatch.setattr(ctypes, "CDLL", lambda _name, **_: None)
    assert refusal() == "ONNX Runtime cannot load its support of 'cuda': its log has the reason"


# The texts are ONNX Runtime's, from its reports of issues and from runs of 1.31.1 without a card.
ERRORS = {
    "insufficient": (
        """/src/cuda_execution_provider_info.cc:63 [ONNXRuntimeError] : 1 : FAIL : Failed to parse provider option
        "device_id": CUDA failure 35: CUDA driver version is insufficient for CUDA runtime version ; GPU=-1 ;
        hostname=vm ; file=a.cc ; line=70 ; expr=cudaGetDeviceCount(&num_devices);""",
        """device 'cuda:0' failed: CUDA failure 35: CUDA driver version is insufficient for CUDA runtime
        version""",
    ),
    "arena": (
        """[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node.
        Name:'c' Status Message: /src/bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t)
        Failed to allocate memory for requested buffer of size 4585490""",
        """device 'cuda:0' is out of memory (4,585,490 bytes more were requested); take smaller batches, or free
        its memory""",
    ),
    "limit": (
        """Available memory of 12 is smaller than requested bytes of 4000""",
        """device 'cuda:0' is out of memory (4,000 bytes more were requested); take smaller batches, or free its
        memory""",
    ),
    "cuda": (
        """CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; expr=cudaMalloc((void**)&p, size);""",
        """device 'cuda:0' is out of memory; take smaller batches, or free its memory""",
    ),
    "cudnn": (
        """CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED ; GPU=0 ; hostname=a""",
        """device 'cuda:0' failed: CUDNN failure 5000: CUDNN_STATUS_EXECUTION_FAILED""",
    ),
    "capture": (
        """This session cannot use the graph capture feature as requested by the user  as all compute graph nodes
        have not been partitioned to the CUDAExecutionProvider""",
        """cuda_graph needs a step whose nodes are all on the device (all compute graph nodes have not been
        partitioned to the CUDAExecutionProvider); leave it out""",
    ),
    "control-flow": (
        """This session cannot use the graph capture feature as requested by the user as the model has control flow
        nodes which can't be supported by CUDAExecutionProvider""",
        """cuda_graph needs a step whose nodes are all on the device (the model has control flow nodes which can't
        be supported by CUDAExecutionProvider); leave it out""",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_of_onnxruntime_are_one_line(case, fake_cuda):  # noqa: F811
    text, expected = ERRORS[case]
    fake_cuda.session_error = RuntimeError(text)
    assert refusal() == " ".join(expected.split())


def test_an_error_of_the_model_stays_one(fake_cuda):  # noqa: F811
    fake_cuda.session_error = onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph("No Op registered for Foo")
    with pytest.raises(bngrad.ModelError, match="No Op registered for Foo"):
        on_cuda()
