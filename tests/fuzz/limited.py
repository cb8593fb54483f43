"""Runs commands within limits, each in a fork of this process, which has imported everything before.

Each line on stdin is a command as JSON: its folder, arguments, and limits on processor time and address space. The
answer is a line with its exit code, or the negative signal that ended it, stdout and stderr.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fuzz.judge import CommandResult, run_in_process


def run_within(folder: str, arguments: list[str], seconds: int, megabytes: int) -> CommandResult:
    """Runs a command in a fork; without an output if a signal ends it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.chdir(folder)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
            resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
            with os.fdopen(writing, "w") as pipe:
                json.dump(run_in_process(arguments), pipe)
        finally:
            os._exit(0)  # the fork must not continue with its parent's code
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return CommandResult(*json.loads(answer)) if answer else CommandResult(status, "", "")


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run_within(*json.loads(line))), flush=True)
