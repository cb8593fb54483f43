"""The trainer on a device that is not the CPU: where the state is, what is copied, and what an error leaves.

The device is `fake_cuda`: memory of its own, filled by copies only. Its kernels are those of the CPU, so a run has
the bits of one on the CPU.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnxruntime import OrtValue

import bngrad
from bngrad.cli import run
from bngrad.errors import DeviceError, InputError
from bngrad.ort_training.api import CheckpointState, Module, Optimizer
from bngrad.training.prefetch import one_ahead
from fake_cuda import fake_cuda  # noqa: F401
from ort_training import small_artifacts
from trainer_cases import TEXT, assert_same_bits, batch, network, samples, step_of

pytestmark = pytest.mark.filterwarnings("ignore:the gradients of the step's convolutions are slow")

OPTIONS = {"optimizer": bngrad.SGD(momentum=0.9), "outputs": ["logits", "kernel_grad"]}
NO_MEMORY = RuntimeError("bfc_arena.cc Failed to allocate memory for requested buffer of size 1024")


def trainer_on(device, layout="named", rate=0.1, **options):
    return bngrad.Trainer(step_of(layout=layout, **OPTIONS), learning_rate=rate, device=device, **options)


def step_through(trainer, batches):
    return [trainer.step(**data) for data in trainer.prefetch(batches)]


def values_of(trainer):
    return [value for buffers in trainer._session.buffers for value in buffers.inputs.values()]


@pytest.mark.parametrize("reads_on_cpu", [False, True])
@pytest.mark.parametrize("layout", ["named", "flat"])
def test_the_bits_of_the_cpu(layout, reads_on_cpu, fake_cuda):  # noqa: F811
    """The rate changes, and is on the device, too: bound once as an array, it would stay the first.

    So would what a node on the CPU reads of the state, such as the count of steps on WebGPU.
    """
    fake_cuda.reads_on_cpu = reads_on_cpu
    schedule = bngrad.StepSchedule(0.1, 2, factor=0.5)
    cpu, cuda = (trainer_on(device, layout, schedule) for device in ("cpu", "cuda:0"))
    assert {value.device_name() for value in values_of(cuda)} == {"cuda"}
    assert {value.device_name() for value in values_of(cpu)} == {"cpu"}
    for index in range(6):
        data = batch(index, size=8 - index % 2)
        assert cuda.step(**data) == cpu.step(**data)
        assert_same_bits(cuda.outputs, cpu.outputs)
    assert_same_bits(cuda.state_dict(), cpu.state_dict())
    assert_same_bits(cuda.evaluate(**batch(9)), cpu.evaluate(**batch(9)))
    assert cuda.finalize() == cpu.finalize()


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.usefixtures("fake_cuda")
def test_a_state_is_written_back(calls, tmp_path):
    first, second = trainer_on("cuda"), trainer_on("cuda")
    for index in range(calls):
        first.step(**batch(index))
    first.save(tmp_path / "state.safetensors")
    second.step(**batch(7))
    second.load(tmp_path / "state.safetensors")
    assert second.step(**batch(3)) == first.step(**batch(3))
    assert_same_bits(second.state_dict(), first.state_dict())


def test_the_options_reach_the_session(fake_cuda):  # noqa: F811
    trainer_on("cuda:0", tf32=True)
    expected = {"device_id": "0", "use_tf32": "1", "enable_cuda_graph": "0"}
    assert fake_cuda.settings[-1].items() >= expected.items()


FAILURES = {
    "memory": (NO_MEMORY, "device 'cuda:0' is out of memory (1,024 bytes more were requested)"),
    "device": (
        RuntimeError("CUDA failure 700: an illegal memory access was encountered ; GPU=0"),
        "CUDA failure 700",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failed_step_leaves_the_state(case, fake_cuda):  # noqa: F811
    trainer, untouched = trainer_on("cuda"), trainer_on("cuda")
    for index in range(3):
        assert trainer.step(**batch(index)) == untouched.step(**batch(index))
    fake_cuda.error, message = FAILURES[case]
    with pytest.raises(DeviceError) as error:
        trainer.step(**batch(3))
    assert message in str(error.value)
    assert trainer.calls == 3
    assert_same_bits(trainer.state_dict(), untouched.state_dict())
    assert trainer.step(**batch(3)) == untouched.step(**batch(3))
    fake_cuda.error = NO_MEMORY
    with pytest.raises(DeviceError):
        trainer.evaluate(**batch(3))


def test_other_errors_are_of_the_data(fake_cuda):  # noqa: F811
    trainer = trainer_on("cuda")
    fake_cuda.error = RuntimeError("Got invalid dimensions")
    with pytest.raises(InputError, match="ONNX Runtime refuses the data: Got invalid dimensions"):
        trainer.step(**batch())


def test_no_memory_for_the_state(fake_cuda):  # noqa: F811
    fake_cuda.allocation_error = NO_MEMORY
    with pytest.raises(DeviceError, match="out of memory"):
        trainer_on("cuda")


def test_prefetched_batches_are_sent_once(fake_cuda):  # noqa: F811
    cpu, cuda = trainer_on("cpu"), trainer_on("cuda")
    batches = [batch(index) for index in range(5)]
    expected = step_through(cpu, batches)
    assert fake_cuda.sent == 0
    assert step_through(cuda, batches) == expected
    assert fake_cuda.sent == 10
    assert_same_bits(cuda.state_dict(), cpu.state_dict())


@pytest.mark.usefixtures("fake_cuda")
def test_prefetched_labels_are_checked():
    trainer, data = trainer_on("cuda"), batch()
    data["labels"][2] = 3
    with pytest.raises(InputError, match="labels"):
        step_through(trainer, [data])
    assert trainer.calls == 0


@pytest.mark.usefixtures("fake_cuda")
def test_a_loss_that_is_not_finite_names_prefetched_data():
    trainer, data = trainer_on("cuda"), batch()
    data["x"][0] = np.inf
    with pytest.raises(bngrad.TrainingError, match="the data 'x' are not finite"):
        step_through(trainer, [data])


def test_one_item_is_fetched_ahead():
    """The second item is fetched before the first is given back, and never the third."""
    fetched, second = [], threading.Event()

    def items():
        for number in range(4):
            fetched.append((number, threading.current_thread()))
            if number == 1:
                second.set()
            yield number

    ahead = one_ahead(items())
    assert next(ahead) == 0
    assert second.wait(10)
    ahead.close()
    assert [number for number, _ in fetched] == [0, 1]
    assert threading.current_thread() not in [thread for _, thread in fetched]
    assert list(one_ahead(iter(range(4)))) == [0, 1, 2, 3]


def test_an_error_while_fetching_comes_in_its_place():
    def items():
        yield 1
        raise InputError("the second is wrong")

    ahead = one_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(InputError, match="the second is wrong"):
        next(ahead)


@pytest.mark.usefixtures("fake_cuda")
def test_values_on_the_device_are_not_copied():
    cpu, cuda, data = trainer_on("cpu"), trainer_on("cuda"), batch()
    sent = {name: OrtValue.ortvalue_from_numpy(array, "cuda", 0) for name, array in data.items()}
    bound = {}
    binding = cuda._session.bindings[0]
    bind = binding.bind_ortvalue_input

    def record(name, value):
        bound[name] = value
        bind(name, value)

    binding.bind_ortvalue_input = record
    assert cuda.step(**sent) == cpu.step(**data)
    assert {name: bound[name] for name in sent} == sent
    assert_same_bits(cuda.evaluate(**sent), cpu.evaluate(**data))
    with pytest.raises(InputError, match="'x' is on cuda; expected data on cpu"):
        cpu.step(**sent)


class ElsewhereArray:
    """An array of DLPack on some device."""

    def __init__(self, device):
        self._device = device

    def __dlpack_device__(self):
        return self._device


PLACES = {
    "cuda:1": ((2, 1), "'x' is on cuda:1; expected data on cuda:0, or on the CPU"),
    "rocm": ((10, 0), "'x' is on device type 10 of DLPack:0; expected data on cuda:0, or on the CPU"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.usefixtures("fake_cuda")
def test_arrays_on_other_devices(place):
    device, message = PLACES[place]
    with pytest.raises(InputError) as error:
        trainer_on("cuda").step(x=ElsewhereArray(device), labels=batch()["labels"])
    assert str(error.value) == message


@pytest.mark.usefixtures("fake_cuda")
def test_types_and_shapes_on_the_device():
    trainer, data = trainer_on("cuda"), batch()
    for wrong, message in (
        (data["x"].astype(np.float64), "'x' is float64; expected float32"),
        (data["x"][:, :, :3], r"'x' has shape \[8, 1, 3, 4\]; expected \[N, 1, 4, 4\]"),
    ):
        sent = OrtValue.ortvalue_from_numpy(np.ascontiguousarray(wrong), "cuda", 0)
        with pytest.raises(InputError, match=message):
            trainer.step(x=sent, labels=data["labels"])


def test_cuda_graphs_have_fixed_addresses(fake_cuda):  # noqa: F811
    """Two graphs: one reads the first set of buffers, the other the second."""
    step = step_of(optimizer=bngrad.SGD(momentum=0.9), clip_norm=1.0)
    cpu = bngrad.Trainer(step, learning_rate=0.1)
    cuda = bngrad.Trainer(step, learning_rate=0.1, device="cuda", cuda_graph=True)
    assert fake_cuda.settings[-1]["enable_cuda_graph"] == "1"
    addresses = []
    for index in range(6):
        assert cuda.step(**batch(index)) == cpu.step(**batch(index))
        assert_same_bits(cuda.outputs, cpu.outputs)
        binding = cuda._session.bindings[index % 2]
        inputs, outputs = binding._capture_signature() if hasattr(binding, "_capture_signature") else ((), ())
        addresses.append([value.data_ptr() for _, value in (*inputs, *outputs)])
    assert addresses[0] == addresses[2] == addresses[4] != addresses[1] == addresses[3] == addresses[5]
    assert_same_bits(cuda.state_dict(), cpu.state_dict())
    entries = [options.get_run_config_entry("gpu_graph_id") for options in cuda._session._options]
    assert entries == ["1", "2"]
    with pytest.raises(InputError) as error:
        cuda.step(**batch(size=7))
    assert str(error.value) == (
        "'x' has shape [7, 1, 4, 4]; expected [8, 1, 4, 4], that of the captured CUDA graph: leave out other "
        "batches, or cuda_graph"
    )


@pytest.mark.usefixtures("fake_cuda")
def test_a_cuda_graph_would_repeat_its_random_numbers():
    dropout = (
        "half = Constant <value_float = 0.5> () yes = Constant <value = bool {1}> () d = Dropout (flat, half, yes)"
    )
    text = TEXT.replace("logits = Gemm", f"{dropout} logits = Gemm").replace("(flat, weight", "(d, weight")
    model = network(text)
    step = bngrad.training_step(model)
    with pytest.raises(InputError, match=r"^the step has random nodes, such as Dropout"):
        bngrad.Trainer(step, learning_rate=0.1, device="cuda", cuda_graph=True)


@pytest.mark.usefixtures("fake_cuda")
def test_cuda_graphs_need_outputs_of_fixed_shapes():
    with pytest.raises(InputError, match=r"^cuda_graph needs outputs of fixed shapes; 'logits' have none$"):
        trainer_on("cuda", cuda_graph=True)


def test_a_training_run(fake_cuda, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    step_of().save("step.onnx")
    np.savez("train.npz", **samples(40))
    command = ["train", "step.onnx", "--data", "train.npz", "--learning-rate", "0.1", "--epochs", "2"]
    for device in ("cpu", "cuda"):
        assert run([*command, "--device", device, "--log", f"{device}.jsonl", "-o", f"{device}.onnx"]) == 0
    assert fake_cuda.sent == 2 * 2 * 2
    assert (tmp_path / "cpu.onnx").read_bytes() == (tmp_path / "cuda.onnx").read_bytes()
    capsys.readouterr()
    assert run([*command, "--device", "cuda", "--cuda-graph", "-o", "x.onnx"]) == 2
    assert "that of the captured CUDA graph" in capsys.readouterr().err
    assert run([*command, "--device", "cuda", "--cuda-graph", "--drop-last", "--tf32", "-o", "x.onnx"]) == 0


@pytest.mark.usefixtures("fake_cuda")
def test_onnxruntime_training_reads_its_state_at_every_step(tmp_path):
    """Bound to a device, arrays are copied once: the second step would not see the first update."""
    losses = {}
    for device in ("cpu", "cuda"):
        folder = tmp_path / device
        folder.mkdir()
        files = small_artifacts.linear(folder)
        state = CheckpointState.load_checkpoint(files / "checkpoint")
        module = Module(files / "training_model.onnx", state, files / "eval_model.onnx", device=device)
        optimizer = Optimizer(files / "sgd.onnx", module)
        losses[device] = []
        for index in range(3):
            module.train()
            x, target = small_artifacts.batch(index)
            values = [OrtValue.ortvalue_from_numpy(array) for array in (x, target)]
            losses[device].append(float(module(*values)[0].numpy()))
            optimizer.step()
            module.lazy_reset_grad()
        losses[device].append(float(module.eval()(x, target)[0]))
    assert losses["cuda"] == losses["cpu"]
    assert len(set(losses["cuda"])) == 4
