"""The kernels of one instruction set, in a process of its own.

A module, not conftest.py: a new process imports it by its name, and there are several conftest modules.
"""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from bngrad.runtime import kernel_call, native, native_library

_PAGE = 4096


class Kernels:
    """The functions of `bngrad.runtime.native`, computed with one instruction set, in a process of its own.

    The library chooses once for a process, so forcing it takes one each. Outputs of X's shape are full of NaN
    before it writes to them: what it leaves out is not a number that an earlier call left there.
    """

    outputs_later = 0
    """Bytes by which those outputs begin later in a page than inputs of that shape, which begin with one."""

    def __init__(self, isa):
        self.isa = isa
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_force_isa, initargs=(isa,))
        assert self._pool.submit(native_library.active_isa).result() == isa

    def call(self, function, *arguments, **options):
        return self._pool.submit(_call, self.outputs_later, function, arguments, options).result()

    def calls(self, calls):
        """The results of calls, each a function, its arguments and its options; shared arrays are sent once."""
        return self._pool.submit(_calls, self.outputs_later, calls).result()

    def digests(self, calls):
        """The digests of the results of calls; no array is sent back."""
        return self._pool.submit(_digests, self.outputs_later, calls).result()

    def grad(self, *arguments, **options):
        return self.call("batch_normalization_grad", *arguments, **options)

    def relu_grad(self, *arguments, **options):
        return self.call("batch_normalization_relu_grad", *arguments, **options)

    def grad_grad(self, *arguments, **options):
        return self.call("batch_normalization_grad_grad", *arguments, **options)

    def training(self, *arguments, **options):
        return self.call("batch_normalization_training", *arguments, **options)

    def statistics(self, *arguments, **options):
        return self.call("batch_normalization_statistics", *arguments, **options)

    def close(self):
        self._pool.shutdown()


def _force_isa(isa):
    os.environ[native_library.ISA_VARIABLE] = isa


def _call(outputs_later, function, arguments, options):
    def full_of_nan(shape, dtype):
        array = _in_page(shape, dtype, outputs_later)
        array.reshape(-1).view(np.uint8).fill(255)
        return array

    def at_a_page(argument):
        if not isinstance(argument, np.ndarray) or argument.shape != arguments[0].shape:
            return argument
        array = _in_page(argument.shape, argument.dtype, 0)
        array[...] = argument
        return array

    kernel_call.empty_at_cache_line = native.empty_at_cache_line = full_of_nan
    return getattr(native, function)(*map(at_a_page, arguments), **options)


def _calls(outputs_later, calls):
    return [_call(outputs_later, *call) for call in calls]


def _digests(outputs_later, calls):
    return [digest for call in calls for digest in digests(_call(outputs_later, *call))]


def digests(arrays):
    """A digest of the bytes of each array."""
    return [hashlib.sha256(array.tobytes()).hexdigest()[:16] for array in arrays]


def _in_page(shape, dtype, later):
    """An array that begins so many bytes later than a page."""
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(_PAGE + later + size, np.uint8)
    begin = -memory.ctypes.data % _PAGE + later
    return memory[begin : begin + size].view(dtype).reshape(shape)
