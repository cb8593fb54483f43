"""The device of sessions: what is accepted, what every entry point refuses, and who names execution providers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import bngrad
from bngrad.cli import run
from bngrad.errors import DeviceError, InputError
from bngrad.ort_training.api import CheckpointState, Module
from bngrad.runtime.device import Device, DeviceOptions, execution_providers
from ort_training import small_artifacts
from training.trainer_cases import batch, network, samples, step_of

ROOT = Path(bngrad.__file__).parent
ACCEPTED = ["cpu", "cpu:0"]
UNSUPPORTED = [
    "rocm",
    "WebGPU",
    "webgpu:1",
    "webgpu:",
    "CPU",
    "cpu:1",
    "cpu:",
    "cpu:00",
    "cpu:-0",
    " cpu",
    "",
    "cuda:",
    "cuda:00",
    "cuda:-1",
    "CUDA",
]
NO_NAMES = [0, None, b"cpu", ["cpu"]]


def refusal(device):
    if isinstance(device, str):
        return f"device {device!r} is not supported; expected 'cpu', 'cuda' or 'webgpu', or with an index 'cuda:1'"
    return f"device is {device!r}; expected a string such as 'cpu'"


def test_execution_providers_are_named_in_one_module():
    files = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "ExecutionProvider" in path.read_text()}
    assert files == {"runtime/device.py", "oracle/worker.py", "cli/validate.py"}  # the last in an example


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name):
    assert Device.of(name) == Device("cpu", 0)
    assert execution_providers(name) == execution_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("name", UNSUPPORTED + NO_NAMES, ids=repr)
def test_refused(name):
    for function in (Device.of, execution_providers):
        with pytest.raises(InputError) as error:
            function(name)
        assert str(error.value) == refusal(name)


def open_session(device, _folder):
    model = bngrad.differentiate(network())
    return bngrad.session(model, device=device).get_providers() == ["CPUExecutionProvider"]


def train(device, _folder):
    return np.isfinite(bngrad.Trainer(step_of(), learning_rate=0.1, device=device).step(**batch()))


def validate(device, _folder):
    return bngrad.validate(
        network(), against="numeric", dims={"N": 2}, implementation="function", device=device
    ).passed


def train_as_onnxruntime(device, folder):
    """With session options of the user, or none."""
    files = small_artifacts.linear(folder)
    state = CheckpointState.load_checkpoint(files / "checkpoint")
    module = Module(files / "training_model.onnx", state, files / "eval_model.onnx", device=device)
    loss, _ = module(*small_artifacts.batch())
    return np.isfinite(loss)


ENTRIES = [open_session, train, validate, train_as_onnxruntime]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
@pytest.mark.parametrize("device", ACCEPTED)
def test_every_function_accepts(entry, device, tmp_path):
    assert entry(device, tmp_path)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
@pytest.mark.parametrize("device", ["rocm", None])
def test_every_function_refuses(entry, device, tmp_path):
    with pytest.raises(InputError) as error:
        entry(device, tmp_path)
    assert str(error.value) == refusal(device)


COMMANDS = {
    "train": [
        "train",
        "step.onnx",
        "--data",
        "train.npz",
        "--learning-rate",
        "0.1",
        "--epochs",
        "1",
        "-o",
        "out.onnx",
    ],
    "bench": ["bench", "--shape", "2x2", "--repeats", "1"],
    "validate": ["validate", "model.onnx", "--against", "numeric", "--dim", "N=2", "--implementation", "function"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    step_of().save("step.onnx")
    bngrad.save(network(), "model.onnx")
    np.savez("train.npz", **samples(40))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("folder")
def test_every_command_accepts(command, capsys):
    assert run([*COMMANDS[command], "--device", "cpu"]) == 0, capsys.readouterr()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses(command, folder, capsys):
    files = sorted(folder.iterdir())
    assert run([*COMMANDS[command], "--device", "rocm"]) == 2
    assert capsys.readouterr() == ("", f"bngrad: error: {refusal('rocm')}\n")
    assert sorted(folder.iterdir()) == files


OPTIONS = {"tf32": {"use_tf32": "1"}, "cuda_graph": {"enable_cuda_graph": "1"}}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_cuda_devices(option):
    (cuda, settings), cpu = execution_providers("cuda:1", DeviceOptions(**{option: True}))
    assert (cuda, cpu) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    others = {"device_id": "1", "use_tf32": "0", "enable_cuda_graph": "0"}
    assert settings.items() >= (others | OPTIONS[option]).items()
    for device in ("cpu:0", "webgpu"):
        with pytest.raises(InputError, match=f"^{option} is for CUDA devices, and the device is '{device}'$"):
            execution_providers(device, DeviceOptions(**{option: True}))


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
def test_a_build_for_the_cpu_is_named(entry, tmp_path):
    """Real: onnxruntime as it is installed here."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is built for CUDA")
    with pytest.raises(DeviceError if entry != train_as_onnxruntime else InputError) as error:
        entry("cuda", tmp_path)
    assert str(error.value) == (
        "device 'cuda' needs a build of ONNX Runtime for CUDA, and onnxruntime "
        f"{onnxruntime.__version__} is built for the CPU; run pip uninstall onnxruntime, and pip install "
        "onnxruntime-gpu"
    )


NO_PLUGIN = "device 'webgpu' needs ONNX Runtime's plugin for it; run pip install onnxruntime-ep-webgpu"


@pytest.fixture
def no_plugin(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime_ep_webgpu", None)  # its import fails
    monkeypatch.setattr(onnxruntime, "__version__", "1.30.0")


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
@pytest.mark.usefixtures("no_plugin")
def test_the_plugin_of_webgpu_is_named(entry, tmp_path):
    with pytest.raises(DeviceError if entry != train_as_onnxruntime else InputError) as error:
        entry("webgpu", tmp_path)
    assert str(error.value) == NO_PLUGIN


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.usefixtures("no_plugin")
def test_a_missing_plugin_ends_a_command(command, folder, capsys):
    files = sorted(folder.iterdir())
    assert run([*COMMANDS[command], "--device", "webgpu"]) == 2
    assert capsys.readouterr() == ("", f"bngrad: error: {NO_PLUGIN}\n")
    assert sorted(folder.iterdir()) == files


@pytest.mark.parametrize("command", COMMANDS)
def test_a_build_for_the_cpu_ends_a_command(command, folder, capsys):
    files = sorted(folder.iterdir())
    assert run([*COMMANDS[command], "--device", "cuda"]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("bngrad: error: device 'cuda' needs a build of ONNX Runtime for CUDA")
    assert output.err.count("\n") == 1
    assert sorted(folder.iterdir()) == files
