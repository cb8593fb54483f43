"""Runs a campaign of three models for every planted fault, and prints what it finds as JSON: {fault: [what, ...]}.

A program of its own, for a campaign forks.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import onnx

from bngrad.cli import _fail, _message, run
from fuzz import campaign, judge
from fuzz.cases import MODEL, OUTPUT, Case

TEXT = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[3] dy, float[3] y) => (float[3] dx) { dx = com.microsoft.ReluGrad(dy, y) }"""
COMMANDS = (("inspect", MODEL), ("rewrite", MODEL, "-o", OUTPUT))


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)


def raises(_arguments):
    raise SystemError("planted")


def internal(_arguments):
    return _fail(_message(KeyError("planted")))


def another_exit_code(_arguments):
    return 3


def two_lines(_arguments):
    _say("bngrad: error: one", "two")
    return 2


def noise(arguments):
    _say("a warning")
    return run(arguments)


def writes_and_fails(_arguments):
    Path(OUTPUT).touch()
    _say("bngrad: error: x")
    return 2


def writes_nothing(_arguments):
    return 0


def leaves_a_file(arguments):
    Path(".out.onnx.tmp").touch()
    return run(arguments)


def changes_the_input(arguments):
    Path(MODEL).write_bytes(Path(MODEL).read_bytes() + b"x")
    return run(arguments) and 2


def a_bad_output(_arguments):
    Path(OUTPUT).write_text("x")
    return 0


def an_output_that_does_not_load(_arguments):
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
        return _fail(_message(error))


FAULTS = {
    raises: "not exit 0, 1 or 2",
    internal: "an internal error",
    another_exit_code: "not exit 0, 1 or 2",
    two_lines: "not one line",
    noise: "noise",
    writes_and_fails: "written with exit 2",
    writes_nothing: "nothing written with exit 0",
    leaves_a_file: "files changed or left over",
    changes_the_input: "files changed or left over",
    a_bad_output: "a bad output",
    an_output_that_does_not_load: "a bad output",
    crashes: "a worker's end",
    never_ends: "a worker's end",
    waits: "a worker's end",
    fills_memory: "out of memory",
}
"""What goes wrong in `rewrite`, and what it is called."""


def found(fault) -> list[list[object]]:
    """The cases in which something is found, and what; the second case has the fault."""

    def make(_campaign, index):
        text = TEXT.replace("[3]", "[7]") if index == 1 else TEXT
        content = onnx.parser.parse_model(text).SerializeToString()
        return Case("planted", content, b"", COMMANDS, output_exists=False)

    def run_or_fail(arguments):
        (dim,) = onnx.load(MODEL).graph.input[0].type.tensor_type.shape.dim
        bad = arguments[0] == "rewrite" and dim.dim_value == 7
        return fault(arguments) if fault is not None and bad else run(arguments)

    campaign.make, judge.run = make, run_or_fail
    return [[index, find.what] for index, finds, _ in campaign.run_cases(1, range(3)) for find in finds]


def main() -> None:
    """Prints what every fault gives, and what none does."""
    campaign.SECONDS, campaign.SLICE = 2, 1
    results = {"none": found(None)}
    for fault in FAULTS:
        campaign.SILENCE = 10 if fault is waits else 120
        results[fault.__name__] = found(fault)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
