"""docs/examples/mpi trains on two ranks as one process does, and as Python does on two."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from filelock import FileLock

import bngrad
from bngrad.runtime import native_library
from bngrad.training.step_files import read_state
from digits_training import MODEL, Training, losses_in, prepare
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
def made(tmp_path_factory):
    """The folders of the prepared files and of the program, made once for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "mpi_example"
    with FileLock(base.with_suffix(".lock")):
        if not base.exists():
            base.mkdir()
            prepare(base / "digits", "named")
            cmake_build("mpi", base / "build", MPI_CXX_COMPILER=mpich().mpiexec.with_name("mpicxx"))
            shutil.copytree(base / "digits", base / "unsynchronized")
            optimizer = bngrad.SGD(momentum=0.9, weight_decay=5e-4)
            step = bngrad.training_step(MODEL, optimizer=optimizer, layout="named", sync=True)
            step.save(base / "digits" / "step.onnx")
    return base


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made / "digits", tmp_path / "digits")


def train(made, *every, **options):
    """Runs the program with the arguments of each rank."""
    arguments = json.dumps([list(map(str, one)) for one in every])
    return mpi_run(len(every), "-c", EXEC, made / "build" / "train_mpi", arguments, **options)


def test_trains_as_one_process_does(made, folder):
    arguments = [folder, native_library.library_path(), STEPS, 0.05]
    job = train(made, arguments, arguments)
    losses, state = Training(made / "unsynchronized", library=True).train(STEPS, 0.05)
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


def test_a_rank_that_fails_stops_the_others(made, folder):
    library = native_library.library_path()
    broken = shutil.copytree(folder, folder.with_name("broken"))
    (broken / "digits.safetensors").write_bytes(b"PK")
    job = train(made, [folder, library], [broken, library], expected=1)
    assert "rank 1: " in job.ranks[1].error
    assert "is no .safetensors file" in job.ranks[1].error
    assert "rank 1 failed: " in job.ranks[0].error
    assert not (folder / "trained.safetensors").exists()


def test_ranks_with_different_states_do_not_train(made, folder):
    library = native_library.library_path()
    other = shutil.copytree(folder, folder.with_name("other"))
    state = (other / "step.safetensors").read_bytes()
    (other / "step.safetensors").write_bytes(state[:-1] + bytes([state[-1] ^ 1]))
    job = train(made, [folder, library], [other, library], expected=1)
    assert all("ranks 0 and 1 do not match: rank 0 is at AllGather 'state " in rank.error for rank in job.ranks)


def test_a_rank_that_does_not_answer_is_noticed(made, folder):
    arguments = [folder, native_library.library_path()]
    job = train(made, [*arguments, STEPS, 0.05, 2], [*arguments, 1], expected=None)
    assert "not all ranks answered in 2" in job.ranks[0].error
    assert job.code != 0


def test_refuses_a_step_that_is_not_synchronized(made):
    arguments = [made / "unsynchronized", native_library.library_path()]
    job = train(made, arguments, arguments, expected=1)
    assert all("make it with bngrad step --sync" in rank.error for rank in job.ranks)


@pytest.mark.parametrize("wrong", [[], ["a"], ["a", "b", "0"], ["a", "b", "1", "x"]], ids=" ".join)
def test_usage(made, wrong):
    done = subprocess.run(
        [made / "build" / "train_mpi", *wrong], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")
