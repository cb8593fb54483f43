"""Training on a device against the CPU: losses, state, checkpoints, DLPack, CUDA graphs, out of memory."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

import bngrad
from results import check

try:
    import torch

    from bngrad.torch import state_tensors
except ImportError:
    torch = None

MODEL = Path(__file__).resolve().parents[2] / "models" / "digits_resnet20.onnx"
STEPS = 5


def batches(size=64):
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        images = rng.standard_normal((size, 1, 8, 8)).astype(np.float32)
        yield {"images": images, "labels": rng.integers(0, 10, size)}


def losses_of(trainer, data=None):
    return [trainer.step(**batch) for batch in (batches() if data is None else data)]


def assert_same_state(first, second):
    for name, array in first.state_dict().items():
        np.testing.assert_array_equal(array, second.state_dict()[name], err_msg=name)


class Case:
    """A step, of which trainers are made."""

    def __init__(self, layout, device):
        self.layout, self.device = layout, device
        options = {"channels_last": True} if layout == "channels last" else {"layout": layout, "conv_grad": True}
        self._options = options
        self._step = self._make(bngrad.SGD(momentum=0.9), group_updates=True)

    def _make(self, optimizer, **options):
        return bngrad.training_step(MODEL, optimizer=optimizer, **self._options, **options)

    def trainer(self, device=None, **options):
        return bngrad.Trainer(self._step, learning_rate=0.01, device=device or self.device, **options)

    def trainers(self, optimizer, **options):
        """One whose groups of weights have an op each, and one whose weights have nodes of their own."""
        steps = (self._make(optimizer, group_updates=chosen, **options) for chosen in (True, False))
        return [bngrad.Trainer(step, learning_rate=0.01, device=self.device) for step in steps]


def losses_of_the_cpu(case):
    actual, expected = losses_of(case.trainer()), losses_of(case.trainer("cpu"))
    difference = max(abs(a / b - 1) for a, b in zip(actual, expected, strict=True))
    assert difference < 1e-4, (actual, expected)
    return f"largest relative difference {difference:.1e}"


def same_bits_in_two_runs(case):
    first, second = case.trainer(), case.trainer()
    assert losses_of(first) == losses_of(second)
    assert_same_state(first, second)


def same_bits_without_group_updates(case):
    groups = [bngrad.ParameterGroup(max_rank=1, weight_decay=0)]
    sgd = bngrad.SGD(momentum=0.9, nesterov=True, weight_decay=0.01)
    rmsprop = bngrad.RMSprop(momentum=0.9, centered=True)
    options = [(optimizer, {"clip_norm": 1.0}) for optimizer in (sgd, bngrad.AdamW(), rmsprop, bngrad.Lion())]
    options.append((sgd, {"precision": "mixed", "init_scale": 2.0**30}))  # whose first calls are skipped
    for optimizer, more in options:
        first, second = case.trainers(optimizer, groups=groups, **more)
        assert losses_of(first) == losses_of(second)
        assert_same_state(first, second)


def prefetched_batches_and_a_saved_state(case):
    first, second = case.trainer(), case.trainer()
    assert losses_of(first) == losses_of(second, second.prefetch(batches()))
    with tempfile.TemporaryDirectory() as folder:
        first.save(Path(folder, "state.safetensors"))
        second.load(Path(folder, "state.safetensors"))
        assert losses_of(first) == losses_of(second)
        second.finalize(Path(folder, "model.onnx"))


def evaluation(case):
    data = next(batches())
    on_device, on_cpu = (trainer.evaluate(**data)["loss"] for trainer in (case.trainer(), case.trainer("cpu")))
    np.testing.assert_allclose(on_device, on_cpu, rtol=1e-4)


def values_on_the_device(case):
    first, second = case.trainer(), case.trainer()
    place = (first.device.kind, first.device.index)
    data = [
        {name: onnxruntime.OrtValue.ortvalue_from_numpy(array, *place) for name, array in batch.items()}
        for batch in batches()
    ]
    assert losses_of(first, data) == losses_of(second)


def tensors_on_the_device(case):
    first, second = case.trainer(), case.trainer()
    data = [
        {name: torch.from_numpy(array).to(case.device) for name, array in batch.items()} for batch in batches()
    ]
    assert losses_of(first, data) == losses_of(second)
    tensors = state_tensors(first)
    for name, array in first.state_dict().items():
        np.testing.assert_array_equal(tensors[name].cpu().numpy(), array, err_msg=name)


def cuda_graphs(case):
    first, second = case.trainer(cuda_graph=True), case.trainer()
    for _ in range(2):
        assert losses_of(first) == losses_of(second)
    assert_same_state(first, second)


def out_of_memory(case):
    first, second = case.trainer(), case.trainer()
    count = 3_000_000
    data = {"images": np.zeros((count, 1, 8, 8), np.float32), "labels": np.zeros(count, np.int64)}
    message = ""
    try:
        first.step(**data)
    except bngrad.DeviceError as error:
        message = str(error)
    assert "out of memory" in message, message or "the step fits into the memory"
    assert losses_of(first) == losses_of(second)


def validation(case):
    report = bngrad.validate(
        MODEL, against="reference", implementation="native", device=case.device, dims={"N": 4}
    )
    assert report.passed, report.reason


def main(device, quick):
    checks = [losses_of_the_cpu, same_bits_in_two_runs, prefetched_batches_and_a_saved_state, evaluation]
    checks += [values_on_the_device, same_bits_without_group_updates]
    if not device.startswith("cpu"):
        checks += [cuda_graphs, out_of_memory, *([] if torch is None else [tensors_on_the_device])]
    for layout in ("named", "flat", "channels last"):
        case = Case(layout, device)
        for function in checks:
            with check(f"{layout}: {function.__name__.replace('_', ' ')}") as notes:
                if note := function(case):
                    notes.append(note)
    if not quick:
        with check("validation"):
            validation(case)


main(sys.argv[1], quick="--quick" in sys.argv)
