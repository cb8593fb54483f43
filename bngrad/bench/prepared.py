"""A benchmark case with its arrays allocated, and calls of the kernels without any overhead of checks."""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.bench.case import ARRAYS, OPS
from bngrad.errors import InputError
from bngrad.opset.axes import parameter_shape
from bngrad.opset.quantities import QUANTITIES
from bngrad.opset.schemas import signature
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.native_library import Layout, call, function_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bngrad.bench.case import Case

    Array = NDArray[Any]

ATTRIBUTES = {"epsilon": ctypes.c_double(1e-5), "momentum": ctypes.c_double(0.9), "unbiased_running_var": 0}
_POSITIVE = {"scale", "inv_std", "running_var"}
_RANDOM_VALUES = 1 << 16
"""Number of random values, which an array repeats, because generating gigabytes of them is slow."""


class PreparedCase:
    """A case that is ready to be timed.

    ``kernel()`` runs the op. ``addition()`` adds two arrays of X's size with non-temporal stores, to measure the
    memory bandwidth. They share arrays, so each overwrites outputs of the other.
    """

    runs = 1
    """The number of times that a call runs the op."""
    kernel: Callable[[], object]
    addition: Callable[[], object]

    def __init__(self, case: Case, *, threads: int = 0) -> None:
        """Generates the inputs, allocates the outputs and runs each call once.

        Args:
            case: The case to prepare.
            threads: Number of threads per call; 0 for one per CPU.

        Raises:
            InputError: The arrays do not fit into the machine's memory.
            LibraryError: The library is missing, too old, cannot be loaded, or failed.
        """
        name = OPS[case.op]
        inputs, outputs, attributes = signature(name)
        inputs.remove("axes")
        _check_memory(case)
        self._case = case
        generator = np.random.default_rng(0)
        self._arrays = {quantity: random_array(case, quantity, generator) for quantity in (*inputs, *outputs)}
        values = ATTRIBUTES | {"training_mode": int(not case.frozen)}
        function = "bngrad_" + re.sub(r"\B(?=[A-Z])", "_", name).lower()
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in self._arrays.values()]
        layout = ctypes.byref(self._layout())
        self.kernel = _prepare(function, layout, *(values[a] for a in attributes), *pointers, threads)

        # The addition reads two inputs and writes an output, or further arrays if the op has fewer. It does not
        # read outputs, because they may hold denormal numbers, which are slow to add.
        sources, targets = (
            [self._arrays[quantity] for quantity in group if QUANTITIES[quantity].shape == "data"]
            for group in (inputs, outputs)
        )
        sources += [_empty(case.shape, sources[0].dtype) for _ in range(2 - len(sources))]
        targets = targets or [_empty(case.shape, sources[0].dtype)]
        self._addition_arrays = (*sources[:2], targets[0])  # the calls hold addresses only
        floats = [array.ctypes.data_as(ctypes.c_void_p) for array in self._addition_arrays]
        count = ctypes.c_int64(case.data_bytes // np.dtype(np.float32).itemsize)
        self.addition = _prepare("bngrad_add_arrays", count, *floats, threads)

    def _layout(self) -> Layout:
        case = self._case
        data, parameter = ir.DataType[case.dtype.upper()], ir.DataType.from_numpy(dtype_of(case, "parameter"))
        return Layout(
            (ctypes.c_int64 * len(case.shape))(*case.shape),
            (ctypes.c_int64 * len(case.axes))(*case.axes),
            len(case.shape),
            len(case.axes),
            data,
            parameter,
            parameter,
        )


def dtype_of(case: Case, kind: str) -> np.dtype[Any]:
    """Returns the type of an array of a case, of the kind ``data`` or ``parameter``."""
    dtype = ir.DataType[case.dtype.upper()].numpy()
    return np.dtype(np.float32) if kind == "parameter" and dtype.itemsize < 4 else dtype


def random_array(case: Case, quantity: str, generator: np.random.Generator) -> Array:
    """Returns random values for an input or output of a case's op."""
    kind = QUANTITIES[quantity].shape
    shape = case.shape if kind == "data" else parameter_shape(case.shape, case.axes)
    array = _empty(shape, dtype_of(case, kind))
    count = min(array.size, _RANDOM_VALUES)
    is_positive = quantity in _POSITIVE
    values = generator.uniform(0.5, 1.5, count) if is_positive else generator.standard_normal(count)
    # Rounded to float32 first: the addition reads the bytes of any type as floats, and must not see denormals.
    array[...] = np.resize(values.astype(np.float32).astype(array.dtype), shape)
    return array


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    array = empty_at_cache_line(shape, dtype)
    # Touch all pages: untouched pages are mapped to one page of zeros, which stays in the caches.
    array.reshape(-1).view(np.uint8).fill(1)
    return array


def _check_memory(case: Case) -> None:
    """Checks that the arrays fit into memory: a system that overcommits memory would kill the process."""
    needed = max(ARRAYS[case.op], 3) * case.data_bytes
    try:
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # not available on this system
        return
    if needed > available:
        raise InputError(
            f"{case.op} at {case.shape_text} needs {needed / 1e9:.1f} GB; "
            f"this machine has {available / 1e9:.1f} GB"
        )


def _prepare(function: str, *arguments: object) -> Callable[[], object]:
    """Calls a function of the library once, raising its error, and returns the same call without checks."""
    call(function, *arguments)
    entry = function_of(function)
    return lambda: entry(*arguments, None, 0)
