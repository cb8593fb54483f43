"""Runs a campaign of three models for every injected fault, and prints {fault: [[index, finding], ...]} as JSON.

It is a separate program because a campaign forks.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import onnx

from bngrad.cli import _fail, run
from bngrad.cli.error_message import error_message
from fuzz import campaign, judge
from fuzz.cases import MODEL, OUTPUT, Case

TEXT = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[3] dy, float[3] y) => (float[3] dx) { dx = com.microsoft.ReluGrad(dy, y) }"""
COMMANDS = (("inspect", MODEL), ("rewrite", MODEL, "-o", OUTPUT))


def _print_error(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)


def raises(_arguments):
    raise SystemError("injected")


def internal(_arguments):
    return _fail(error_message(KeyError("injected")))


def another_exit_code(_arguments):
    return 3


def two_lines(_arguments):
    _print_error("bngrad: error: one", "two")
    return 2


def prints_to_stderr(arguments):
    _print_error("a warning")
    return run(arguments)


def writes_and_fails(_arguments):
    Path(OUTPUT).touch()
    _print_error("bngrad: error: x")
    return 2


def writes_nothing(_arguments):
    return 0


def leaves_a_file(arguments):
    Path(".out.onnx.tmp").touch()
    return run(arguments)


def changes_the_input(arguments):
    Path(MODEL).write_bytes(Path(MODEL).read_bytes() + b"x")
    return run(arguments) and 2


def writes_no_model(_arguments):
    Path(OUTPUT).write_text("x")
    return 0


def writes_a_model_that_does_not_load(_arguments):
    Path(OUTPUT).write_bytes(onnx.parser.parse_model(TEXT).SerializeToString())
    return 0


def crashes(_arguments):
    os.kill(os.getpid(), 11)


def never_ends(_arguments):
    while True:
        pass


def waits(_arguments):
    time.sleep(3600)


def fills_memory(_arguments):
    try:
        return len(bytearray(1 << 34))
    except MemoryError as error:
        return _fail(error_message(error))


FAULTS = {
    raises: "exit code other than 0, 1 or 2",
    internal: "internal error",
    another_exit_code: "exit code other than 0, 1 or 2",
    two_lines: "not one line on stderr",
    prints_to_stderr: "unexpected text on stderr",
    writes_and_fails: "output written with exit code 2",
    writes_nothing: "no output with exit code 0",
    leaves_a_file: "files changed or left over",
    changes_the_input: "files changed or left over",
    writes_no_model: "invalid output",
    writes_a_model_that_does_not_load: "invalid output",
    crashes: "worker died",
    never_ends: "worker died",
    waits: "worker died",
    fills_memory: "out of memory",
}
"""Replacements of `rewrite`, with the expected finding."""


def found(fault) -> list[list[object]]:
    """Returns the indices of cases with findings, and the findings; only the second case has the fault."""

    def make(_campaign, index):
        text = TEXT.replace("[3]", "[7]") if index == 1 else TEXT
        content = onnx.parser.parse_model(text).SerializeToString()
        return Case("injected", content, b"", COMMANDS, output_exists=False)

    def run_or_fail(arguments):
        (dim,) = onnx.load(MODEL).graph.input[0].type.tensor_type.shape.dim
        faulty = arguments[0] == "rewrite" and dim.dim_value == 7
        return fault(arguments) if fault is not None and faulty else run(arguments)

    campaign.make, judge.run = make, run_or_fail
    return [
        [index, finding.what] for index, findings, _ in campaign.run_cases(1, range(3)) for finding in findings
    ]


def main() -> None:
    """Prints the findings of every fault, and those without a fault."""
    campaign.SECONDS, campaign.POLL_SECONDS = 1, 1
    gc.freeze()  # the workers, which collect garbage first, find nothing to scan
    results = {"none": found(None)}
    for fault in FAULTS:
        campaign.TIMEOUT = 3 if fault is waits else 120
        results[fault.__name__] = found(fault)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
