"""A case in memory: inputs drawn, outputs allocated, and calls that do nothing but the work."""

from __future__ import annotations

import ctypes
import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from bngrad.bench.case import ARRAYS, OPS
from bngrad.errors import InputError, LibraryError
from bngrad.opset.reference import parameter_shape
from bngrad.opset.schemas import QUANTITIES, signature
from bngrad.runtime.aligned import empty_at_cache_line
from bngrad.runtime.native_library import Layout, call, loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from bngrad.bench.case import Case

    Array = NDArray[Any]

_ATTRIBUTES = {"epsilon": ctypes.c_double(1e-5), "momentum": ctypes.c_double(0.9), "unbiased_running_var": 0}
_POSITIVE = {"scale", "inv_std", "running_var"}
_DRAWN = 1 << 16
"""Values drawn for an array, which repeats them: drawing gigabytes would take longer than timing them."""


class PreparedCase:
    """A case whose calls can be timed.

    ``kernel()`` runs the op; ``roof()`` adds two arrays of X's size into a third, past the caches. They share
    memory: what one leaves in an output, the other overwrites.
    """

    kernel: Callable[[], object]
    roof: Callable[[], object]

    def __init__(self, case: Case, *, threads: int = 0) -> None:
        """Draws the inputs, allocates the outputs and makes each call once.

        Args:
            case: What to prepare.
            threads: How many threads each call uses; 0 for one per CPU.

        Raises:
            InputError: The arrays do not fit the machine's memory.
            LibraryError: The library is missing, cannot be loaded, too old to have a roof, or failed.
        """
        name = OPS[case.op]
        inputs, outputs, attributes = signature(name)
        inputs.remove("axes")
        _check_memory(case)
        self._case = case
        self._generator = np.random.default_rng(0)
        self._arrays = {quantity: self._draw(quantity) for quantity in (*inputs, *outputs)}
        given = _ATTRIBUTES | {"training_mode": int(not case.frozen)}
        function = "bngrad_" + re.sub(r"\B(?=[A-Z])", "_", name).lower()
        pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in self._arrays.values()]
        layout = ctypes.byref(self._layout())
        self.kernel = _prepare(function, layout, *(given[a] for a in attributes), *pointers, threads)

        # Inputs are added up, and an output written; an op with fewer arrays is held against as many bytes all the
        # same. An output is never read as floats: what it holds may be denormal numbers, which are slow to add.
        read, written = (
            [self._arrays[quantity] for quantity in group if QUANTITIES[quantity].shape == "data"]
            for group in (inputs, outputs)
        )
        read += [self._empty(case.shape, read[0].dtype) for _ in range(2 - len(read))]
        written = written or [self._empty(case.shape, read[0].dtype)]
        self._arrays_of_roof = (*read[:2], written[0])  # the calls hold addresses only
        floats = [array.ctypes.data_as(ctypes.c_void_p) for array in self._arrays_of_roof]
        count = ctypes.c_int64(case.data_bytes // np.dtype(np.float32).itemsize)
        self.roof = _prepare("bngrad_add_arrays", count, *floats, threads)

    def _layout(self) -> Layout:
        case = self._case
        data, parameter = ir.DataType[case.dtype.upper()], ir.DataType.from_numpy(self._dtype("parameter"))
        return Layout(
            (ctypes.c_int64 * len(case.shape))(*case.shape),
            (ctypes.c_int64 * len(case.axes))(*case.axes),
            len(case.shape),
            len(case.axes),
            data,
            parameter,
            parameter,
        )

    def _dtype(self, shape: str) -> np.dtype[Any]:
        dtype = ir.DataType[self._case.dtype.upper()].numpy()
        return np.dtype(np.float32) if shape == "parameter" and dtype.itemsize < 4 else dtype

    def _draw(self, quantity: str) -> Array:
        case, kind = self._case, QUANTITIES[quantity].shape
        shape = case.shape if kind == "data" else parameter_shape(case.shape, case.axes)
        array = self._empty(shape, self._dtype(kind))
        count = min(array.size, _DRAWN)
        if quantity in _POSITIVE:
            drawn = self._generator.uniform(0.5, 1.5, count)
        else:
            drawn = self._generator.standard_normal(count)
        # By way of float32: then the roof, which reads every type's bytes as floats, meets none that is slow.
        array[...] = np.resize(drawn.astype(np.float32).astype(array.dtype), shape)
        return array

    @staticmethod
    def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        array = empty_at_cache_line(shape, dtype)
        # Written to: pages that never were are all one page of zeros, which no cache misses.
        array.reshape(-1).view(np.uint8).fill(1)
        return array


def _check_memory(case: Case) -> None:
    """A system that promises more memory than it has would end the process in the middle."""
    needed = max(ARRAYS[case.op], 3) * case.data_bytes
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # a system that does not say
        return
    if needed > there:
        raise InputError(
            f"{case.op} at {case.shape_text} needs {needed / 1e9:.1f} GB; this machine has {there / 1e9:.1f} GB"
        )


def _prepare(function: str, *arguments: object) -> Callable[[], object]:
    """Calls a function of the library once, which must go well, and returns the same call without the checks."""
    try:
        call(function, *arguments)
    except AttributeError:
        raise LibraryError(f"the native library has no {function}: build it anew from this version") from None
    entry = getattr(loaded(), function)
    return lambda: entry(*arguments, None, 0)
