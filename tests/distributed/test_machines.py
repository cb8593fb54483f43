"""Ranks on machines of their own, which share nothing but a network."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import bngrad
from bngrad.cli import run
from distributed.machines import TCP, machines
from mpi_run import mpi_run, mpich
from training.trainer_cases import network as batch_norm_network
from training.trainer_cases import samples

PROGRAMS = Path(__file__).parent / "rank_programs.py"
RANKS = 16
TIMEOUT = 5
ADDRESS = """
import subprocess, sys
import numpy as np
from pathlib import Path
from bngrad.distributed import Communicator

shown = subprocess.run(["ip", "-4", "-o", "address", "show", "eth0"], capture_output=True, text=True, check=True)
with Communicator(timeout=60) as comm:
    print(comm.gather_text("addresses", shown.stdout.split()[3])[comm.rank])
    comm.all_gather("a megabyte", np.zeros(1 << 20, np.uint8))
    print(int(Path("/sys/class/net/eth0/statistics/rx_bytes").read_text()) // 1_000_000 >= comm.size - 1)
"""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    with machines(RANKS, tmp_path_factory.mktemp("machines")) as virtual_network:
        yield virtual_network


def test_each_rank_has_its_address_and_receives_by_the_network(network, mpi):
    job = mpi_run(RANKS, "-c", ADDRESS, mpi=mpi, options=network.options(mpi), **TCP)
    assert [rank.out for rank in job.ranks] == [f"{address}/24\nTrue\n" for address in network.addresses]


@pytest.mark.parametrize("program", ["values", "sub_communicators", "pieces"])
def test_programs(program, network, mpi):
    job = mpi_run(RANKS, PROGRAMS, program, mpi=mpi, options=network.options(mpi), **TCP)
    assert [rank.error for rank in job.ranks] == [""] * RANKS


def test_training_is_that_of_one_process(network, mpi, tmp_path, monkeypatch):
    """The last batch of an epoch has 20 samples for the 16 ranks."""
    monkeypatch.chdir(tmp_path)
    bngrad.training_step(batch_norm_network(), sync=True).save("step.onnx")
    np.savez("data.npz", **samples(116))
    train = ["train", "step.onnx", "--data", "data.npz", "--learning-rate", "0.1", "--batch-size", "48"]
    train += ["--epochs", "3", "--log"]
    assert run([*train, "one.jsonl"]) == 0
    arguments = ["-m", "bngrad", *train, "ranks.jsonl", "--distributed", "--timeout", "60"]
    mpi_run(RANKS, *arguments, mpi=mpi, options=network.options(mpi), **TCP)
    single, ranks = (
        [json.loads(line).get("loss") for line in Path(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("one", "ranks")
    )
    assert len([loss for loss in single if loss is not None]) == 9
    np.testing.assert_allclose(np.array(ranks, float), np.array(single, float), rtol=2e-5)


def test_a_machine_without_a_network(network):
    """All ranks end with one line. The launcher waits until it reaches the machine again."""
    for seconds, state in ((8, "down"), (12 + TIMEOUT, "up")):
        threading.Timer(seconds, network.plug, [RANKS, state]).start()
    job = mpi_run(
        RANKS,
        PROGRAMS,
        "endless",
        TIMEOUT,
        mpi=mpich(),
        options=(*network.options(mpich()), *mpich().keep_survivors),
        timeout=60,
        expected=None,
        **TCP,
    )
    assert job.code != 0
    for rank in range(RANKS):
        assert job.ranks[rank].error.count("\n") == 1, job
        assert f"rank {rank} waited {TIMEOUT} s for another rank" in job.ranks[rank].error, job
