"""Tensors of a device into a trainer and back without a copy, by PyTorch's and ONNX Runtime's own DLPack.

The device is `fake_cuda`, whose memory PyTorch takes for that of the CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnxruntime import OrtValue

import bngrad
from bngrad.errors import InputError
from fake_cuda import fake_cuda  # noqa: F401
from training.trainer_cases import batch, step_of

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")
import bngrad.torch  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:the gradients of the step's convolutions are slow"),
    pytest.mark.usefixtures("fake_cuda"),
    pytest.mark.skipif(not hasattr(OrtValue, "from_dlpack"), reason="this onnxruntime has no DLPack"),
]


class OnCuda:
    """A tensor that says that it is on the first GPU."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, *, stream):
        assert stream == 1  # CUDA's legacy default stream, for which copies to the device wait
        return self.tensor.__dlpack__()


def trainer_on(device, **options):
    return bngrad.Trainer(step_of(optimizer="adam", **options), learning_rate=0.1, device=device)


def test_tensors_of_the_device():
    cpu, cuda, data = trainer_on("cpu"), trainer_on("cuda"), batch()
    tensors = {name: OnCuda(torch.from_numpy(array)) for name, array in data.items()}
    for _ in range(3):
        assert cuda.step(**tensors) == cpu.step(**data)


def test_a_tensor_that_is_not_contiguous():
    data = batch()
    x = torch.from_numpy(np.ascontiguousarray(data["x"].transpose(0, 1, 3, 2))).transpose(2, 3)
    with pytest.raises(InputError, match=r"^'x' cannot be taken from cuda:0: .*ontiguous"):
        trainer_on("cuda").step(x=OnCuda(x), labels=data["labels"])


@pytest.mark.parametrize("layout", ["named", "flat"])
def test_the_state_as_tensors(layout):
    trainer = trainer_on("cuda", layout=layout)
    trainer.step(**batch())
    tensors, state = bngrad.torch.state_tensors(trainer), trainer.state_dict()
    assert list(tensors) == list(state)
    for name, tensor in tensors.items():
        assert str(tensor.dtype) == f"torch.{state[name].dtype}"
        np.testing.assert_array_equal(tensor.numpy(), state[name], strict=True)
    tensors["kernel"] += 1
    np.testing.assert_array_equal(trainer.state_dict()["kernel"], state["kernel"] + 1)
    del trainer
    np.testing.assert_array_equal(tensors["weight"].numpy(), state["weight"])


def test_a_trainer_on_the_cpu():
    with pytest.raises(InputError, match="the trainer is on the CPU"):
        bngrad.torch.state_tensors(trainer_on("cpu"))
