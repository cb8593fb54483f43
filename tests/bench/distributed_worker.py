"""Runs training steps as a rank of an MPI job, for `bench_distributed.py`: prints times of steps and of ops.

Times of the ops are from ONNX Runtime's profile. That of a collective operation includes waiting for other ranks.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime

import bngrad


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("step")
    parser.add_argument("data", help="an .npz file with the data of one rank")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=0, help="the number of ranks; 0: without MPI")
    options = parser.parse_args()
    rank = join(options.ranks) if options.ranks else 0
    files = bngrad.read_training_step(options.step)
    feeds = dict(np.load(options.data, allow_pickle=False)) | files.state
    feeds[files.info.learning_rate] = np.array(1e-3, np.float32)
    with tempfile.TemporaryDirectory() as folder:
        session_options = onnxruntime.SessionOptions()
        session_options.intra_op_num_threads = options.threads
        session_options.enable_mem_pattern = False
        session_options.enable_profiling = True
        session_options.profile_file_prefix = str(Path(folder) / "profile")
        bngrad.register(session_options)
        session = onnxruntime.InferenceSession(options.step, session_options, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
        times = []
        for _ in range(options.steps):
            start = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - start)
        ops = seconds_of_ops(json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")))
    if rank == 0:
        print(json.dumps([{"time": time, **ops} for time, ops in zip(times, ops[1:], strict=True)]))


def join(ranks: int) -> int:
    """Connects the ranks, and returns the number of this one."""
    from bngrad.distributed import Communicator

    communicator = Communicator(timeout=120)
    if communicator.size != ranks:
        raise SystemExit(f"there are {communicator.size} ranks; expected {ranks}")
    communicator.attach()
    globals()["kept"] = communicator
    return communicator.rank


def seconds_of_ops(events: list[dict]) -> list[dict[str, float]]:
    """Seconds of the kinds of ops that the domain has, of each run in a profile."""
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    runs: list[dict[str, float]] = [{"collectives": 0.0, "batch norms": 0.0} for _ in starts]
    for event in events:
        if event["name"].endswith("_kernel_time"):
            op = event["args"]["op_name"]
            run = runs[bisect.bisect_right(starts, event["ts"]) - 1]
            if op in ("AllGather", "AllReduce"):
                run["collectives"] += event["dur"] * 1e-6
            elif op.startswith("BatchNormalization"):
                run["batch norms"] += event["dur"] * 1e-6
    return runs


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
