"""Runs the command line with a fault on one rank before a call of `Trainer.step`.

Usage: train_fault.py RANK CALL FAULT ARGUMENT...

FAULT is the name of a signal for the rank, or for the launcher (``launcher:SIGINT``), ``sleep:SECONDS``,
``raise``, or ``full:FILE``: no file can become as large as this one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from bngrad.__main__ import main
from bngrad.training.trainer import Trainer

STEP = Trainer.step


def launcher():
    """The number of the process mpiexec."""
    process = os.getpid()
    while True:
        name, _, rest = Path(f"/proc/{process}/stat").read_text().partition("(")[2].rpartition(")")
        if name.startswith(("mpiexec", "mpirun", "prterun")):
            return process
        process = int(rest.split()[1])


def cause(fault):
    kind, _, value = fault.partition(":")
    if kind == "sleep":
        time.sleep(float(value))
    elif kind == "raise":
        raise KeyError("a bug")
    elif kind == "full":
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = Path(value).stat().st_size - 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    elif kind == "launcher":
        os.kill(launcher(), getattr(signal, value))
    else:
        os.kill(os.getpid(), getattr(signal, kind))


def run(rank, call, fault):
    def step(trainer, /, **data):
        if [trainer.ranks.rank, trainer.calls] == [rank, call]:
            cause(fault)
        return STEP(trainer, **data)

    Trainer.step = step
    main()


if __name__ == "__main__":
    _, rank_, call_, fault_, *sys.argv[1:] = sys.argv
    run(int(rank_), int(call_), fault_)
