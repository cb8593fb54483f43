"""A process of bench_optimizer.py: updates on request, prints the time of each, and at the end its peak memory.

python optimizer_worker.py OPTIMIZER WAY THREADS
"""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx_ir as ir
import onnxruntime

from bngrad.runtime.session import session
from optimizer_models import COEFFICIENTS, STATE, shapes, update_in_place, update_model
from step_worker import peak_megabytes


def numpy_step(optimizer, arrays):
    scratch = np.empty(max(array.size for array in arrays["w"]), np.float32)

    def step():
        for index in range(len(arrays["w"])):
            update_in_place(optimizer, scratch, **{name: arrays[name][index] for name in arrays})

    return step


def ort_step(optimizer, way, threads, arrays):
    """Two sets of state in turns, as a loop has to."""
    model = ir.to_proto(update_model(optimizer, way))
    runner = session(model, "native" if way == "native" else "function", threads=threads)
    values = {
        f"{name}{i}": onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name in list(arrays)
        for i, array in enumerate(arrays.pop(name))
    }
    values["coefficients"] = onnxruntime.OrtValue.ortvalue_from_numpy(COEFFICIENTS)
    state = [name for name in values if name[0] in STATE[optimizer]]
    other = {
        name: onnxruntime.OrtValue.ortvalue_from_shape_and_type(values[name].shape(), np.float32) for name in state
    }
    bindings = []
    for old, new in ((values, other), ({**values, **other}, values)):
        binding = runner.io_binding()
        for name in values:
            binding.bind_ortvalue_input(name, old[name])
        for name in state:
            binding.bind_ortvalue_output(f"{name}_new", new[name])
        bindings.append(binding)

    def step():
        runner.run_with_iobinding(bindings[0])
        bindings.reverse()

    return step


def main():
    optimizer, way, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    rng = np.random.default_rng(0)
    arrays = {name: [rng.standard_normal(shape, np.float32) for shape in shapes()] for name in "wg"}
    arrays["m"] = [0.1 * gradient for gradient in arrays["g"]]
    if optimizer == "adamw":
        arrays["v"] = [1e-3 * gradient * gradient for gradient in arrays["g"]]
    step = numpy_step(optimizer, arrays) if way == "numpy" else ort_step(optimizer, way, threads, arrays)
    for _ in range(2):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        begin, processor = time.perf_counter(), time.process_time()
        step()
        print(time.perf_counter() - begin, time.process_time() - processor, flush=True)
    print(peak_megabytes())


main()
