"""Run on each rank of a job: commands of ``bngrad train``, one after the other in this process.

Usage: train_ranks.py CASES.json

Each case has the ``arguments`` and a ``folder``, in both of which ``{rank}`` is the rank, and optionally a
``signal`` as ``[rank, call]``: that rank gets Ctrl-C before that call of `Trainer.step`. Prints the exit code,
stdout and stderr of each, as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import sys
from pathlib import Path

from bngrad.cli import run
from bngrad.training.trainer import Trainer
from tests.waiting_threads import let_threads_sleep

STEP = Trainer.step


def with_signal(rank, call):
    """`Trainer.step`, with a signal on a rank."""

    def step(trainer, /, **data):
        if [trainer.ranks.rank, trainer.calls] == [rank, call]:
            os.kill(os.getpid(), signal.SIGINT)
        return STEP(trainer, **data)

    return step


def main():
    let_threads_sleep()
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    results = {}
    for name, case in json.loads(Path(sys.argv[1]).read_text()).items():
        Trainer.step = with_signal(*case["signal"]) if "signal" in case else STEP
        folder = contextlib.chdir(case["folder"].format(rank=rank))
        output, error = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
        with folder, output as out, error as err:
            code = run([word.format(rank=rank) for word in case["arguments"]])
        results[name] = code, out.getvalue(), err.getvalue()
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main()
