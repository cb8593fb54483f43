"""Runs tests on a copy of the package, in a process forked after all other imports."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from metamorphic.mutants import ROOT

PRELOADED = [
    "numpy",
    "onnx",
    "onnx.reference",
    "onnx_ir",
    "onnx_ir.passes.common",
    "onnxruntime",
    "onnxscript",
    "pytest",
]
PRELOADED += ["ml_dtypes"]
"""Modules that take most of the time of a short test to import; none of them imports the package."""

PASSED, FAILED = 0, 1
"""The exit codes of pytest that are results of tests."""

TIMEOUT, CPU_SECONDS = 3600, 600
"""Limits for tests that wait forever and for tests that compute forever."""


class Outcome(NamedTuple):
    """The result of a test run."""

    code: int | None
    """pytest's exit code; None if the process died."""
    first: str
    """The first test that failed, or how the process died."""

    @property
    def killed(self):
        """True if a test failed; a process that dies detects nothing, because it may do so without the mutant."""
        return self.code == FAILED and bool(self.first)


class _FirstFailure:
    """A pytest plugin that records the first failed test; a failed teardown is not evidence about the mutant."""

    def __init__(self):
        self.name = ""

    def pytest_runtest_logreport(self, report):
        if report.failed and report.when != "teardown" and not self.name:
            self.name = report.nodeid


def run_tests(tests, package, environment, *, select=""):
    """Runs tests until one fails.

    Args:
        tests: Arguments of pytest, relative to the project's folder.
        package: The folder with the copy of bngrad/.
        environment: Variables to set; must contain ``BNGRAD_LIBRARY`` because a copy has no library.
        select: pytest's -k.

    Returns:
        The `Outcome`.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, tests, str(package), environment, select))
    process.start()
    sender.close()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
        return Outcome(None, f"timeout after {TIMEOUT} s")
    try:
        return Outcome(*receiver.recv())
    except EOFError:
        return Outcome(None, f"the process exited with {process.exitcode}")


def _run(sender, tests, package, environment, select):
    try:
        sender.send(_run_pytest(tests, package, environment, select))
    except BaseException as error:  # noqa: BLE001 - any error outside of pytest is reported as such
        sender.send((-1, f"{type(error).__name__}: {error}"))


def _run_pytest(tests, package, environment, select):
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True  # a stale .pyc would be used for a file of the same size and second
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until the process exits
    # The finders of an editable install precede sys.path.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in type(finder).__name__]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path.insert(0, package)
    import bngrad

    assert Path(bngrad.__file__).is_relative_to(package), bngrad.__file__
    import pytest

    import processor_time

    processor_time.LIMIT = float("inf")  # a mutant that makes a test slow is not detected
    first = _FirstFailure()
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    code = pytest.main([*arguments, *(["-k", select] if select else []), *tests], plugins=[first])
    return int(code), first.name
