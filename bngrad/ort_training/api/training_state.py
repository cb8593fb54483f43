"""The state that the objects of one training run share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.ort_training.api.flat_arrays import FlatArrays
from bngrad.ort_training.errors import OrtTrainingError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir

    from bngrad.ort_training.checkpoint_file import Array, Checkpoint, OptimizerGroup


class TrainingState:
    """The parameters, the state of the optimizer and the properties, and the gradients.

    Arrays never move: sessions and the user's views read and write the same memory.

    Args:
        checkpoint: The content of a checkpoint file. Its arrays of trainable parameters and of moments become
            views of vectors.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.gradients: dict[str, Array] = {}
        """The gradient of each parameter that a module trains."""
        self.vectors: dict[str, Array] = {}
        """Vectors that an optimizer reads and updates: parameters, gradients and moments, by name."""
        self._gradients: FlatArrays | None = None
        if not checkpoint.nominal:
            self._flatten_parameters()

    def __reduce__(self) -> tuple[type[TrainingState], tuple[Checkpoint]]:
        """Copies what a checkpoint has: a copied view would no longer share memory with its vector."""
        return TrainingState, (self.checkpoint,)

    def names(self) -> list[str]:
        """Returns the names of the parameters, sorted."""
        return sorted([*self.checkpoint.trainable, *self.checkpoint.frozen])

    def array(self, name: str) -> Array:
        """Returns the value of a parameter."""
        trainable = self.checkpoint.trainable
        return trainable[name] if name in trainable else self.checkpoint.frozen[name]

    def assign(self, name: str, value: Array) -> None:
        """Copies an array into a parameter.

        Raises:
            OrtTrainingError: It has another shape or dtype, or the state is nominal.
        """
        self.require_values()
        array, value = self.array(name), np.asarray(value)
        if (value.dtype, value.shape) != (array.dtype, array.shape):
            raise OrtTrainingError(
                f"parameter {name!r} is {array.dtype}{list(array.shape)}; it cannot be set to "
                f"{value.dtype}{list(value.shape)}"
            )
        np.copyto(array, value)

    def allocate(self, parameters: Sequence[ir.Value], path: object) -> None:
        """Makes the parameters of a nominal state, and checks those of another.

        Args:
            parameters: The inputs of the training graph that are parameters.
            path: The graph's file.

        Raises:
            OrtTrainingError: A parameter has another shape or dtype in the state, or they are unknown and needed.
        """
        fill = self.checkpoint.nominal and "params" not in self.vectors
        for value in parameters:
            name = str(value.name)
            array = self.array(name)
            dtype = array.dtype if value.dtype is None else value.dtype.numpy()
            static = value.shape is not None and value.shape.is_static()
            shape = value.shape.numpy() if value.shape is not None and static else array.shape
            if fill:
                if not static:
                    raise OrtTrainingError(f"{path}: the shape of its parameter {name!r} is unknown")
                held = self.checkpoint.trainable if name in self.checkpoint.trainable else self.checkpoint.frozen
                held[name] = array = np.zeros(shape, dtype)
            if (dtype, shape) != (array.dtype, array.shape):
                raise OrtTrainingError(
                    f"parameter {name!r} is {array.dtype}{list(array.shape)} in the state, and "
                    f"{dtype}{list(shape)} in {path}"
                )
        if fill:
            self._flatten_parameters()

    def allocate_gradients(self, names: Iterable[str]) -> None:
        """Makes the gradients of parameters, zeros, unless another module has made them."""
        if "params" not in self.vectors:
            views = {name: np.zeros_like(self.array(name)) for name in names}
        else:
            if self._gradients is None:
                self._gradients = FlatArrays(self._shapes())
                self.vectors["gradients"] = self._gradients.vector
            views = self._gradients.views
        self.gradients |= {name: views[name] for name in names if name not in self.gradients}

    def allocate_moments(self, group: OptimizerGroup, inputs: Mapping[str, str]) -> None:
        """Makes vectors of the moments of an optimizer, unless another one has made them.

        Args:
            group: The state of the optimizer.
            inputs: The name of a moment in the group, by the name of its vector.
        """
        for key, moment in inputs.items():
            if key not in self.vectors:
                flat = FlatArrays(self._shapes())
                flat.set({name: arrays[moment] for name, arrays in group.momentums.items()})
                self.vectors[key] = flat.vector
                for name, arrays in group.momentums.items():
                    arrays[moment] = flat.views[name]

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.checkpoint.trainable.items()}

    def _flatten_parameters(self) -> None:
        """Makes the trainable parameters views of one vector, if all are float32."""
        trainable = self.checkpoint.trainable
        if all(array.dtype == np.float32 for array in trainable.values()):
            flat = FlatArrays(self._shapes())
            flat.set(trainable)
            self.vectors["params"] = flat.vector
            trainable.update(flat.views)

    def require_values(self) -> None:
        """Raises `OrtTrainingError` if the state is nominal."""
        if self.checkpoint.nominal:
            raise OrtTrainingError(
                "the state is of a nominal checkpoint, which has no values; load them with "
                "Module.copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
