"""The evaluation graph of a training step, and graphs made of it, run with the state of a trainer."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from bngrad.errors import BngradError
from bngrad.io.files import as_ir
from bngrad.runtime.device_arrays import value_of
from bngrad.runtime.ort_values import run_on_values
from bngrad.training.loss_of_batches import LossOfBatches
from bngrad.training.state_buffers import StateBuffers
from bngrad.training.step_errors import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import onnx_ir as ir
    import onnxruntime
    from numpy.typing import NDArray

    from bngrad.runtime.device import Device
    from bngrad.runtime.device_arrays import DeviceArray
    from bngrad.training.training_step import TrainingStep

    Array = NDArray[Any]


class StepEvaluation:
    """Runs the evaluation graph of a step.

    Args:
        step: The training step.
        make_session: Creates a session on the device.
        device: The device.
    """

    def __init__(
        self, step: TrainingStep, make_session: Callable[[ir.Model], onnxruntime.InferenceSession], device: Device
    ) -> None:
        self._info, self._make_session, self._device = step.info, make_session, device
        self._model = as_ir(step.evaluation)
        self._flat_averages: tuple[int, StateBuffers] | None = None
        """The vector with the averages of the flat layout, and the call that it is of."""

    @cached_property
    def session(self) -> onnxruntime.InferenceSession:
        """The session of the evaluation graph, which also computes the parts of `loss_of_batches`."""
        _ = self.loss_of_batches  # adds an output
        return self._make_session(self._model)

    @cached_property
    def loss_of_batches(self) -> LossOfBatches:
        """The loss of several batches, from the parts of each."""
        return LossOfBatches(self._model, self._info.data, self._info.loss)

    def run(
        self,
        session: onnxruntime.InferenceSession,
        data: Mapping[str, Array | DeviceArray],
        state: StateBuffers,
        *,
        calls: int,
        averages: bool,
    ) -> dict[str, Array]:
        """Runs a session with a state.

        Args:
            session: `session`, or that of a graph made of the evaluation graph.
            data: The other inputs.
            state: The state.
            calls: The number of calls that the state has seen.
            averages: Whether to take the moving averages of the step, if it has them.

        Raises:
            InputError: ONNX Runtime refuses the data.
            DeviceError: The device failed or is out of memory.
        """
        try:
            with self._device.errors():
                values = {name: value_of(array) for name, array in data.items()}
                return run_on_values(session, values | self._values(state, calls, averages=averages))
        except BngradError:
            raise
        except Exception as error:
            raise refused(error) from error

    def forget(self) -> None:
        """Has to be called where another state with the same number of calls follows."""
        self._flat_averages = None

    def _values(self, state: StateBuffers, calls: int, *, averages: bool) -> dict[str, onnxruntime.OrtValue]:
        """The values of the state, with averages in place of what they are of."""
        inputs = dict(state.inputs)
        if not averages or not self._info.averages:
            return inputs
        if self._info.flat is None:
            return inputs | {name: inputs[average] for name, average in self._info.averages.items()}
        if self._flat_averages is None or self._flat_averages[0] != calls:
            buffers = StateBuffers(self._info, self._device)
            buffers.write(self._info.averaged(state.read()))
            self._flat_averages = calls, buffers
        return dict(self._flat_averages[1].inputs)
