"""The model in a training loop: training steps, evaluation, its parameters, and its way back to inference."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
from onnxruntime import OrtValue

from bngrad.ort_training.api.export import export_for_inference
from bngrad.ort_training.api.graphs import read_eval_graph, read_training_graph
from bngrad.ort_training.api.stateful_session import StatefulSession
from bngrad.ort_training.api.user_inputs import feeds_of
from bngrad.ort_training.errors import OrtTrainingError, OrtTrainingTypeError, as_ort_training_error
from bngrad.runtime.device import CPU, Device

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

    from bngrad.ort_training.api.checkpoint_state import CheckpointState
    from bngrad.ort_training.checkpoint_file import Array


class Module:
    """Trains and evaluates a model of `generate_artifacts`, of this package or of `onnxruntime.training`.

    Attributes:
        training: Whether a call is a training step; else it is an evaluation.

    Args:
        train_model_uri: The path of the training model.
        state: The state, which training changes.
        eval_model_uri: The path of the evaluation model, if the module is to evaluate or to be exported.
        device: The device to run on; see `bngrad.session`.
        session_options: Options for the sessions of this module and of its `Optimizer`.

    Raises:
        OrtTrainingError: A file cannot be read or is not of this state, or the device is another one.
    """

    training: bool

    def __init__(
        self,
        train_model_uri: str | bytes | os.PathLike[str],
        state: CheckpointState,
        eval_model_uri: str | bytes | os.PathLike[str] | None = None,
        device: str = CPU,
        session_options: onnxruntime.SessionOptions | None = None,
    ) -> None:
        with as_ort_training_error():
            Device.of(device)
        self.training = True
        self._state = state._state  # noqa: SLF001 - what the objects of a training run share
        self._device, self._session_options = device, session_options
        self._graph = read_training_graph(os.fsdecode(train_model_uri), self._state.names())
        self._statistics = {str(v.name): _initial(v) for v in self._graph.statistics}
        self._reset = np.zeros(1, np.bool_)
        self._state.allocate(self._graph.parameters, os.fsdecode(train_model_uri))
        self._state.allocate_gradients(self._graph.buffers)
        bound = {name: self._state.array(name) for name in self._parameter_names()} | self._statistics
        gradients = {buffer: self._state.gradients[name] for name, buffer in self._graph.buffers.items()}
        resets = {} if self._graph.resets is None else {self._graph.resets: self._reset}
        self._train = StatefulSession(
            self._graph.model, bound | gradients | resets, self._graph.updates, device, session_options
        )
        self._eval_graph = self._eval = None
        if eval_model_uri is not None:
            self._eval_graph = read_eval_graph(
                os.fsdecode(eval_model_uri), self._parameter_names(), self._statistics
            )
            parameters = {name: bound[name] for name in self._eval_graph.parameters}
            self._eval = StatefulSession(self._eval_graph.model, parameters, {}, device, session_options)

    def __call__(self, *user_inputs: Array | OrtValue) -> Any:  # noqa: ANN401 - one output, or a tuple of them
        """Runs a training step or an evaluation.

        A training step adds its gradients to those before, or replaces them after `lazy_reset_grad`, and moves
        running statistics.

        Args:
            user_inputs: The inputs of `input_names`, as NumPy arrays or OrtValues; if one is a NumPy array,
                also what NumPy converts to one.

        Returns:
            The output, or a tuple of the outputs: OrtValues if all inputs are, else NumPy arrays.

        Raises:
            OrtTrainingError: The inputs are not those of the model, the state is nominal, the model cannot be run
                on them, or there is no evaluation model. Nothing has changed then.
            OrtTrainingAttributeError: An input is neither, and none is a NumPy array; it is an AttributeError.
        """
        graph, session = self._current()
        self._state.require_values()
        feeds = feeds_of(graph.user_inputs, user_inputs)
        values = session.run(feeds, graph.user_outputs)
        if self.training:
            self._reset[...] = False
        if any(isinstance(value, np.ndarray) for value in user_inputs) or not user_inputs:
            values = [value.numpy() for value in values]
        return values[0] if len(values) == 1 else tuple(values)

    def train(self, mode: bool = True) -> Module:
        """Makes calls training steps, or evaluations, and returns the module."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Makes calls evaluations, and returns the module."""
        return self.train(mode=False)

    def lazy_reset_grad(self) -> None:
        """Makes the next training step replace the gradients, instead of adding to them."""
        self._reset[...] = True

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """Returns the number of elements of the parameters."""
        return sum(self._state.array(name).size for name in self._parameter_names(trainable_only=trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> Any:  # noqa: ANN401
        """Returns a copy of all parameters as one float32 vector, in the order of the training graph.

        It is of ONNX Runtime's inner class of OrtValues, as that of `onnxruntime.training` is: it has ``numpy()``.

        Raises:
            OrtTrainingError: The state is nominal, or a parameter is not float32.
        """
        self._state.require_values()
        names = self._float32_names(trainable_only)
        vector = np.concatenate([np.empty(0, np.float32), *(self._state.array(name).ravel() for name in names)])
        value = OrtValue.ortvalue_from_shape_and_type(list(vector.shape), np.float32)
        value.update_inplace(vector)
        return value._ortvalue  # noqa: SLF001 - it has memory of its own

    def copy_buffer_to_parameters(self, buffer: Any, trainable_only: bool = True) -> None:  # noqa: ANN401
        """Sets the parameters to what `get_contiguous_parameters` returns; a nominal state is then complete.

        Args:
            buffer: That, or an `onnxruntime.OrtValue` or a NumPy array: one float32 vector.
            trainable_only: Whether it has only the trainable parameters.

        Raises:
            OrtTrainingError: It is no float32 vector of that size, or the state is nominal and it has not all.
            OrtTrainingTypeError: It is something else.
        """
        if not isinstance(buffer, np.ndarray) and not hasattr(buffer, "numpy"):
            raise OrtTrainingTypeError(
                f"buffer is a {type(buffer).__name__}; expected the result of get_contiguous_parameters"
            )
        vector = np.asarray(buffer if isinstance(buffer, np.ndarray) else buffer.numpy())
        checkpoint = self._state.checkpoint
        if checkpoint.nominal and trainable_only:
            raise OrtTrainingError(
                "the state is of a nominal checkpoint; expected all its parameters, with trainable_only=False"
            )
        names = self._float32_names(trainable_only)
        size = sum(self._state.array(name).size for name in names)
        if vector.dtype != np.float32 or vector.shape != (size,):
            raise OrtTrainingError(f"buffer is {vector.dtype}{list(vector.shape)}; expected float32[{size}]")
        start = 0
        for name in names:
            array = self._state.array(name)
            np.copyto(array, vector[start : start + array.size].reshape(array.shape))
            start += array.size
        checkpoint.nominal = False

    def export_model_for_inferencing(
        self, inference_model_uri: str | bytes | os.PathLike[str], graph_output_names: list[str]
    ) -> None:
        """Writes the evaluation model up to some outputs, with the parameters in it.

        Raises:
            OrtTrainingError: There is no evaluation model, it has no such output, the state is nominal, or the
                file cannot be written.
            OrtTrainingTypeError: The names are not a list.
        """
        if self._eval_graph is None:
            raise OrtTrainingError("the module has no evaluation model, which is exported; pass eval_model_uri")
        self._state.require_values()
        values = {name: self._state.array(name) for name in self._parameter_names()} | self._statistics
        export_for_inference(self._eval_graph.source, values, graph_output_names, os.fsdecode(inference_model_uri))

    def input_names(self) -> list[str]:
        """Returns the names of the inputs of a call."""
        return [str(value.name) for value in self._current()[0].user_inputs]

    def output_names(self) -> list[str]:
        """Returns the names of the outputs of a call."""
        return list(self._current()[0].user_outputs)

    def _current(self) -> Any:  # noqa: ANN401
        """The graph and the session of a call."""
        if self.training:
            return self._graph, self._train
        if self._eval is None:
            raise OrtTrainingError("the module has no evaluation model; pass eval_model_uri, or call train()")
        return self._eval_graph, self._eval

    def _parameter_names(self, *, trainable_only: bool = False) -> list[str]:
        """The parameters in the order of the training graph."""
        names = [str(value.name) for value in self._graph.parameters]
        trainable = self._state.checkpoint.trainable
        return [name for name in names if name in trainable] if trainable_only else names

    def _float32_names(self, trainable_only: bool) -> list[str]:
        names = self._parameter_names(trainable_only=trainable_only)
        for name in names:
            if (dtype := self._state.array(name).dtype) != np.float32:
                raise OrtTrainingError(f"parameter {name!r} is {dtype}; a buffer of parameters is float32")
        return names


def _initial(statistic: ir.Value) -> Array:
    """The first value of a running statistic that is not a parameter, in memory of its own."""
    assert statistic.const_value is not None, "the graph was read with it"  # noqa: S101
    return np.array(statistic.const_value.numpy())
