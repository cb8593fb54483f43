"""The session of a training step, and the state that it reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

from bngrad.runtime.ort_values import to_array, to_ort_value
from bngrad.training.state_buffers import StateBuffers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.training.training_step import TrainingStep

    Array = NDArray[Any]


class StepSession:
    """A session whose inputs and outputs are bound once, to two sets of buffers for the state in turn.

    Args:
        step: The training step.
        session: A session of its model.
    """

    def __init__(self, step: TrainingStep, session: onnxruntime.InferenceSession) -> None:
        info = self._info = step.info
        self._session = session
        self._options = onnxruntime.RunOptions()
        self._options.log_severity_level = 4  # an error is raised, so it need not be printed
        self._rate = np.empty((), info.learning_rate_dtype)
        self._loss = _buffer_of(step.model, info.loss)
        self._fetched = info.outputs if self._loss is not None else (*info.outputs, info.loss)
        """The outputs that ONNX Runtime allocates in each call: their shapes may depend on the data."""
        self.buffers = (StateBuffers(info), StateBuffers(info))
        """Call number n reads the state from the buffers n % 2, and writes the next one to the others."""
        self.bindings = tuple(self._bind(here) for here in range(2))

    def run(self, call: int, data: Mapping[str, Array], rate: float) -> tuple[float, dict[str, Array]]:
        """Runs the step. Errors of ONNX Runtime are raised as they are.

        Args:
            call: The number of the call.
            data: An array for each data input.
            rate: The learning rate.

        Returns:
            The loss, and the further outputs by name.
        """
        self._rate[...] = rate
        binding = self.bindings[call % 2]
        for name, array in data.items():
            binding.bind_ortvalue_input(name, to_ort_value(array))
        for name in self._fetched:
            binding.bind_output(name)
        self._session.run_with_iobinding(binding, self._options)
        values = binding.get_outputs_as_ortvaluevector() if self._fetched else ()
        outputs = {name: to_array(values[index]) for index, name in enumerate(self._fetched)}
        loss = outputs.pop(self._info.loss) if self._loss is None else self._loss
        return float(loss.item()), outputs

    def _bind(self, here: int) -> onnxruntime.IOBinding:
        """Binds the learning rate, one set of buffers as the state, and the other as the next state."""
        info, binding = self._info, self._session.io_binding()
        for name in self._fetched:  # first: the bound outputs are in this order
            binding.bind_output(name)
        if self._loss is not None:
            binding.bind_ortvalue_output(info.loss, to_ort_value(self._loss))
        binding.bind_ortvalue_input(info.learning_rate, to_ort_value(self._rate))
        for name, value in self.buffers[here].inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self.buffers[1 - here].outputs.items():
            binding.bind_ortvalue_output(name, value)
        return binding


def _buffer_of(model: onnx.ModelProto, output: str) -> Array | None:
    """A buffer for an output of a model; None if its shape is not known."""
    type_ = next(value.type.tensor_type for value in model.graph.output if value.name == output)
    sizes = [dimension.dim_value for dimension in type_.shape.dim]
    if not type_.HasField("shape") or 0 in sizes:
        return None
    return np.empty(sizes, onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type))
