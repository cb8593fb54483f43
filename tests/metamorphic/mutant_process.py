"""Tests on a copy of the package, in a process that has everything but the package loaded already."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from pathlib import Path
from typing import NamedTuple

from metamorphic.mutants import ROOT

LOADED = [
    "numpy",
    "onnx",
    "onnx.reference",
    "onnx_ir",
    "onnx_ir.passes.common",
    "onnxruntime",
    "onnxscript",
    "pytest",
]
LOADED += ["ml_dtypes"]
"""What takes most of the time of a test that is over in a second. Nothing of it loads the package."""

PASSED, FAILED, NOTHING = 0, 1, 5
"""pytest's exit codes, which are the only ones that say something of a mistake."""

TIMEOUT, CPU_SECONDS = 3600, 600
"""The one ends tests that wait for ever, the other those that compute for ever, however busy the machine is."""


class Outcome(NamedTuple):
    """How tests went."""

    code: int | None
    """pytest's exit code; None if the process ended or was ended without one."""
    first: str
    """The first test that failed, or how the process ended."""

    @property
    def killed(self):
        """Whether a test has seen the mistake; one that ends the process, or never ends, has been seen."""
        return self.code in (FAILED, None)


class _First:
    """A plugin that notes which test fails first."""

    def __init__(self):
        self.name = ""

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.name:
            self.name = report.nodeid


def run_tests(tests, package, environment, *, select=""):
    """Runs tests until one fails.

    Args:
        tests: As pytest takes them, below the project's folder.
        package: The folder that has the copy of bngrad/.
        environment: Variables to set; ``BNGRAD_LIBRARY`` must be among them, for a copy has no library.
        select: pytest's -k.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, tests, str(package), environment, select))
    process.start()
    sender.close()
    process.join(TIMEOUT)
    if process.is_alive():
        process.kill()
        process.join()
        return Outcome(None, f"no end in {TIMEOUT} s")
    try:
        return Outcome(*receiver.recv())
    except EOFError:
        return Outcome(None, f"the process ended with {process.exitcode}")


def _run(sender, tests, package, environment, select):
    try:
        sender.send(_tested(tests, package, environment, select))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is not what a test says
        sender.send((-1, f"{type(error).__name__}: {error}"))


def _tested(tests, package, environment, select):
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.dont_write_bytecode = True  # a mistake of the same size and second would be taken for the one before
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the process
    # An editable install finds the package where it was installed from, before any path.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "Editable" not in type(finder).__name__]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
    sys.path.insert(0, package)
    import bngrad

    assert Path(bngrad.__file__).is_relative_to(package), bngrad.__file__
    import pytest

    first = _First()
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    code = pytest.main([*arguments, *(["-k", select] if select else []), *tests], plugins=[first])
    return int(code), first.name
