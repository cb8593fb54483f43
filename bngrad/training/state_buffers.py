"""The state of a training step in memory: two sets of buffers, which are its inputs and outputs in turn.

An output must not share memory with the input that it replaces: ONNX Runtime reads an input after it has written
outputs, so a step on one set of buffers gives wrong losses without an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.runtime.ort_values import Buffer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.runtime.device import Device
    from bngrad.training.step_info import StepInfo

    Array = NDArray[Any]


class StateBuffers:
    """One set of buffers for the state, in either layout, on a device.

    Args:
        info: The metadata of the step.
        device: The device.

    Raises:
        DeviceError: The device is out of memory.
    """

    def __init__(self, info: StepInfo, device: Device) -> None:
        self._info = info
        specs: list[tuple[str, str, tuple[int, ...], str]]
        if info.flat is not None:
            specs = [(info.flat.input, info.flat.output, (info.flat.size,), info.flat.dtype)]
        else:
            specs = [(name, str(entry.new), entry.shape, entry.dtype) for name, entry in info.state.items()]
        self._buffers = {old: Buffer(shape, np.dtype(dtype), device) for old, _, shape, dtype in specs}
        self.inputs = {old: buffer.value for old, buffer in self._buffers.items()}
        """Values on the buffers, by the names of the step's inputs."""
        self.outputs = {new: self.inputs[old] for old, new, _, _ in specs}
        """The same values by the names of the step's outputs."""

    def write(self, state: Mapping[str, Array]) -> None:
        """Copies a state in the named layout into the buffers.

        Raises:
            InputError: It is not that of the step.
        """
        if self._info.flat is not None:
            self._buffers[self._info.flat.input].write(self._info.flatten(state))
        else:
            for name, array in self._info.require_state(state).items():
                self._buffers[name].write(array)

    def read(self) -> dict[str, Array]:
        """Returns a copy of the state, in the named layout."""
        if self._info.flat is not None:
            return self._info.unflatten(self._buffers[self._info.flat.input].read())
        return {name: buffer.read() for name, buffer in self._buffers.items()}


def calls_of(state: Mapping[str, Array], info: StepInfo) -> int:
    """Returns the number of calls that a state has seen.

    Raises:
        InputError: Its counters are not those of a step.
    """
    step, micro_step, skipped = (
        sum(int(state[name]) for name in info.names(role)) for role in ("step", "micro_step", "skipped")
    )
    if min(step, skipped) < 0 or not 0 <= micro_step < info.accumulate:
        raise InputError(
            f"the state counts {step} updates and {micro_step} calls since; expected 0 or more updates, and "
            f"less than {info.accumulate} calls"
        )
    return step * info.accumulate + micro_step + skipped
