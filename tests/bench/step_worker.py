"""Runs one training step at a time, when told; `bench_step.py` has several of these at once and takes turns.

Needs NumPy and ONNX Runtime only, so that it runs in the oracle's environment too. A line on stdin is a step, and
its answer the seconds; the end of stdin is answered with the peak of the process's memory in MB.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("feeds", help="an .npz file")
    parser.add_argument("--library", help="registered, if given")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--as-bngrad", action="store_true", help="the options of `bngrad.session`")
    options = parser.parse_args()
    session_options = onnxruntime.SessionOptions()
    session_options.intra_op_num_threads = options.threads
    session_options.enable_mem_pattern = session_options.enable_mem_reuse = not options.as_bngrad
    session_options.log_severity_level = 3
    if options.library:
        session_options.register_custom_ops_library(options.library)
    session = onnxruntime.InferenceSession(options.model, session_options, providers=["CPUExecutionProvider"])
    feeds = dict(np.load(options.feeds, allow_pickle=False))
    serve(lambda: session.run(None, feeds))


def serve(step) -> None:
    """Steps once, reports it, and then answers every line."""
    step()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)
    print(peak_megabytes(), flush=True)


def peak_megabytes() -> float:
    """The high-water mark of this program's memory; getrusage's begins with that of the process before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this system does not report the peak of a process's memory")


if __name__ == "__main__":
    main()
