"""Runs the mutation tests: makes every mutant in a copy, and checks that a test fails.

At the end, the tests that failed run again on a copy without a mutant, where they must pass. The exit code is 0 if
every mutant was killed and no equivalent one was, 1 if not, and 2 if a test fails without a mutant.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1] / "ops"), str(Path(__file__).parents[1])]

from metamorphic.driver_mutants import DRIVER_MUTANTS
from metamorphic.kernel_mutants import KERNEL_MUTANTS
from metamorphic.mutant_builds import Builds
from metamorphic.mutant_process import PASSED, run_tests
from metamorphic.mutants import KERNEL_TESTS, ROOT, isa_of, units_of
from metamorphic.pass_mutants import PASS_MUTANTS
from metamorphic.rule_mutants import RULE_MUTANTS
from metamorphic.window_mutants import WINDOW_MUTANTS

OPS, MODELS = "tests/metamorphic/test_op_relations.py", "tests/metamorphic/test_model_relations.py"
MUTANTS = [*KERNEL_MUTANTS, *DRIVER_MUTANTS, *WINDOW_MUTANTS, *RULE_MUTANTS, *PASS_MUTANTS]
ARRAYS = ("bngrad/runtime/kernel_call.py", "bngrad/opset/functions.py", "bngrad/opset/reduced_count.py")
"""The files of the package that the relations of single ops test."""


class Result(NamedTuple):
    """The result of a mutant."""

    mutant: object
    killer: str
    """The test that failed; empty if none did."""
    error: str = ""
    """The reason why the mutant could not be tested."""

    @property
    def as_expected(self):
        """True if the mutant was killed, or is equivalent and survived."""
        return not self.error and bool(self.killer) != bool(self.mutant.equivalent)

    @property
    def verdict(self):
        if self.error:
            return f"ERROR: {self.error}"
        if self.mutant.equivalent:
            return f"NOT EQUIVALENT: {self.killer}" if self.killer else f"equivalent: {self.mutant.equivalent}"
        return self.killer or "SURVIVED"


def tests_for(mutant):
    """Returns the groups of tests for a mutant: (tests, pytest's -k), in the order in which they run."""
    if mutant.file.startswith("ops/"):
        own, isa = [OPS], isa_of(mutant)
    else:
        own, isa = ([OPS, MODELS] if mutant.file in ARRAYS else [MODELS]), ""
    groups = [((test,), "") for test in own]
    # The kernel tests cover every instruction set; only one is mutated.
    kernels = tuple(test for test in mutant.other_tests if test.startswith(KERNEL_TESTS))
    others = tuple(test for test in mutant.other_tests if test not in kernels)
    # The tests named "instruction_set" compare other instruction sets with that of the process.
    return groups + [(tests, k) for tests, k in ((kernels, f"{isa} or instruction_set"), (others, "")) if tests]


class Campaign:
    """Tests mutants one after the other."""

    def __init__(self, folder, *, kernels):
        # Not at the top: the test processes import this module before they import the package from its copy.
        from bngrad.runtime import native_library

        self._isas = native_library.isas()
        self._package = folder / "package"
        shutil.copytree(
            ROOT / "bngrad", self._package / "bngrad", ignore=shutil.ignore_patterns("__pycache__", "lib")
        )
        self._builds = Builds(folder) if kernels else None
        self._library = self._builds.library if kernels else native_library.library_path()

    def check(self, results):
        """Returns the tests that killed a mutant and fail without a mutant, too."""
        killers = {}
        for result in results:
            isa = isa_of(result.mutant) if result.mutant.file.startswith("ops/") else ""
            if "::" in result.killer:
                killers.setdefault(isa, set()).add(result.killer)
        outcomes = {
            isa: run_tests(sorted(tests), self._package, self._environment(self._library, isa))
            for isa, tests in killers.items()
        }
        return [f"{outcome.first}: {outcome.code}" for outcome in outcomes.values() if outcome.code != PASSED]

    def run(self, mutant):
        """Makes a mutant and runs tests until one fails."""
        if mutant.file.startswith("ops/"):
            if not self._isas[isa_of(mutant)]:
                return Result(mutant, "", f"this machine has no {isa_of(mutant)}")
            try:
                library = self._builds.mutated(mutant, units_of(mutant))
            except AssertionError as error:
                return Result(mutant, "", " ".join(str(error).split())[:200])
            return self._run_tests(mutant, self._environment(library, isa_of(mutant)))
        path = self._package / mutant.file
        original = path.read_text(encoding="utf-8")
        path.write_text(mutant.text(), encoding="utf-8")
        try:
            return self._run_tests(mutant, self._environment(self._library, ""))
        finally:
            path.write_text(original, encoding="utf-8")

    def _run_tests(self, mutant, environment):
        error = ""
        for tests, select in tests_for(mutant):
            outcome = run_tests(tests, self._package, environment, select=select)
            if outcome.killed:
                return Result(mutant, outcome.first)
            # The kernel tests, which come later, survive a crash: the kernels run in a process of their own there.
            if outcome.code != PASSED and not error:
                how = f"pytest exited with {outcome.code}" if outcome.code is not None else outcome.first
                error = f"{how} on {' '.join(tests)}, and no test failed"
        return Result(mutant, "", error)

    @staticmethod
    def _environment(library, isa):
        return {"BNGRAD_LIBRARY": str(library)} | ({"BNGRAD_ISA": isa} if isa else {})


def table(results):
    """Returns the results as a table in Markdown."""
    rows = ["| line | mutated to | description | killed by |", "|---|---|---|---|"]
    for result in results:
        mutant = result.mutant
        new = mutant.new.replace("|", "\\|") or "(nothing)"
        rows.append(f"| {mutant.file}:{mutant.line} | `{new}` | {mutant.description} | {result.verdict} |")
    return "\n".join(rows) + "\n"


def key(mutant):
    """Returns the key of a mutant in a log."""
    return [mutant.file, mutant.old, mutant.new]


def read_log(log, mutants):
    """Returns the results in a log, which apply to the sources that they were made with."""
    lines = log.read_text(encoding="utf-8").splitlines() if log and log.is_file() else []
    outcomes = {json.dumps(mutant): outcome for mutant, *outcome in map(json.loads, lines)}
    return [Result(m, *outcomes[json.dumps(key(m))]) for m in mutants if json.dumps(key(m)) in outcomes]


def main():
    """Runs the campaign."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run only mutants with this text in their file or description")
    parser.add_argument("--table", type=Path, help="write the results to this file in Markdown")
    parser.add_argument(
        "--log", type=Path, help="skip the mutants in this file of results, and append new results"
    )
    arguments = parser.parse_args()
    mutants = [m for m in MUTANTS if arguments.only in f"{m.file} {m.description}"]
    results, begin = read_log(arguments.log, mutants), time.monotonic()
    tested = [result.mutant for result in results]
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), kernels=any(m.file.startswith("ops/") for m in mutants))
        for mutant in (mutant for mutant in mutants if mutant not in tested):
            result = campaign.run(mutant)
            results.append(result)
            if arguments.log:
                with arguments.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps([key(mutant), result.killer, result.error]) + "\n")
            print(f"{len(results)}/{len(mutants)} {mutant}\n    {results[-1].verdict}", flush=True)
        failures = campaign.check(results)
    if arguments.table:
        arguments.table.write_text(table(results), encoding="utf-8")
    to_kill = [r for r in results if not r.mutant.equivalent]
    killed = sum(bool(r.killer) and not r.error for r in to_kill)
    by_relations = sum("tests/metamorphic" in r.killer for r in to_kill)
    print(
        f"{killed} of {len(to_kill)} mutants were killed, {by_relations} of them by relations; "
        f"{len(results) - len(to_kill)} are equivalent; {time.monotonic() - begin:.0f} s"
    )
    for result in results:
        if not result.as_expected:
            print(f"{result.mutant.file}:{result.mutant.line} {result.mutant}: {result.verdict}")
    print("\n".join(f"fails without a mutant: {failure}" for failure in failures), end="")
    return 2 if failures else 0 if all(result.as_expected for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
