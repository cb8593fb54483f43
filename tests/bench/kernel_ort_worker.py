"""ONNX Runtime's training build for `bench_kernels.py`: its own kernel, and ours as an op in the same sessions.

Runs in the oracle's environment, which has NumPy and ONNX Runtime only: the models come as a folder, in which
`kernel_models.py` wrote them under names that state their contents. Inputs and outputs are bound, so that no run
allocates; the values between two nodes come from the runtime's arena.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime

from kernel_serve import RefusedError, serve


def main() -> None:
    threads, library, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])

    def prepare(asked):
        models = sorted(folder.glob("*.onnx"))
        if not models:
            raise RefusedError(f"its kernel has no {asked.op} in {asked.dtype}, {asked.layout}")
        shared = {}
        return {path.stem: bind(path, library, threads, shared) for path in models}

    serve(prepare)


def bind(path, library, threads, shared):
    """A call that runs a model; arrays are shared among models by name."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # A thread that spins for more work would take the other ways' time.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    generator = np.random.default_rng(0)
    for value in (*session.get_inputs(), *session.get_outputs()):
        if value.name not in shared:
            array = generator.uniform(0.5, 1.5, value.shape) if len(value.shape) == 1 else np.resize(
                generator.standard_normal(1 << 16), value.shape
            )  # fmt: skip
            shared[value.name] = onnxruntime.OrtValue.ortvalue_from_numpy(array.astype(np.float32))
    for value in session.get_inputs():
        binding.bind_ortvalue_input(value.name, shared[value.name])
    for value in session.get_outputs():
        binding.bind_ortvalue_output(value.name, shared[value.name])

    def call(_keep=shared):  # bound memory must outlive the binding
        session.run_with_iobinding(binding)

    return call


if __name__ == "__main__":
    main()
