"""Faults of one rank of ``bngrad train --distributed``: all end, with one line, and the checkpoint stays."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import bngrad
from bngrad.cli import run
from bngrad.io.tensor_files import read_tensors
from mpi_run import mpi_run, mpich
from training.trainer_cases import network, samples

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
PROGRAM = Path(__file__).with_name("train_fault.py")
TIMEOUT = 3
RUN = ["step.onnx", "--data", "train.npz", "--batch-size", "9", "--epochs", "3", "--learning-rate", "0.1"]
FILES = ["--log", "log.jsonl", "--checkpoint", "c.safetensors", "--checkpoint-every", "2"]
ENDED = re.escape(
    f"waited {TIMEOUT} s for another rank, which ended, hangs, or is slower than the time-out allows\n"
)


class Fault(NamedTuple):
    """A fault before call 7 on a rank, and how three ranks end."""

    what: str
    code: int | None
    """The exit code of the rank with the fault."""
    own: str
    """Its output."""
    others: str
    """The output of each other rank."""
    other_code: int | None = 2
    rank: int = 1
    step: int = 6
    """That of the checkpoint."""


TIMED_OUT = rf"bngrad: error: .*rank \d {ENDED}"
long = pytest.mark.long
FAULTS = {
    "killed": Fault("SIGKILL", 128 + 9, "(?s:.*)", TIMED_OUT),
    "a-bug": Fault("raise", 2, "bngrad: error: rank 1: internal error: KeyError: 'a bug' .*\n", ""),
    "full-disk": Fault(
        "full:c.safetensors", 2, "bngrad: error: c.safetensors cannot be written: File too large\n", "", rank=0
    ),
    "full-log": Fault("full:log.jsonl", 2, "bngrad: error: rank 0: log.jsonl cannot be written: .*\n", "", rank=0),
    "slow": Fault("sleep:1", 0, "", "", other_code=0, step=15),
    "too-slow": Fault(f"sleep:{2 * TIMEOUT}", 2, TIMED_OUT, TIMED_OUT),
    # The shell that notes the code gets the signal, too.
    "ctrl-c-on-the-launcher": Fault("launcher:SIGINT", None, "", "", other_code=None, step=8),
    "sigterm": Fault("SIGTERM", 130, "", "", other_code=130, step=8),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("faults")
    bngrad.training_step(network(), optimizer="adam", sync=True).save(path / "step.onnx")
    np.savez(path / "train.npz", **samples(44))
    return path


def assert_resumes(folder):
    """One process takes the remaining steps of the run, and has the results of a run without a fault."""
    log = [json.loads(line) for line in Path("log.jsonl").read_text().splitlines()]
    steps = [record["step"] for record in log if "loss" in record]
    assert steps == list(range(1, len(steps) + 1))
    assert run(["train", *RUN[:3], "--resume", "c.safetensors"]) == 0
    assert run(["train", *RUN, "--checkpoint", "whole.safetensors"]) == 0
    tensors, expected = (read_tensors(f"{name}.safetensors")[0] for name in ("c", "whole"))
    for tensor, array in expected.items():
        np.testing.assert_allclose(tensors[tensor], array, rtol=1e-3, atol=1e-4, err_msg=tensor)
    assert not [path for path in folder.iterdir() if "tmp" in path.name]


@pytest.mark.parametrize("case", [case if case == "killed" else pytest.param(case, marks=long) for case in FAULTS])
def test_a_fault_on_one_rank(case, folder, monkeypatch):
    fault, mpi = FAULTS[case], mpich()
    monkeypatch.chdir(folder)
    for file in ("c.safetensors", "log.jsonl"):
        Path(file).unlink(missing_ok=True)
    arguments = ["train", *RUN, *FILES, "--distributed", "--timeout", TIMEOUT]
    command = (PROGRAM, fault.rank, 7, fault.what, *arguments)
    job = mpi_run(3, *command, mpi=mpi, options=mpi.keep_survivors, timeout=60, expected=None)
    for number, rank in enumerate(job.ranks):
        has_fault = number == fault.rank
        assert rank.code == (fault.code if has_fault else fault.other_code), job
        assert re.fullmatch(fault.own if has_fault else fault.others, rank.error), job
        assert number == 0 or not rank.out
    notes = json.loads(read_tensors("c.safetensors")[1]["bngrad.step"])["notes"]
    assert notes["position"]["step"] == fault.step
    if fault.step < 15:
        assert_resumes(folder)
