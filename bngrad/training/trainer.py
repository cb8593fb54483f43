"""`Trainer`: runs a training step, and keeps its state between the calls."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from bngrad.errors import InputError, TrainingError
from bngrad.graph.name_messages import listed
from bngrad.io.files import as_ir, check_output
from bngrad.io.files import save as save_model
from bngrad.runtime.ort_values import to_array, to_ort_value
from bngrad.runtime.session import session
from bngrad.training.class_labels import find_class_labels, require_labels
from bngrad.training.data_inputs import not_finite, require_data
from bngrad.training.schedules import as_schedule
from bngrad.training.state_buffers import StateBuffers
from bngrad.training.step_files import read_state, write_state
from bngrad.training.to_inference import random_nodes
from bngrad.training.training_step import TrainingStep, read_training_step

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import onnxruntime
    from numpy.typing import ArrayLike, NDArray

    from bngrad.runtime.session import Provider
    from bngrad.training.schedules import Schedule
    from bngrad.training.step_info import StepInfo

    Array = NDArray[Any]


class Trainer:
    """Trains a model by running its training step.

    The state stays in buffers of ONNX Runtime between the calls: nothing is copied but the loss.

    Args:
        step: A training step, or the path of one.
        learning_rate: A number, or a function of the number of updates, such as `CosineSchedule`.
        provider: The implementation of the ops; see `session`.
        threads: The number of intra-op threads; 0 lets ONNX Runtime choose.

    Raises:
        InputError: An argument is invalid, or the files of the step cannot be read.
        ModelError: The path is not of a training step.
        LibraryError: See `session`.
    """

    def __init__(
        self,
        step: TrainingStep | str | os.PathLike[str],
        *,
        learning_rate: float | Schedule,
        provider: Provider = "native",
        threads: int = 0,
    ) -> None:
        self._schedule = as_schedule(learning_rate)
        self._training_step = step if isinstance(step, TrainingStep) else read_training_step(step)
        info = self._training_step.info
        self._make_session = partial(session, provider=provider, threads=threads)
        self._session = self._make_session(self._training_step.model)
        self._evaluation: onnxruntime.InferenceSession | None = None
        self._rate = np.empty((), info.learning_rate_dtype)
        self._loss = _buffer_of(self._training_step.model, info.loss)
        self._fetched = info.outputs if self._loss is not None else (*info.outputs, info.loss)
        """The outputs that ONNX Runtime allocates in each call: their shapes may depend on the data."""
        self._buffers = (StateBuffers(info), StateBuffers(info))
        self._bindings = tuple(self._bind(here) for here in range(2))
        self.labels = find_class_labels(as_ir(self._training_step.evaluation))
        """The class labels among the data."""
        self._calls = 0
        """Also says which buffers hold the state: those of the remainder by 2."""
        self.outputs: dict[str, Array] = {}
        """The further outputs of the last step, by name."""
        self.load_state_dict(self._training_step.state)

    @property
    def info(self) -> StepInfo:
        """What the metadata of the step say."""
        return self._training_step.info

    @property
    def is_random(self) -> bool:
        """Whether a step has random nodes, such as Dropout; every session draws other numbers."""
        return bool(random_nodes(as_ir(self._training_step.model)))

    @property
    def calls(self) -> int:
        """The number of calls of `step` that the state has seen, also before it was loaded."""
        return self._calls

    @property
    def updates(self) -> int:
        """The number of updates of the weights; the learning rate is a function of it."""
        return self._calls // self.info.accumulate

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step. A number or a schedule can be assigned."""
        rate = float(self._schedule(self.updates))
        if not 0 <= rate < math.inf:
            raise InputError(
                f"the learning rate of update {self.updates} is {rate}; expected a finite number, at least 0"
            )
        return rate

    @learning_rate.setter
    def learning_rate(self, rate: float | Schedule) -> None:
        self._schedule = as_schedule(rate)

    def step(self, /, **data: ArrayLike) -> float:
        """Runs one training step, and returns its loss, which is that before the update.

        The further outputs of the step are in `outputs`.

        Args:
            data: An array for each data input, of its type and shape.

        Raises:
            InputError: An array is missing, superfluous, or of another type or shape, a label is not one of the
                classes, or ONNX Runtime refuses the data.
            TrainingError: The loss is not finite. The state is unchanged.
        """
        arrays = self._require_data(data)
        self._rate[...] = self.learning_rate
        binding = self._bindings[self._calls % 2]
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, to_ort_value(array))
        for name in self._fetched:
            binding.bind_output(name)
        try:
            self._session.run_with_iobinding(binding)
        except Exception as error:
            raise _refused(error) from error
        values = binding.get_outputs_as_ortvaluevector() if self._fetched else ()
        outputs = {name: to_array(values[index]) for index, name in enumerate(self._fetched)}
        loss = float((outputs.pop(self.info.loss) if self._loss is None else self._loss).item())
        if not math.isfinite(loss):
            raise TrainingError(self._diagnosis(loss, arrays))
        self.outputs = outputs
        self._calls += 1
        return loss

    def evaluate(self, /, **data: ArrayLike) -> dict[str, Array]:
        """Runs the forward model in inference mode with the present state.

        Args:
            data: An array for each data input, of its type and shape.

        Returns:
            The loss and the other outputs of the forward model.

        Raises:
            InputError: An array is missing, superfluous, or of another type or shape, a label is not one of the
                classes, or ONNX Runtime refuses the data.
        """
        if self._evaluation is None:
            self._evaluation = self._make_session(self._training_step.evaluation)
        arrays = self._require_data(data)
        values = {name: to_ort_value(array) for name, array in arrays.items()} | self._current.inputs
        inputs = (*self._evaluation.get_inputs(), *self._evaluation.get_overridable_initializers())
        feeds = {one.name: values[one.name] for one in inputs}
        names = [one.name for one in self._evaluation.get_outputs()]
        try:
            results = self._evaluation.run_with_ort_values(names, feeds)
        except Exception as error:
            raise _refused(error) from error
        return {name: to_array(value) for name, value in zip(names, results, strict=True)}

    def state_dict(self) -> dict[str, Array]:
        """Returns a copy of the state: weights, running statistics, what the optimizer keeps, and counters."""
        return self._current.read()

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Replaces the state; the arrays are copied.

        Args:
            state: All tensors of the state, as `state_dict` returns them.

        Raises:
            InputError: An array is missing, superfluous, or of another type or shape.
        """
        counters = self.info.require_state(state)
        step, micro_step = (
            sum(int(counters[name]) for name in self.info.names(role)) for role in ("step", "micro_step")
        )
        if step < 0 or not 0 <= micro_step < self.info.accumulate:
            raise InputError(
                f"the state counts {step} updates and {micro_step} calls since; expected 0 or more updates, and "
                f"less than {self.info.accumulate} calls"
            )
        calls = step * self.info.accumulate + micro_step
        self._buffers[calls % 2].write(state)
        self._calls = calls

    def save(self, path: str | os.PathLike[str], **notes: Any) -> None:  # noqa: ANN401 - anything that JSON has
        """Writes the state to a file, from which `load` continues bit-identically.

        Args:
            path: The file, in the format of safetensors. An existing file is replaced as a whole or not at all.
            notes: What the file is to hold beside the state, such as the epoch; anything that JSON can hold.

        Raises:
            InputError: The file cannot be written.
        """
        write_state(check_output(path), self.state_dict(), self.info, notes=notes)

    def load(self, path: str | os.PathLike[str]) -> dict[str, Any]:
        """Reads the state from a file that `save` wrote, and returns its notes.

        Raises:
            InputError: The file cannot be read, or is of another model or optimizer.
        """
        state, extra = read_state(path, self.info)
        self.load_state_dict(state)
        return dict(extra.get("notes", {}))

    def finalize(self, path: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
        """Returns the inference model: the forward model with the present state, without the loss.

        Args:
            path: Where to write it, too.

        Raises:
            InputError: The file cannot be written.
            ModelError: See `TrainingStep.finalize`.
        """
        model = self._training_step.finalize(self.state_dict())
        if path is not None:
            save_model(as_ir(model), check_output(path))
        return model

    def _require_data(self, data: Mapping[str, Any]) -> dict[str, Array]:
        arrays = require_data(data, self.info.data)
        require_labels(self.labels, arrays)
        return arrays

    @property
    def _current(self) -> StateBuffers:
        return self._buffers[self._calls % 2]

    def _bind(self, here: int) -> onnxruntime.IOBinding:
        """Binds what stays: the learning rate, and a set of buffers as the state and the other as the next one."""
        info, binding = self.info, self._session.io_binding()
        for name in self._fetched:  # first: the bound outputs are in this order
            binding.bind_output(name)
        if self._loss is not None:
            binding.bind_ortvalue_output(info.loss, to_ort_value(self._loss))
        binding.bind_ortvalue_input(info.learning_rate, to_ort_value(self._rate))
        for name, value in self._buffers[here].inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in self._buffers[1 - here].outputs.items():
            binding.bind_ortvalue_output(name, value)
        return binding

    def _diagnosis(self, loss: float, data: Mapping[str, Array]) -> str:
        what = f"the loss is {loss} in call {self._calls + 1}"
        if names := not_finite(data):
            return f"{what}: the data {listed(names)} are not finite; the state is unchanged"
        if names := not_finite(self.state_dict()):
            return (
                f"{what}: the state is not finite since an earlier call ({listed(names, most=3)}); load an "
                "earlier state, and lower the learning rate"
            )
        return (
            f"{what}, with finite data and weights; the state is unchanged: lower the learning rate "
            f"({self.learning_rate:g}), or clip the gradients"
        )


def _buffer_of(model: onnx.ModelProto, output: str) -> Array | None:
    """A buffer for an output of a model; None if its shape is not known."""
    type_ = next(one.type.tensor_type for one in model.graph.output if one.name == output)
    sizes = [one.dim_value for one in type_.shape.dim]
    if not type_.HasField("shape") or 0 in sizes:
        return None
    return np.empty(sizes, onnx.helper.tensor_dtype_to_np_dtype(type_.elem_type))


def _refused(error: Exception) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(f"ONNX Runtime refuses the data: {reason}")
