"""A run on ranks without collectives in the graph, whose states differ: it ends before a checkpoint is written."""

from __future__ import annotations

import bngrad
from bngrad.errors import DistributedError
from bngrad.training.checkpoints import Checkpoints, Position
from bngrad.training.dataset import Dataset
from bngrad.training.fit import Fit, Plan, Reports
from bngrad.training.ranks import Ranks
from bngrad.training.run_log import RunLog
from thread_ranks import on_threads
from trainer_cases import samples, step_of


def test_states_that_differ_are_refused(tmp_path):
    step, file = step_of(), tmp_path / "c.safetensors"

    def function(comm):
        trainer = bngrad.Trainer(step, learning_rate=0.1, threads=1)
        trainer.ranks = Ranks(comm)
        data = Dataset(samples(24), step.info.data)
        checkpoints = Checkpoints(file, step.info, {})
        return Fit(trainer, Plan(1, 8), data, None, checkpoints, Position()).run(Reports(RunLog(None)))

    errors = on_threads(2, function)
    assert {type(error) for error in errors} == {DistributedError}
    (message,) = {str(error) for error in errors}
    assert message.startswith("ranks 0 and 1 do not match: the hash of the state is ")
    assert message.endswith("; expected the same kind of processor on all ranks")
    assert not file.exists()
