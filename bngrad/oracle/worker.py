"""The oracle's worker: runs in the environment of ONNX Runtime's training build and does jobs for bngrad.

Started as `python -I worker.py SCRATCH`. Jobs come as one line of JSON each on stdin, answers go the same way on
stdout: {"error": "one line"}, or the answer in the table. Models and arrays are files in SCRATCH.
Imports only NumPy and onnxruntime: bngrad is not installed here.

| job      | takes                                              | answers                                        |
|----------|----------------------------------------------------|------------------------------------------------|
| hello    |                                                    | versions                                       |
| gradient | model, loss, wrt, into (a file)                    | gradients: name in wrt -> output of the graph  |
| run      | session, feeds, outputs (null: all), into (folder) | files: output name -> .npy in the folder       |
| close    | model                                              | drops the sessions of this model               |

A session is {model, patch, library, threads, optimize, keep}. `patch` is a file whose bytes are appended to the
model's: protobuf merges concatenated messages, so it adds nodes and outputs without parsing a model of 100 MB.
"""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi._pybind_state import GradientGraphBuilder, get_optimized_model

Job = dict[str, Any]
_ERROR = 3  # ORT's log severity

_sessions: dict[str, ort.InferenceSession] = {}


def hello(_: Job) -> Job:
    """Return the versions of this environment."""
    return {"onnxruntime": ort.__version__, "numpy": np.__version__, "python": sys.version.split()[0]}


def gradient(job: Job) -> Job:
    """Build the training graph of a forward model, and name its gradients."""
    wrt = set(job["wrt"])
    options = ort.SessionOptions()
    options.log_severity_level = _ERROR
    # The first call turns BatchNormalization into BatchNormInternal, which is the one that has a gradient.
    optimized = get_optimized_model(Path(job["model"]).read_bytes(), wrt, options)
    builder = GradientGraphBuilder(optimized, {job["loss"]}, wrt, job["loss"], options)
    builder.build()
    Path(job["into"]).write_bytes(builder.get_model())
    return {"gradients": {name: f"{name}_grad" for name in job["wrt"]}}  # as the builder names its outputs


def run(job: Job) -> Job:
    """Run a model once, and write its outputs."""
    session = _session(job["session"])
    # Loaded anew every time: ORT writes new running statistics over the arrays that it was fed.
    feeds = {name: np.load(path, allow_pickle=False) for name, path in job["feeds"].items()}
    names = job["outputs"]
    if names is None:
        names = [output.name for output in session.get_outputs()]
    files = {}
    for index, (name, value) in enumerate(zip(names, session.run(names, feeds), strict=True)):
        if not isinstance(value, np.ndarray):
            raise TypeError(f"output {name} is a {type(value).__name__}; expected a tensor")
        files[name] = str(Path(job["into"]) / f"{index}.npy")
        np.save(files[name], value, allow_pickle=False)
    return {"files": files}


def close(job: Job) -> Job:
    """Drop the sessions of a model."""
    for spec in [spec for spec in _sessions if json.loads(spec)["model"] == job["model"]]:
        del _sessions[spec]
    return {}


def _session(spec: Job) -> ort.InferenceSession:
    """The session for a specification; kept for the next job if that asks for it."""
    name = json.dumps(spec, sort_keys=True)
    if name in _sessions:
        return _sessions[name]
    options = ort.SessionOptions()
    options.log_severity_level = _ERROR
    options.intra_op_num_threads = spec["threads"]
    options.use_deterministic_compute = True
    options.enable_mem_pattern = False  # costs up to twice the memory on training graphs
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if spec["optimize"] else level.ORT_DISABLE_ALL
    if spec["library"] is not None:
        options.register_custom_ops_library(spec["library"])
    model = Path(spec["model"]).read_bytes()
    if spec["patch"] is not None:
        model += Path(spec["patch"]).read_bytes()
    # bngrad.runtime.device, which has the execution providers, cannot be imported here.
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    if spec["keep"]:
        _sessions[name] = session
    return session


_JOBS = {function.__name__: function for function in (hello, gradient, run, close)}


def _answer(line: str) -> Job:
    """Do one job; an error becomes the answer, and the worker goes on."""
    try:
        job = json.loads(line)
        return _JOBS[job["job"]](job)
    except Exception as error:  # noqa: BLE001 - ORT raises many kinds
        return {"error": _essence(str(error)) or type(error).__name__}


def _essence(message: str) -> str:
    """The message of an ORT error in one line, without the C++ file, line and function signature before it."""
    message = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", " ".join(message.split()))
    while match := re.search(r"\S*onnxruntime\S*\.(?:cc|h|cpp):\d+ ", message):
        end, depth, closed = match.end(), 0, False
        # The signature ends at the first space after, and outside of, its parentheses.
        while end < len(message) and not (closed and depth == 0 and message[end] == " "):
            depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(message[end], 0)
            closed = closed or message[end] == ")"
            end += 1
        if end == len(message):  # no signature there
            end = match.end()
        message = message[: match.start()] + message[end:].strip().removeprefix("const ")
    return message.strip()


def _serve(jobs: queue.SimpleQueue[str]) -> None:
    """Do jobs and answer them, until the process ends."""
    # ORT and NumPy may print to file descriptor 1, so the answers get one of their own.
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    while True:
        channel.write(json.dumps(_answer(jobs.get())) + "\n")
        channel.flush()


def main() -> None:
    """Serve until stdin ends, as it does when the client is killed; then end any job, and remove the files."""
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(jobs,), daemon=True).start()
    for line in sys.stdin:
        jobs.put(line)
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
