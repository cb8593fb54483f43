"""A process of bench_optimizer.py: updates when told, and says how long it took, and at the end its peak memory.

python optimizer_worker.py WAY THREADS
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np
import onnx_ir as ir
import onnxruntime

from bngrad.runtime.session import session
from optimizer_models import COEFFICIENTS, shapes, update_in_place, update_model


def numpy_step(arrays):
    scratch = np.empty(max(array.size for array in arrays["w"]), np.float32)

    def step():
        for w, g, m, v in zip(*(arrays[name] for name in "wgmv"), strict=True):
            update_in_place(w, g, m, v, scratch)

    return step


def ort_step(way, threads, arrays):
    """Two sets of state in turns, as a loop has to."""
    model = ir.to_proto(update_model(way))
    runner = session(model, "native" if way == "native" else "function", threads=threads)
    values = {
        f"{name}{i}": onnxruntime.OrtValue.ortvalue_from_numpy(array)
        for name in "wgmv"
        for i, array in enumerate(arrays.pop(name))
    }
    values["coefficients"] = onnxruntime.OrtValue.ortvalue_from_numpy(COEFFICIENTS)
    state = [name for name in values if name[0] in "wmv"]
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
    way, threads = sys.argv[1], int(sys.argv[2])
    rng = np.random.default_rng(0)
    arrays = {name: [rng.standard_normal(shape, np.float32) for shape in shapes()] for name in "wg"}
    arrays["m"] = [0.1 * gradient for gradient in arrays["g"]]
    arrays["v"] = [1e-3 * gradient * gradient for gradient in arrays["g"]]
    step = numpy_step(arrays) if way == "numpy" else ort_step(way, threads, arrays)
    for _ in range(2):
        step()
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        step()
        print(time.perf_counter() - begin, flush=True)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


main()
