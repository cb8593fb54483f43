"""docs/examples/mpi trains on two ranks as one process does, and as Python does on two."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import bngrad
from bngrad.runtime import native_library
from bngrad.training.step_files import read_state
from digits_training import MODEL, Training, losses_in
from mpi_run import mpi_run, mpich
from test_cpp import cmake_build

STEPS = 5
EXEC = """import json, os, sys
every = json.loads(sys.argv[2])
rank = int(os.environ.get("PMI_RANK") or os.environ["OMPI_COMM_WORLD_RANK"])
os.execv(sys.argv[1], [sys.argv[1], *every[rank]])
"""
PYTHON = """import sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
from safetensors.numpy import load_file
import bngrad

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
comm, digits = MPI.COMM_WORLD, load_file(folder / "digits.safetensors")
trainer = bngrad.Trainer(folder / "step.onnx", learning_rate=0.05, threads=1, comm=comm)
for batch in digits["batches"][:steps]:
    rows = batch[len(batch) * comm.rank // comm.size : len(batch) * (comm.rank + 1) // comm.size]
    trainer.step(**{name: digits[f"training/{name}"][rows] for name in ("images", "labels")})
trainer.save(folder / "python.safetensors")
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library of a wheel has another name")


@pytest.fixture(scope="module")
def program(shared_folder):
    options = {"MPI_CXX_COMPILER": mpich().mpiexec.with_name("mpicxx")}
    return shared_folder("mpi_example", lambda path: cmake_build("mpi", path, **options)) / "train_mpi"


@pytest.fixture(scope="module")
def synchronized(shared_folder, digits):
    """The folder of the prepared files, with a synchronized step."""

    def fill(path):
        shutil.copytree(digits, path, dirs_exist_ok=True)
        optimizer = bngrad.SGD(momentum=0.9, weight_decay=5e-4)
        step = bngrad.training_step(MODEL, optimizer=optimizer, layout="named", sync=True)
        step.save(path / "step.onnx")

    return shared_folder("synchronized_digits", fill)


@pytest.fixture
def folder(synchronized, tmp_path):
    return shutil.copytree(synchronized, tmp_path / "digits")


def train(program, *every, **options):
    """Runs the program with the arguments of each rank."""
    arguments = json.dumps([list(map(str, of_rank)) for of_rank in every])
    return mpi_run(len(every), "-c", EXEC, program, arguments, **options)


def test_trains_as_one_process_does(program, digits, folder):
    arguments = [folder, native_library.library_path(), STEPS, 0.05]
    job = train(program, arguments, arguments)
    losses, state = Training(digits, library=True).train(STEPS, 0.05)
    np.testing.assert_allclose(losses_in(job.ranks[0].out), losses, rtol=1e-5)
    assert job.ranks[1].out == ""
    info = bngrad.read_training_step(folder / "step.onnx").info
    written, _ = read_state(folder / "trained.safetensors", info)
    for name, array in written.items():
        np.testing.assert_allclose(array, state[name], rtol=1e-3, atol=1e-4, err_msg=name)

    # The same rows on the same ranks: the same bits.
    mpi_run(2, "-c", PYTHON, folder, STEPS)
    in_python, _ = read_state(folder / "python.safetensors", info)
    for name, array in written.items():
        assert array.tobytes() == in_python[name].tobytes(), name


def test_a_rank_that_fails_stops_the_others(program, folder):
    library = native_library.library_path()
    broken = shutil.copytree(folder, folder.with_name("broken"))
    (broken / "digits.safetensors").write_bytes(b"PK")
    job = train(program, [folder, library], [broken, library], expected=1)
    assert "rank 1: " in job.ranks[1].error
    assert "is no .safetensors file" in job.ranks[1].error
    assert "rank 1 failed: " in job.ranks[0].error
    assert not (folder / "trained.safetensors").exists()


def test_ranks_with_different_states_do_not_train(program, folder):
    library = native_library.library_path()
    other = shutil.copytree(folder, folder.with_name("other"))
    state = (other / "step.safetensors").read_bytes()
    (other / "step.safetensors").write_bytes(state[:-1] + bytes([state[-1] ^ 1]))
    job = train(program, [folder, library], [other, library], expected=1)
    assert all("ranks 0 and 1 do not match: rank 0 is at AllGather 'state " in rank.error for rank in job.ranks)


def test_a_rank_that_does_not_answer_is_noticed(program, folder):
    arguments = [folder, native_library.library_path()]
    job = train(program, [*arguments, STEPS, 0.05, 2], [*arguments, 1], expected=None)
    assert "not all ranks answered in 2" in job.ranks[0].error
    assert job.code != 0


def test_refuses_a_step_that_is_not_synchronized(program, digits):
    arguments = [digits, native_library.library_path()]
    job = train(program, arguments, arguments, expected=1)
    assert all("make it with bngrad step --sync" in rank.error for rank in job.ranks)


@pytest.mark.parametrize("wrong", [[], ["a"], ["a", "b", "0"], ["a", "b", "1", "x"]], ids=" ".join)
def test_usage(program, wrong):
    done = subprocess.run([program, *wrong], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
