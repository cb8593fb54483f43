"""The session of a training step, and the state that it reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed
from bngrad.opset.known_shapes import shape_text
from bngrad.runtime.device import CPU
from bngrad.runtime.device_arrays import value_of
from bngrad.runtime.ort_values import Buffer, to_array
from bngrad.training.state_buffers import StateBuffers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from bngrad.runtime.device import Device
    from bngrad.runtime.device_arrays import DeviceArray
    from bngrad.training.training_step import TrainingStep

    Array = NDArray[Any]


class StepSession:
    """A session that reads and writes two sets of buffers for the state in turn, which are bound.

    A CUDA graph has fixed addresses. So there are two, one for each set of buffers, and the data are copied to
    buffers of each, too.

    Args:
        step: The training step.
        session: A session of its model.
        device: The device of the session, which has the buffers.
        cuda_graph: Whether the session captures its runs as CUDA graphs.

    Raises:
        InputError: ``cuda_graph``, and an output has a shape that is not fixed.
        DeviceError: The device is out of memory.
    """

    def __init__(
        self,
        step: TrainingStep,
        session: onnxruntime.InferenceSession,
        device: Device,
        *,
        cuda_graph: bool = False,
    ) -> None:
        info = self._info = step.info
        self._session, self._device, self._cuda_graph = session, device, cuda_graph
        self._options = [_run_options(here + 1 if cuda_graph else None) for here in range(2)]
        self._rate = Buffer((), np.dtype(info.learning_rate_dtype), device)
        names = [info.loss, *info.outputs] if cuda_graph else [info.loss]
        self._outputs = {
            name: buffer for name in names if (buffer := _buffer_of(step.model, name, device)) is not None
        }
        self._fetched = [name for name in (*info.outputs, info.loss) if name not in self._outputs]
        """The outputs that ONNX Runtime allocates in each call: their shapes may depend on the data."""
        if cuda_graph and self._fetched:
            raise InputError(f"cuda_graph needs outputs of fixed shapes; {listed(self._fetched)} have none")
        self.buffers = (StateBuffers(info, device), StateBuffers(info, device))
        """Call number n reads the state from the buffers n % 2, and writes the next one to the others."""
        self.bindings = tuple(self._bind(here) for here in range(2))
        self._data: tuple[dict[str, Buffer], ...] = ({}, {})
        """The buffers for the data of each CUDA graph."""

    def run(
        self, call: int, data: Mapping[str, Array | DeviceArray], rate: float
    ) -> tuple[float, dict[str, Array]]:
        """Runs the step. Errors of ONNX Runtime are raised as they are, except those about the device.

        Args:
            call: The number of the call.
            data: An array for each data input.
            rate: The learning rate.

        Returns:
            The loss, and the further outputs by name.

        Raises:
            InputError: The session has captured CUDA graphs for data of other shapes.
            DeviceError: The device failed, or is out of memory.
        """
        here = call % 2
        binding = self.bindings[here]
        with self._device.errors():
            self._rate.write(rate)
            if self._device.kind != CPU and not self._cuda_graph:
                # What a node on the CPU reads is copied there when it is bound, and not again.
                self._bind_inputs(binding, here)
            for name, array in data.items():
                if self._cuda_graph:
                    self._write_data(here, name, array)
                else:
                    binding.bind_ortvalue_input(name, value_of(array))
            for name in self._fetched:
                binding.bind_output(name)
            self._session.run_with_iobinding(binding, self._options[here])
            values = binding.get_outputs_as_ortvaluevector() if self._fetched else ()
            outputs = {name: to_array(values[index]) for index, name in enumerate(self._fetched)}
            outputs |= {name: buffer.read() for name, buffer in self._outputs.items()}
        return float(outputs.pop(self._info.loss).item()), outputs

    def _bind(self, here: int) -> onnxruntime.IOBinding:
        """Binds the learning rate, one set of buffers as the state, and the other as the next state."""
        binding = self._session.io_binding()
        for name in self._fetched:  # first: the bound outputs are in this order
            binding.bind_output(name)
        for name, buffer in self._outputs.items():
            binding.bind_ortvalue_output(name, buffer.value)
        self._bind_inputs(binding, here)
        for name, value in self.buffers[1 - here].outputs.items():
            binding.bind_ortvalue_output(name, value)
        return binding

    def _bind_inputs(self, binding: onnxruntime.IOBinding, here: int) -> None:
        """Binds the learning rate, and one set of buffers as the state."""
        binding.bind_ortvalue_input(self._info.learning_rate, self._rate.value)
        for name, value in self.buffers[here].inputs.items():
            binding.bind_ortvalue_input(name, value)

    def _write_data(self, here: int, name: str, array: Array | DeviceArray) -> None:
        """Copies data to the buffer of a CUDA graph; the first data decide its shape."""
        if name not in self._data[here]:
            for buffers, binding in zip(self._data, self.bindings, strict=True):
                buffers[name] = Buffer(array.shape, array.dtype, self._device)
                binding.bind_ortvalue_input(name, buffers[name].value)
        buffer = self._data[here][name]
        if (captured := tuple(buffer.value.shape())) != array.shape:
            raise InputError(
                f"{name!r} has shape {shape_text(array.shape)}; expected {shape_text(captured)}, that of the "
                "captured CUDA graph: leave out other batches, or cuda_graph"
            )
        buffer.write(np.asarray(array))


def _run_options(graph: int | None) -> onnxruntime.RunOptions:
    """Returns the options of a run, with the number of its CUDA graph."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4  # an error is raised, so it need not be printed
    if graph is not None:
        options.add_run_config_entry("gpu_graph_id", str(graph))
    return options


def _buffer_of(model: onnx.ModelProto, output: str, device: Device) -> Buffer | None:
    """Returns a buffer for an output of a model; None if its shape is not known, or NumPy lacks its type."""
    type_ = next(value.type.tensor_type for value in model.graph.output if value.name == output)
    sizes = [dimension.dim_value for dimension in type_.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type)
    if not type_.HasField("shape") or 0 in sizes or dtype.kind == "V":
        return None
    return Buffer(sizes, dtype, device)
