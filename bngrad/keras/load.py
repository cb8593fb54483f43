"""Writes a state of a training step into the Keras model that it was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed
from bngrad.keras.packages import import_keras
from bngrad.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_into(model: Any, trained: Trainer | Mapping[str, Any]) -> None:  # noqa: ANN401
    """Assigns the weights and moving statistics of a training step to the variables of a Keras model, by path.

    Nothing is assigned if an array does not fit. Other variables of the model stay as they are.

    Args:
        model: The model, or one of the same structure and names, on any backend.
        trained: A trainer, or arrays by `variable.path`.

    Raises:
        InputError: Something else is given, an array does not belong to a variable, or has another shape.
    """
    keras = import_keras()
    if not isinstance(model, keras.Model):
        raise InputError(f"model is a {type(model).__name__}; expected a keras.Model")
    variables = {variable.path: variable for variable in model.variables}
    arrays = _arrays(trained)
    unknown = [path for path in arrays if path not in variables]
    if unknown:
        raise InputError(
            f"the model {model.name!r} has no variable {listed(unknown)}; expected the model that the step was "
            "made of, or one whose layers have the same names"
        )
    for path, array in arrays.items():
        if tuple(variables[path].shape) != array.shape:
            raise InputError(
                f"{path!r} has shape {list(array.shape)}; expected {list(variables[path].shape)}, as in the model"
            )
    for path, array in arrays.items():
        variables[path].assign(array)


def _arrays(trained: Trainer | Mapping[str, Any]) -> dict[str, Any]:
    """The weights and running statistics of a state, without what the optimizer keeps."""
    if isinstance(trained, Trainer):
        state = trained.state_dict()
        return {name: state[name] for name in trained.info.names("weight", "running_statistic")}
    return {name: np.asarray(array) for name, array in trained.items()}
