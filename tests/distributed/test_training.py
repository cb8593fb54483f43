"""ResNet-20 on digits: the run of one process on any number of ranks, and what its bits depend on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest

import bngrad
from bngrad.io.tensor_files import read_tensors
from bngrad.runtime import native_library
from double_resnet import double_resnet
from models import digits_resnet20
from mpi_run import mpi_run

pytestmark = pytest.mark.long

STEPS = 50
SIZE = 64
PROGRAM = Path(__file__).with_name("resnet_ranks.py")
COMMANDS = Path(__file__).parents[1] / "cli" / "train_ranks.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Steps in float and double, with and without synchronization, and the data."""
    path = tmp_path_factory.mktemp("digits")
    images, labels = digits_resnet20.digits()
    for name, model in {"float": digits_resnet20.build(), "double": double_resnet()}.items():
        for sync in (False, True):
            step = bngrad.training_step(model, optimizer=bngrad.SGD(momentum=0.9), sync=sync)
            step.save(path / f"{name}{'-sync' if sync else ''}.onnx")
        dtype = {"float": np.float32, "double": np.float64}[name]
        np.savez(path / f"{name}.npz", images=images.astype(dtype), labels=labels)
    model = onnx.load(path / "double-sync.onnx")
    without_batch_norm_exchange(model)
    onnx.save(model, path / "double-local.onnx")
    for suffix in ("eval.onnx", "safetensors"):
        (path / f"double-local.{suffix}").symlink_to(path / f"double-sync.{suffix}")
    return path


def without_batch_norm_exchange(model):
    """Leaves each rank its own batch statistics; the gradients are still those of all ranks."""
    axis = onnx.helper.make_tensor("local_axis", onnx.TensorProto.INT64, [1], [0])
    model.graph.initializer.append(axis)
    changed = 0
    for node in model.graph.node:
        key = next((attribute.s.decode() for attribute in node.attribute if attribute.name == "key"), "")
        if node.op_type == "AllGather" and key.endswith(("/moments", "/sums")):
            node.op_type, node.domain = "Unsqueeze", ""
            node.input.append("local_axis")
            del node.attribute[:]
            changed += 1
    assert changed == 42


def losses_of(folder, step, ranks, mpi=None, steps=STEPS):
    arguments = (PROGRAM, folder / f"{step}.onnx", folder / f"{step.split('-')[0]}.npz", SIZE, steps)
    job = mpi_run(ranks, *arguments, mpi=mpi, timeout=400)
    losses = [json.loads(rank.out) for rank in job.ranks]
    assert all(rank_losses == losses[0] for rank_losses in losses)
    return np.array(losses[0])


@pytest.fixture(scope="module")
def whole_batch(folder):
    """The losses of one process, without synchronization."""
    return losses_of(folder, "double", 1)


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_the_losses_of_the_whole_batch(folder, whole_batch, ranks):
    losses = losses_of(folder, "double-sync", ranks)
    assert whole_batch[-1] < whole_batch[0] / 10
    np.testing.assert_allclose(losses, whole_batch, rtol=1e-10)


def test_statistics_of_each_rank_give_other_losses(folder, whole_batch):
    losses = losses_of(folder, "double-local", 4)
    difference = np.abs(losses - whole_batch) / whole_batch
    assert difference[0] > 1e-3
    assert difference.max() > 0.1


def train(name, folder, *options, step="double", ranks=1, mpi=None, case=None, **environment):
    """Runs ``bngrad train`` for three epochs of 27 steps, and returns the result of rank 0."""
    words = ["train", f"{step}-sync.onnx", "--data", f"{step}.npz", "--threads", "1", "--distributed"]
    words += ["--log", f"{name}.jsonl", "--checkpoint", f"{name}.safetensors", *options]
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"case": {"arguments": words, "folder": str(folder), **(case or {})}}))
    job = mpi_run(ranks, COMMANDS, file, mpi=mpi, timeout=500, **environment)
    return json.loads(job.ranks[0].out)["case"]


RUN = ["--learning-rate", "0.05", "--batch-size", "64", "--validation-split", "0.2", "--epochs"]


def records(folder, name, key):
    lines = map(json.loads, (folder / f"{name}.jsonl").read_text().splitlines())
    return [record[key] for record in lines if key in record]


def state(folder, name):
    return read_tensors(folder / f"{name}.safetensors")[0]


def test_restarts_with_other_numbers_of_ranks(folder):
    """Batches of 64 of 1438 samples: the last one of an epoch has 30."""
    assert train("whole", folder, *RUN, "2")[0] == 0
    assert train("elastic", folder, *RUN, "2", ranks=2, case={"signal": [1, 12]})[0] == 130
    resume = ["--resume", "elastic.safetensors"]
    assert train("elastic", folder, *resume, ranks=4, case={"signal": [3, 30]})[0] == 130
    code, out, _ = train("elastic", folder, *resume)
    assert (code, "finished after 2 epochs, 46 steps" in out) == (0, True)
    for key in ("loss", "training_loss", "validation_loss"):
        np.testing.assert_allclose(records(folder, "elastic", key), records(folder, "whole", key), rtol=1e-9)
    assert records(folder, "elastic", "accuracy") == records(folder, "whole", "accuracy")
    expected = state(folder, "whole")
    for tensor, array in state(folder, "elastic").items():
        np.testing.assert_allclose(array, expected[tensor], rtol=1e-7, atol=1e-9, err_msg=tensor)


def test_the_accuracy_in_float(folder):
    """The rounding of float grows from step to step; the accuracy after a whole schedule depends little on it."""
    accuracies = []
    for ranks in (1, 4):
        name = f"float{ranks}"
        assert train(name, folder, *RUN, "6", "--schedule", "cosine", step="float", ranks=ranks)[0] == 0
        accuracies.append(records(folder, name, "accuracy")[-1])
    assert min(accuracies) > 0.95
    assert abs(accuracies[1] - accuracies[0]) < 0.02


BITS = {"again": {}, "scalar": {"BNGRAD_ISA": "scalar"}, "avx2": {"BNGRAD_ISA": "avx2"}}


def digest(folder, name):
    tensors = sorted(state(folder, name).items())
    return hashlib.sha256(b"".join(array.tobytes() for _, array in tensors)).hexdigest()


def bits_of(folder, name, mpi=None, **environment):
    options = ["--learning-rate", "0.05", "--batch-size", "161", "--epochs", "1"]
    assert train(name, folder, *options, step="float", ranks=3, mpi=mpi, **environment)[0] == 0
    return digest(folder, name)


@pytest.fixture(scope="module")
def expected_bits(folder):
    """The state after 12 steps on three ranks, whose shards are uneven."""
    return bits_of(folder, "bits")


@pytest.mark.parametrize("case", BITS)
def test_the_bits_do_not_depend_on(folder, expected_bits, case):
    """Nor on the number of threads, but ONNX Runtime's convolutions do, also in one process."""
    isa = BITS[case].get("BNGRAD_ISA")
    if isa is not None and not native_library.isas().get(isa):
        pytest.skip(f"this processor has no {isa}")
    assert bits_of(folder, f"bits-{case}", **BITS[case]) == expected_bits


def test_the_bits_are_those_of_both_mpi_implementations(folder, expected_bits, mpi):
    assert bits_of(folder, f"bits-{mpi.name}", mpi=mpi) == expected_bits
