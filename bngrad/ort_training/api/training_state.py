"""What the objects of one training run share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bngrad.ort_training.errors import OrtTrainingError

if TYPE_CHECKING:
    from bngrad.ort_training.checkpoint_file import Array, Checkpoint


class TrainingState:
    """The parameters, the state of the optimizer and the properties, and the gradients.

    Arrays never move: sessions and the user's views read and write the same memory.

    Args:
        checkpoint: What a checkpoint file holds.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.gradients: dict[str, Array] = {}
        """The gradient of each parameter that a module trains."""

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

    def allocate(self, name: str, dtype: np.dtype | None, shape: tuple[int, ...] | None, path: object) -> None:
        """Makes the value of a parameter of a nominal state, and checks that of another.

        Args:
            name: The parameter.
            dtype: Its dtype in the training graph, if known.
            shape: Its shape there, if known.
            path: The graph's file.

        Raises:
            OrtTrainingError: It is another one in the state, or unknown and needed.
        """
        held = self.checkpoint.trainable if name in self.checkpoint.trainable else self.checkpoint.frozen
        if self.checkpoint.nominal and not held[name].size:
            if dtype is None or shape is None:
                raise OrtTrainingError(f"{path}: the shape of its parameter {name!r} is unknown")
            held[name] = np.zeros(shape, dtype)
        array = held[name]
        if (dtype or array.dtype) != array.dtype or (array.shape if shape is None else shape) != array.shape:
            raise OrtTrainingError(
                f"parameter {name!r} is {array.dtype}{list(array.shape)} in the state, and "
                f"{dtype}{'' if shape is None else list(shape)} in {path}"
            )

    def require_values(self) -> None:
        """Raises `OrtTrainingError` if the state is nominal."""
        if self.checkpoint.nominal:
            raise OrtTrainingError(
                "the state is of a nominal checkpoint, which has no values; load them with "
                "Module.copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
