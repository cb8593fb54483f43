"""The worker's process: starts it, gives it jobs, and reports how it ends.

ORT can crash the whole process (SIGSEGV on malformed models). A crash becomes an `OracleError` that names the job
and has the last lines that the worker wrote to stderr.
"""

from __future__ import annotations

import contextlib
import json
import queue
import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bngrad.errors import OracleError

if TYPE_CHECKING:
    from types import TracebackType

_WORKER = Path(__file__).with_name("worker.py")
_START_SECONDS = 120
_STOP_SECONDS = 5
_TAIL_LINES = 3
_WINDOWS_ERRORS = 0xC0000000
"""Exit codes from here on are what ended a process on Windows: 0xC0000005 is an access violation."""
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

Job = Mapping[str, Any]


class WorkerStartError(OracleError):
    """The worker does not start: the environment is broken, though its files are complete."""


class Worker:
    """A running worker, and a context manager that ends it. Not for several threads at once.

    Args:
        python: The interpreter of the oracle's environment.
        scratch: An existing folder for models and arrays; the worker removes it when the client is gone.

    Raises:
        WorkerStartError: It did not start.
    """

    def __init__(self, python: Path, scratch: Path) -> None:
        self._stderr = scratch / "stderr.txt"
        try:
            with self._stderr.open("ab") as stderr:
                self._process = subprocess.Popen(
                    # -I: no PYTHON* variables, no packages of the user, no folder of the script on the path.
                    # -B: no bytecode is written beside the script.
                    [python, "-I", "-B", "-X", "utf8", _WORKER, scratch],
                    cwd=scratch,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    encoding="ascii",
                    # Ctrl-C is for the client, which ends the worker itself. The second is for Windows.
                    start_new_session=True,
                    creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
                )
        except OSError as error:
            raise WorkerStartError(
                f"the oracle's Python {python} does not start: {error.strerror or error}"
            ) from error
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self.ask({"job": "hello"}, "starting", _START_SECONDS)
        except OracleError as error:
            self.kill()
            raise WorkerStartError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()

    @property
    def alive(self) -> bool:
        """True if the process is running."""
        return self._process.poll() is None

    def ask(self, job: Job, what: str, timeout: float | None) -> dict[str, Any]:
        """Has a job done, and returns the answer.

        Args:
            job: A job as `worker` documents it.
            what: The job in words, for messages: "running the training graph".
            timeout: Seconds; None for no limit.

        Raises:
            OracleError: The job failed, took too long, or crashed the worker; the worker has ended in the last two
                cases.
        """
        try:
            with contextlib.suppress(OSError):  # it has ended: reading reports that, and more
                stdin = self._process.stdin
                if stdin is not None:
                    stdin.write(json.dumps(job) + "\n")
                    stdin.flush()
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.kill()
            raise OracleError(f"{what} took the oracle longer than {timeout:g} s, and was stopped") from None
        except BaseException:  # Ctrl-C: an answer that comes later must not be taken for the next job's
            self.kill()
            raise
        if not line:
            end = self._end()
            self.kill()
            raise OracleError(f"the oracle's worker {end} while {what}{self._tail()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise OracleError(f"{what} failed in the oracle: {answer['error']}")
        return answer

    def stop(self) -> None:
        """Ends the process; kills it if it does not end by itself."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _read(self) -> None:
        """Moves answers into a queue, which unlike a pipe can be read with a timeout; "" is the end."""
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout or ():
                self._answers.put(line)
        self._answers.put("")

    def _end(self) -> str:
        """Describes how the process ended."""
        try:
            code = self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its output"
        if code >= _WINDOWS_ERRORS:
            return f"crashed with status 0x{code:X}"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"was ended by signal {-code}"

    def _tail(self) -> str:
        """The last lines that the worker wrote to stderr, as the end of a message."""
        try:
            lines = self._stderr.read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        said = [line for line in (_COLOUR.sub("", line).strip() for line in lines) if line][-_TAIL_LINES:]
        return f"; it said: {' | '.join(said)}" if said else ""
