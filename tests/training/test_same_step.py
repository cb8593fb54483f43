from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.distributed.collective import Function
from bngrad.errors import InputError
from bngrad.runtime import native_library
from bngrad.training.same_step import hash_of_model

FORWARD = """<ir_version: 9, opset_import: ["" : 17]>
g (float[N,3] x) => (float loss) <float[3,2] w = {1, 2, 3, 4, 5, 6}>
{ y = MatMul(x, w) e = Mul(y, y) loss = ReduceMean<keepdims = 0>(e) }"""


@pytest.fixture
def step(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    return bngrad.training_step(onnx.parser.parse_model(FORWARD), sync=True)


@pytest.fixture
def two_equal_ranks():
    """A collective function of another transport, in which both ranks are this process."""

    def move(_context, _operation, send, receive, size, error, _error_size):
        for rank in range(2):
            ctypes.memmove(receive + rank * size, send, size)
        ctypes.memset(error, 0, 1)
        return 0

    function = Function(move)
    native_library.call("bngrad_set_collective", function, None, 0, 2)
    yield
    native_library.call("bngrad_set_collective", None, None, 0, 1)


def test_several_processes_do_not_train_alone(step):
    with pytest.raises(InputError, match="this is one of 2 processes of an MPI launcher"):
        bngrad.Trainer(step, learning_rate=0.5)


@pytest.mark.usefixtures("two_equal_ranks")
def test_another_transport_connects_them(step):
    trainer = bngrad.Trainer(step, learning_rate=0.5)
    x = np.eye(3, dtype=np.float32)
    assert trainer.step(x=x) == pytest.approx(np.mean(np.square([1, 2, 3, 4, 5, 6])))
    # Two equal halves have the gradient of one.
    np.testing.assert_allclose(trainer.state_dict()["w"].ravel(), np.arange(1, 7) * (1 - 0.5 * 2 / 6), rtol=1e-6)


def test_constants_in_external_data_are_compared(tmp_path, monkeypatch):
    hashes = []
    for name, number in (("first", 1), ("second", 1), ("third", 2)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        forward = onnx.parser.parse_model(FORWARD.replace("Mul(y, y)", "Mul(y, c)"))
        forward.graph.initializer.append(onnx.numpy_helper.from_array(np.full(2, number, np.float32), "c"))
        step = bngrad.training_step(forward, wrt=["w"])
        onnx.save(step.model, "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
        hashes.append(hash_of_model(replace(step, model=onnx.load("m.onnx", load_external_data=False))))
    assert hashes[0] == hashes[1] != hashes[2]
