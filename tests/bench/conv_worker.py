"""Times a model when told; `bench_conv_grad.py` has two of these, and takes turns.

Needs NumPy and ONNX Runtime only, so that it runs in the oracle's environment too. A line on stdin is a job, and
its answer the least time of a run in ms. A session lives for one job: threads of an idle one may still spin.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import onnxruntime

MINIMUM = 4


def main() -> None:
    for line in sys.stdin:
        print(measure(json.loads(line)), flush=True)


def measure(job: dict) -> float:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    rng = np.random.default_rng(0)
    keep = []  # bound memory must outlive the binding
    for value in session.get_inputs():
        array = rng.standard_normal(job["shapes"][value.name], dtype=np.float32)
        keep.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))
        binding.bind_ortvalue_input(value.name, keep[-1])
    for value in session.get_outputs():
        # The name states which input it is the gradient of.
        array = np.zeros(job["shapes"][value.name[1:]], np.float32)
        keep.append(onnxruntime.OrtValue.ortvalue_from_numpy(array))
        binding.bind_ortvalue_output(value.name, keep[-1])
    session.run_with_iobinding(binding)
    times = []
    end = time.perf_counter() + job["seconds"]
    while time.perf_counter() < end or len(times) < MINIMUM:
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


if __name__ == "__main__":
    main()
