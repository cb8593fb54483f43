"""Trainers on two ranks: the results of one on the whole batch, files of rank 0, and errors of all ranks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import bngrad
from bngrad.io.tensor_files import read_tensors
from mpi_run import mpi_run
from trainer_cases import step_of
from trainer_ranks import OPTIMIZERS, RATE, UNEVEN, batches


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The folder of a job, and the output of its two ranks."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = mpi_run(2, Path(__file__).with_name("trainer_ranks.py"), folder).ranks
    assert [rank.error for rank in ranks] == ["", ""]
    return folder, [json.loads(rank.out) for rank in ranks]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_results_of_one_process_on_the_whole_batch(job, name):
    folder, (first, second) = job
    assert first[name] == second[name]  # the hash of the state, too
    alone = bngrad.Trainer(step_of(**OPTIMIZERS[name]), learning_rate=RATE)
    losses = [alone.step(**data) for data, _ in batches()]
    np.testing.assert_allclose(first[name]["losses"], losses, rtol=2e-5)
    assert first[name]["calls"] == len(UNEVEN)
    state = np.load(folder / f"{name}.npz")
    for tensor, array in alone.state_dict().items():
        np.testing.assert_allclose(state[tensor], array, rtol=1e-3, atol=1e-5, err_msg=tensor)


def test_the_python_implementation(job):
    for rank in job[1]:
        np.testing.assert_allclose(rank["python_implementation"], rank["sgd"]["losses"], rtol=1e-5)


def test_one_rank_alone_has_the_bits_of_no_communicator():
    program = """
import bngrad, hashlib
from bngrad.distributed import Communicator
from trainer_cases import batch, step_of
import numpy as np
steps = [step_of(sync=True, optimizer="adam", clip_norm=1.0) for _ in range(2)]
alone = bngrad.Trainer(steps[0], learning_rate=0.1)
losses = [alone.step(**batch(index)) for index in range(3)]
one = bngrad.Trainer(steps[1], learning_rate=0.1, comm=Communicator())
assert [one.step(**batch(index)) for index in range(3)] == losses
for name, array in alone.state_dict().items():
    np.testing.assert_array_equal(one.state_dict()[name], array)
print("same")
"""
    (rank,) = mpi_run(1, "-c", program, PYTHONPATH=pythonpath()).ranks
    assert (rank.out, rank.error) == ("same\n", "")


def pythonpath():
    root = Path(__file__).parents[2]
    return f"{root}:{root / 'tests'}:{root / 'tests' / 'training'}"


def test_rank_0_writes_and_reads(job):
    folder, (first, second) = job
    assert first["resumed"] == second["resumed"]
    assert first["resumed"]["notes"] == {"epoch": [1, "a"]}
    assert first["resumed"]["calls"] == [2, 2]
    assert len(set(first["resumed"]["losses"])) == len(set(first["resumed"]["states"])) == 1
    assert read_tensors(folder / "saved.safetensors")[0]["step"] == 1
    assert not (folder / "on-another-machine").exists()
    assert first["finalized"] == second["finalized"]
    assert [(folder / f"model{rank}.onnx").exists() for rank in range(2)] == [True, False]


def test_outputs_are_those_of_the_rows_of_a_rank(job):
    assert [rank["outputs"] for rank in job[1]] == [[4, 3], [3, 3]]


MISMATCH = "DistributedError: ranks 0 and 1 do not match: "
EVERYWHERE = {
    "a-rank-without-data": "InputError: rank 1: there is no data for 'x' and 'labels'; expected",
    "a-rank-without-rows": r"InputError: rank 0: 'x' has shape \[0, 1, 4, 4\], so it is empty",
    "a-label": "InputError: rank 1: 'labels' has the label 3; expected 0 to 2",
    "nan-on-rank-1": "TrainingError: the loss is nan in call 2: the data 'x' of rank 1 are not finite; the state",
    "nan-on-all": "TrainingError: the loss is nan in call 2: the data 'x' of rank 0 are not finite; the state",
    "save": "InputError: output folder .*/missing does not exist; create it first",
    "save-notes": "InputError: .*/x.safetensors cannot hold the notes: Object of type object is not JSON",
    "load": "InputError: .*/missing.safetensors does not exist",
    "finalize": "InputError: output folder .*/missing does not exist; create it first",
    "state-of-rank-1": "InputError: rank 1: 'a' is not in the state of this model",
    "another-rate": f"{MISMATCH}rank 0 is at .*2 with learning rate 0.1'.*, rank 1 at .*2 with learning rate 0.2'",
    "made-with-another-rate": f"{MISMATCH}the learning rate is 0.1 on rank 0 and 0.2 on rank 1; expected the same "
    "training step, versions and learning rate on all ranks",
    "another-model": f"{MISMATCH}the fingerprint of the training step is ",
    "another-implementation": f"{MISMATCH}the implementation is native on rank 0 and python on rank 1",
    "a-wrong-rate-on-rank-1": "InputError: rank 1: learning_rate is 'a'; expected a number or a schedule",
    "not-synchronized": "InputError: the training step is not synchronized, .*; make it with bngrad step --sync",
    "function": "InputError: the implementation is function, which has no collectives; expected native",
    "no-step": "InputError: .*/missing.onnx does not exist",
}


@pytest.mark.parametrize("name", EVERYWHERE)
def test_all_ranks_raise_an_error(job, name):
    messages = [rank["errors"]["messages"][name] for rank in job[1]]
    assert messages[0] == messages[1]
    assert re.match(EVERYWHERE[name], messages[0]), messages[0]


def test_data_that_onnxruntime_refuses_on_one_rank(job):
    of_first, of_second = (rank["errors"]["messages"]["refused-by-onnxruntime"] for rank in job[1])
    assert re.match("InputError: ONNX Runtime refuses the data: .*Invalid sequence length: 9", of_second)
    assert re.match("DistributedError: .*rank 1 failed: ONNX Runtime refuses the data: .*length: 9", of_first)


def test_the_ranks_go_on_after_errors(job):
    errors = [rank["errors"] for rank in job[1]]
    assert [rank["is-unchanged"] for rank in errors] == [True, True]
    assert errors[0]["losses-after"] == errors[1]["losses-after"]
    assert set(errors[0]["messages"]) == {*EVERYWHERE, "refused-by-onnxruntime"}


def test_a_synchronized_step_without_a_communicator(job):
    for rank in job[1]:
        assert rank["without_communicator"] == (
            "the training step is synchronized, and this is one of 2 processes of an MPI launcher, which would "
            "each train alone; give comm=bngrad.distributed.Communicator()"
        )


def test_a_session_made_before_the_communicator(job):
    for rank in job[1]:
        assert (
            "the collective was set after the session was created (made with 1 rank, now 2)"
            in rank["attached_late"]
        )


def test_a_communicator_of_mpi4py(job):
    first, second = (rank["mpi_communicator"] for rank in job[1])
    assert [result[:2] for result in first] == [[0, 2]] * 2
    assert [result[:2] for result in second] == [[1, 2]] * 2
    assert len({result[2] for result in (*first, *second)}) == 1
