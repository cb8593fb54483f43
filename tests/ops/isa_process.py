"""The kernels of one instruction set, in a process of its own.

A module, not conftest.py: a new process imports it by its name, and there are several conftest modules.
"""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

from bngrad import native, native_library


class Kernels:
    """The functions of `bngrad.native`, computed with one instruction set, in a process of its own.

    The library chooses once for a process, so forcing it takes one each.
    """

    def __init__(self, isa):
        self.isa = isa
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, context, initializer=_force_isa, initargs=(isa,))
        assert self._pool.submit(native_library.active_isa).result() == isa

    def call(self, function, *arguments, **options):
        return self._pool.submit(_call, function, arguments, options).result()

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


def _call(function, arguments, options):
    return getattr(native, function)(*arguments, **options)
