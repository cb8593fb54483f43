"""Runs a command repeatedly, and sends it a signal at one line of the code that writes its output after the other.

    python writing_steps.py FOLDER SIGNAL FIRST STRIDE ARGUMENT...

FOLDER contains the folders `source`, `old` (the initial content of the output folder) and `work` (the current
folder of the command). The program prints one line of JSON for each step: the exit code of the command, the files
that it left, and the result of the next run. Each step is a fork of a process that has imported everything, so it
takes only milliseconds.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import onnx

from bngrad import cli
from bngrad.io import external_data, files, writing
from bngrad.opset.ort_dialect import stock_ops
from bngrad.passes import pipeline

WRITERS = {
    external_data.__file__: None,
    files.__file__: {files.save.__name__, files._arrange.__name__, files._write_data.__name__},
    writing.__file__: {writing.replacing.__name__},
}
"""The functions that write, by file; None for all of a file."""


class Steps:
    """A trace function that counts lines of the writing code and sends this process a signal at one of them."""

    def __init__(self, at: int, number: int) -> None:
        self.left, self.number = at, number

    def __call__(self, frame, event, _argument):
        code = frame.f_code
        names = WRITERS.get(code.co_filename, ())
        if names is not None and code.co_name not in names:
            return None
        if event == "line":
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                frame.f_trace = None
                os.kill(os.getpid(), self.number)
                return None
        return self


def fork(arguments, steps=None):
    """Returns the exit code and stderr of a command; the code is -signal, or 99 if it ended before its step."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.settrace(steps)
        code = cli.run(list(arguments))
        sys.settrace(None)
        if steps is not None and steps.left >= 0:
            code = 99  # the command ended before its step
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as stream:
        errors = stream.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), errors


def state():
    """Returns the graph name and the weights of the output model, and the files in the folder."""
    output = None
    if Path("out.onnx").exists():
        model = onnx.load("out.onnx")
        values = {
            v for t in model.graph.initializer if t.name == "s" for v in onnx.numpy_helper.to_array(t).tolist()
        }
        output = [model.graph.name, *sorted(values)]
    return {"out": output, "files": sorted(path.name for path in Path().iterdir())}


def main() -> None:
    folder, number, first, stride, *arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert pipeline
    stock_ops()  # imports ONNX Runtime once for all steps
    os.chdir(folder)
    for at in range(int(first), 100_000, int(stride)):
        shutil.rmtree("work", ignore_errors=True)
        shutil.copytree("old", "work")
        os.chdir("work")
        code, errors = fork(arguments, Steps(at, int(number)))
        if code == 99:
            break
        report = {"step": at, "code": code, "errors": errors, **state()}
        report["next"] = [*fork(arguments), state()]
        sys.stdout.write(json.dumps(report) + "\n")
        os.chdir("..")


if __name__ == "__main__":
    main()
