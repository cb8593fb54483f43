"""A session with state: inputs in memory that never moves, which get their next values after each run."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from onnxruntime import OrtValue

from bngrad.io.files import to_proto
from bngrad.ort_training.errors import OrtTrainingError, as_ort_training_error
from bngrad.runtime.device import CPU, Device
from bngrad.runtime.device_session import open_session
from bngrad.runtime.session import register
from bngrad.runtime.session import session as new_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx_ir as ir

    from bngrad.ort_training.checkpoint_file import Array

_registered: weakref.WeakSet[onnxruntime.SessionOptions] = weakref.WeakSet()
"""The options that have the native library: ONNX Runtime may refuse a second registration."""


class StatefulSession:
    """Runs a model whose state is bound once.

    An output is never bound to the memory of the input that it replaces: ONNX Runtime then gives wrong values
    without an error. It goes to memory of its own, and is copied after the run. A run that fails changes nothing.

    Args:
        model: The model; it runs on stock ONNX Runtime.
        state: The value of each input that is state. They are read at every run, so writing to them changes it.
        updates: The output that is the next value of such an input.
        device: The device to run on; see `bngrad.session`. A GPU gets a copy of the state at every run.
        options: The user's session options, if there are any.
    """

    def __init__(
        self,
        model: ir.Model,
        state: Mapping[str, Array],
        updates: Mapping[str, str],
        device: str,
        options: onnxruntime.SessionOptions | None,
    ) -> None:
        with as_ort_training_error():
            self._session = _open(model, device, options)
            # Bound to a GPU, an array on the host is copied once, so that later values of the state are not read.
            self._binds = Device.of(device).kind == CPU
            self._binding = self._session.io_binding()
            self._state = dict(state)  # the binding does not keep memory alive
            self._updates = list(updates.values())
            self._updated: list[tuple[Array, Array]] = []
            for name, array in state.items():
                value = value_of(name, array)
                if self._binds:
                    self._binding.bind_ortvalue_input(name, value)
            for name, output in updates.items():
                following = np.empty_like(state[name])
                self._updated.append((state[name], following))
                self._binding.bind_ortvalue_output(output, value_of(output, following))

    def run(self, feeds: Mapping[str, OrtValue | Array], outputs: Sequence[str]) -> list[OrtValue]:
        """Runs the model, updates the state, and returns some outputs.

        Args:
            feeds: The inputs that are not state; arrays of strings, which cannot be bound, as they are.
            outputs: The outputs to return, none of which is state.
        """
        with as_ort_training_error():
            bound = {name: value for name, value in feeds.items() if isinstance(value, OrtValue)}
            binds = self._binds and len(bound) == len(feeds)
            results = self._run_bound(bound, outputs) if binds else self._run(feeds, outputs)
        for array, following in self._updated:
            np.copyto(array, following)
        return results

    def _run_bound(self, feeds: Mapping[str, OrtValue], outputs: Sequence[str]) -> list[OrtValue]:
        for name, value in feeds.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in outputs:
            # At every run, or the memory of the last results would be used again.
            self._binding.bind_output(name)
        self._session.run_with_iobinding(self._binding)
        results: list[OrtValue] = self._binding.get_outputs()
        return results[len(self._updated) :]

    def _run(self, feeds: Mapping[str, OrtValue | Array], outputs: Sequence[str]) -> list[OrtValue]:
        arrays = {name: value.numpy() if isinstance(value, OrtValue) else value for name, value in feeds.items()}
        results = self._session.run([*self._updates, *outputs], {**self._state, **arrays})
        for (_, following), result in zip(self._updated, results, strict=False):
            np.copyto(following, result)
        return [OrtValue.ortvalue_from_numpy(result) for result in results[len(self._updates) :]]


def value_of(name: str, array: Array) -> OrtValue:
    """Returns an OrtValue over the memory of a contiguous array.

    Raises:
        OrtTrainingError: ONNX Runtime's Python interface has no such dtype.
    """
    try:
        return OrtValue.ortvalue_from_numpy(array)
    except Exception as error:
        raise OrtTrainingError(
            f"{name!r} is {array.dtype}, which ONNX Runtime does not take from NumPy: {error}"
        ) from error


def _open(
    model: ir.Model, device: str, options: onnxruntime.SessionOptions | None
) -> onnxruntime.InferenceSession:
    if options is None:
        return new_session(model, device=device)
    if options not in _registered:
        register(options, device=device)
        _registered.add(options)
    content = to_proto(model).SerializeToString()
    return open_session(content, options, device)
