"""Run on each rank of a job: what trainers do together, printed as JSON by case.

Usage: trainer_ranks.py FOLDER
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

import bngrad
from bngrad.distributed import Communicator
from bngrad.errors import BngradError
from trainer_cases import batch, samples, step_of

RATE = 0.1
UNEVEN = [(8, 5), (8, 3), (9, 1), (2, 1), (7, 4)]
"""Batches: the number of samples, and of those that rank 0 takes."""

OPTIMIZERS = {
    "sgd": {"optimizer": bngrad.SGD(momentum=0.9, weight_decay=0.01)},
    "adamw-flat-clipped": {"optimizer": "adamw", "layout": "flat", "clip_norm": 0.5},
    "accumulated": {"optimizer": "adam", "accumulate": 2},
    "frozen": {"frozen": ["bn"]},
}

REVERSED = """<ir_version: 9, opset_import: ["" : 18]>
g (float[N,3] x, int64[N] lengths) => (float loss) <float[3,2] table = {1, 2, 3, 4, 5, 6}> {
    y = MatMul (x, table)
    r = ReverseSequence <batch_axis = 0, time_axis = 1> (y, lengths)
    loss = ReduceMean <keepdims = 0> (r)
}"""


def batches():
    """The batches of the uneven run, as a whole."""
    return [(batch(index, size), cut) for index, (size, cut) in enumerate(UNEVEN)]


def part(data, cut, rank):
    """The rows of a batch for a rank; rank 1 has the rest of rank 0."""
    return {name: array[:cut] if rank == 0 else array[cut:] for name, array in data.items()}


def digest(state):
    return hashlib.sha256(b"".join(array.tobytes() for array in state.values())).hexdigest()


class Cases:
    def __init__(self, comm, folder):
        self.comm, self.folder, self.rank = comm, folder, comm.rank

    def trainer(self, step=None, **options):
        options = {"learning_rate": RATE, "comm": self.comm, "threads": 1} | options
        return bngrad.Trainer(step or step_of(sync=True), **options)

    def train(self, name):
        """The losses and states of a run; rank 1 begins with another state, which that of rank 0 replaces."""
        step = step_of(sync=True, **OPTIMIZERS[name])
        if self.rank == 1:
            step = replace(step, state={name: np.zeros_like(array) for name, array in step.state.items()})
        trainer = self.trainer(step)
        losses = [trainer.step(**part(data, cut, self.rank)) for data, cut in batches()]
        if self.rank == 0:
            np.savez(self.folder / f"{name}.npz", **trainer.state_dict())
        return {"losses": losses, "state": digest(trainer.state_dict()), "calls": trainer.calls}

    def python_implementation(self):
        trainer = self.trainer(step_of(sync=True, **OPTIMIZERS["sgd"]), implementation="python")
        return [trainer.step(**part(data, cut, self.rank)) for data, cut in batches()]

    def resumed(self):
        """A state that rank 0 saved, loaded again, and one that only rank 0 has."""
        step = step_of(sync=True, optimizer="adam")
        first = self.trainer(step)
        first.step(**batch(self.rank))
        file = self.folder / ("saved.safetensors" if self.rank == 0 else "on-another-machine")
        first.save(file, epoch=[1, "a"])
        second = self.trainer(step)
        notes = second.load(file)
        third = self.trainer(step)
        third.load_state_dict(first.state_dict() if self.rank == 0 else step.state)
        after = [trainer.step(**batch(5 + self.rank)) for trainer in (first, second, third)]
        states = [digest(trainer.state_dict()) for trainer in (first, second, third)]
        return {"notes": notes, "calls": [second.calls, third.calls], "losses": after, "states": states}

    def finalized(self):
        trainer = self.trainer()
        trainer.step(**batch(self.rank))
        model = trainer.finalize(self.folder / f"model{self.rank}.onnx")
        return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()

    def outputs(self):
        """Outputs are those of the rows of this rank."""
        trainer = self.trainer(step_of(sync=True, outputs=["logits"]))
        trainer.step(**part(samples(7), 4, self.rank))
        return list(trainer.outputs["logits"].shape)

    def errors(self):
        """The errors of each rank, and the loss of a step after them, which shows that the ranks can continue."""
        trainer = self.trainer()
        trainer.step(**batch(9))
        state, good = digest(trainer.state_dict()), batch(self.rank)
        nan = {**good, "x": np.full_like(good["x"], np.nan)}
        messages = {}
        for name, call in {
            "a-rank-without-data": lambda: trainer.step(**(good if self.rank == 0 else {})),
            "a-rank-without-rows": lambda: trainer.step(**(batch(0, 0) if self.rank == 0 else good)),
            "a-label": lambda: trainer.step(**{**good, "labels": good["labels"] + 3 * self.rank}),
            "nan-on-rank-1": lambda: trainer.step(**(nan if self.rank == 1 else good)),
            "nan-on-all": lambda: trainer.step(**nan),
            "save": lambda: trainer.save(self.folder / "missing" / "x.safetensors"),
            "save-notes": lambda: trainer.save(self.folder / "x.safetensors", what=object()),
            "load": lambda: trainer.load(self.folder / "missing.safetensors"),
            "finalize": lambda: trainer.finalize(self.folder / "missing" / "x.onnx"),
            "state-of-rank-1": lambda: trainer.load_state_dict(
                trainer.state_dict() if self.rank == 0 else {"a": np.zeros(1)}
            ),
            "another-rate": lambda: self.at_rate(trainer, RATE * (1 + self.rank), good),
            "refused-by-onnxruntime": self.too_long,
            "made-with-another-rate": lambda: self.trainer(learning_rate=RATE * (1 + self.rank)),
            "another-model": lambda: self.trainer(step_of(sync=True, optimizer=("adam", "adamw")[self.rank])),
            "another-implementation": lambda: self.trainer(implementation=("native", "python")[self.rank]),
            "a-wrong-rate-on-rank-1": lambda: self.trainer(learning_rate=(RATE, "a")[self.rank]),
            "not-synchronized": lambda: self.trainer(step_of()),
            "function": lambda: self.trainer(implementation="function"),
            "no-step": lambda: self.trainer(self.folder / "missing.onnx"),
        }.items():
            try:
                call()
                messages[name] = None
            except BngradError as error:
                messages[name] = f"{type(error).__name__}: {error}"
        return {
            "messages": messages,
            "is-unchanged": digest(trainer.state_dict()) == state,
            "losses-after": trainer.step(**good),
        }

    @staticmethod
    def at_rate(trainer, rate, data):
        trainer.learning_rate = rate
        try:
            trainer.step(**data)
        finally:
            trainer.learning_rate = RATE

    def too_long(self):
        trainer = self.trainer(bngrad.training_step(onnx.parser.parse_model(REVERSED), sync=True))
        trainer.step(x=np.ones((2, 3), np.float32), lengths=np.array([1, 2 + 7 * self.rank]))

    @staticmethod
    def without_communicator():
        try:
            bngrad.Trainer(step_of(sync=True), learning_rate=RATE)
        except BngradError as error:
            return str(error)
        return None

    def attached_late(self):
        """A session that was made while the process was a single rank."""
        self.comm.detach()
        size, os.environ["PMI_SIZE"] = os.environ["PMI_SIZE"], "1"
        trainer = bngrad.Trainer(step_of(sync=True), learning_rate=RATE)
        os.environ["PMI_SIZE"] = size
        self.comm.attach()
        try:
            trainer.step(**batch())
        except BngradError as error:
            return f"{type(error).__name__}: {error}"
        return None

    def mpi_communicator(self):
        from mpi4py import MPI

        self.comm.detach()
        trainers = [self.trainer(comm=MPI.COMM_WORLD) for _ in range(2)]
        return [[trainer.ranks.rank, trainer.ranks.size, trainer.step(**batch(self.rank))] for trainer in trainers]


def main():
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())  # as the command line has it
    cases = Cases(Communicator(timeout=60), Path(sys.argv[1]))
    results = {name: cases.train(name) for name in OPTIMIZERS}
    for name in (
        "python_implementation",
        "resumed",
        "finalized",
        "outputs",
        "errors",
        "without_communicator",
        "attached_late",
        "mpi_communicator",
    ):
        results[name] = getattr(cases, name)()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
