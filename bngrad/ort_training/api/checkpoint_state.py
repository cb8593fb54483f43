"""The state of a training run: parameters, gradients, the state of the optimizer, and the user's properties."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bngrad.ort_training.api.training_state import TrainingState
from bngrad.ort_training.checkpoint_file import Checkpoint, OptimizerGroup, read_checkpoint, write_checkpoint
from bngrad.ort_training.errors import OrtTrainingError, OrtTrainingTypeError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from bngrad.ort_training.checkpoint_file import Array, Property

_INT64 = range(-(2**63), 2**63)


def _text(name: object, of: str) -> str:
    if not isinstance(name, str):
        raise OrtTrainingTypeError(f"the name {name!r} of a {of} is a {type(name).__name__}; expected str")
    return name


class Parameter:
    """A parameter of the model; made by `Parameters`.

    Args:
        name: Its name.
        state: The state that has it.
    """

    def __init__(self, name: str, state: TrainingState) -> None:
        self._name = name
        self._state = state

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def data(self) -> Array:
        """The value: the memory that training reads and writes, not a copy of it."""
        return self._state.array(self._name)

    @data.setter
    def data(self, value: Array) -> None:
        self._state.assign(self._name, value)

    @property
    def grad(self) -> Array | None:
        """The gradient, as `data` is; None if it requires none, or no `Module` was made."""
        return self._state.gradients.get(self._name)

    @property
    def requires_grad(self) -> bool:
        """True if it is trained."""
        return self._name in self._state.checkpoint.trainable

    def __repr__(self) -> str:
        return f"Parameter(name={self.name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters of a state by name, sorted. Iterating gives pairs of a name and a `Parameter`.

    Args:
        state: The state.
    """

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def __getitem__(self, name: str) -> Parameter:
        """Returns a parameter.

        Raises:
            KeyError: There is none of that name.
            OrtTrainingTypeError: The name is not a str.
            OrtTrainingError: The state is nominal: it has no values yet.
        """
        self._require(name)
        return Parameter(name, self._state)

    def __setitem__(self, name: str, value: Array) -> None:
        """Copies an array of the same shape and dtype into a parameter.

        Raises:
            KeyError: There is none of that name.
            OrtTrainingTypeError: The name is not a str.
            OrtTrainingError: The array has another shape or dtype, or the state is nominal.
        """
        self._require(name)
        self._state.assign(name, value)

    def _require(self, name: str) -> None:
        if name not in self:
            raise KeyError(f"Parameter {name} not found.")
        self._state.require_values()

    def __contains__(self, name: object) -> bool:
        return _text(name, "parameter") in self._state.names()

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return ((name, self[name]) for name in self._state.names())

    def __len__(self) -> int:
        return len(self._state.names())

    def __repr__(self) -> str:
        return f"Parameters({', '.join(self._state.names())})"


class Properties:
    """The user's own values by name, sorted: int, float or str. Iterating gives pairs of a name and a value.

    Args:
        state: The state.
    """

    def __init__(self, state: TrainingState) -> None:
        self._values = state.checkpoint.properties

    def __getitem__(self, name: str) -> Property:
        """Returns a property.

        Raises:
            KeyError: There is none of that name.
            OrtTrainingTypeError: The name is not a str.
        """
        if _text(name, "property") not in self._values:
            raise KeyError(f"Property {name} not found.")
        return self._values[name]

    def __setitem__(self, name: str, value: Property) -> None:
        """Adds or changes a property.

        Raises:
            OrtTrainingTypeError: The name is not a str, or the value not an int, float or str.
            OrtTrainingError: It does not fit in 64 bits, or in the float32 that a float is stored as.
        """
        name = _text(name, "property")
        if isinstance(value, int | np.integer):
            value = int(value)
            fits, expected = value in _INT64, "an int of 64 bits"
        elif isinstance(value, float | np.floating):
            with np.errstate(over="ignore"):
                rounded = float(np.float32(value))
            fits, expected = math.isfinite(rounded) or not math.isfinite(value), "a number that float32 can hold"
            value = rounded
        elif isinstance(value, str):
            fits, expected = True, ""
        else:
            raise OrtTrainingTypeError(
                f"property {name!r} is a {type(value).__name__}; expected int, float or str"
            )
        if not fits:
            raise OrtTrainingError(f"property {name!r} does not fit; expected {expected}")
        self._values[name] = value

    def __contains__(self, name: object) -> bool:
        return _text(name, "property") in self._values

    def __iter__(self) -> Iterator[tuple[str, Property]]:
        return iter(sorted(self._values.items()))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({dict(self)})"


class CheckpointState:
    """The state of a training run; `load_checkpoint` creates it.

    Args:
        state: The content of a file, or the state inside another object of this class, which the two then share.

    Raises:
        OrtTrainingTypeError: It is something else.
    """

    def __init__(self, state: TrainingState | Checkpoint) -> None:
        if not isinstance(state, TrainingState | Checkpoint):
            raise OrtTrainingTypeError(f"Invalid argument for CheckpointState received {type(state)}")
        self._state = TrainingState(state) if isinstance(state, Checkpoint) else state
        self._parameters = Parameters(self._state)
        self._properties = Properties(self._state)

    @classmethod
    def load_checkpoint(cls, checkpoint_uri: str | bytes | os.PathLike[str]) -> CheckpointState:
        """Reads a checkpoint file, complete or nominal.

        Raises:
            OrtTrainingError: It cannot be read, or is not a checkpoint.
        """
        return cls(read_checkpoint(checkpoint_uri))

    @classmethod
    def save_checkpoint(
        cls,
        state: CheckpointState,
        checkpoint_uri: str | bytes | os.PathLike[str],
        include_optimizer_state: bool = False,
    ) -> None:
        """Writes a checkpoint file atomically.

        Args:
            state: The state.
            checkpoint_uri: The file.
            include_optimizer_state: Whether to write the moments and the step count of the optimizer, too.

        Raises:
            OrtTrainingError: The file cannot be written.
        """
        held = state._state.checkpoint
        groups = {
            name: OptimizerGroup(group.step, group.initial_learning_rate, dict(sorted(group.momentums.items())))
            for name, group in held.groups.items()
        }
        written = Checkpoint(
            dict(sorted(held.trainable.items())),
            dict(sorted(held.frozen.items())),
            held.nominal,
            groups if include_optimizer_state else {},
            dict(state.properties),
        )
        write_checkpoint(written, checkpoint_uri)

    @property
    def parameters(self) -> Parameters:
        """The parameters."""
        return self._parameters

    @property
    def properties(self) -> Properties:
        """The user's properties."""
        return self._properties
