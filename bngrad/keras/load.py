"""Writes a state of a training step into the Keras model that it was made from."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed
from bngrad.keras.packages import import_keras
from bngrad.training.trainer import Trainer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def load_into(model: Any, trained: Trainer | Mapping[str, Any]) -> None:  # noqa: ANN401
    """Assigns the weights and moving statistics of a training step to the variables of a Keras model, by path.

    The paths of a model that was saved and loaded may lack its own name at the start; they match.
    Nothing is assigned if an array does not fit. Other variables of the model stay as they are.

    Args:
        model: The model, or one of the same structure and names, on any backend.
        trained: A trainer, or arrays by `variable.path`.

    Raises:
        InputError: An argument has a wrong type, an array does not belong to a variable, or has another shape; or
            a batch norm would get a part of its variables.
    """
    keras = import_keras()
    if not isinstance(model, keras.Model):
        raise InputError(f"model is a {type(model).__name__}; expected a keras.Model")
    arrays = _arrays(trained)
    variables = _matched([*arrays], model.variables)
    unknown = [path for path in arrays if path not in variables]
    if unknown:
        raise InputError(
            f"the model {model.name!r} has no variable {listed(unknown)}; expected the model that the step was "
            "made from, or one whose layers have the same names"
        )
    assigned = {id(variable) for variable in variables.values()}
    _require_statistics(keras, model, assigned, by_trainer=isinstance(trained, Trainer))
    for path, array in arrays.items():
        if tuple(variables[path].shape) != array.shape:
            raise InputError(
                f"{path!r} has shape {list(array.shape)}; expected {list(variables[path].shape)}, as in the model"
            )
    for path, array in arrays.items():
        variables[path].assign(array)


def _require_statistics(keras: Any, model: Any, assigned: set[int], *, by_trainer: bool) -> None:  # noqa: ANN401
    """Refuses a state with a part of a trained batch norm.

    Args:
        keras: The module.
        model: The model.
        assigned: The ids of the variables that get a value.
        by_trainer: Whether the state has all that was trained: one without statistics was frozen then.

    Raises:
        InputError: A moving statistic would stay as it is.
    """
    for layer in model._flatten_layers():  # noqa: SLF001 - no public name lists nested layers
        if not isinstance(layer, keras.layers.BatchNormalization) or not layer.built:
            continue
        moving = [layer.moving_mean, layer.moving_variance]
        has = [id(variable) in assigned for variable in moving]
        trained = layer.trainable and any(id(variable) in assigned for variable in layer.trainable_variables)
        if not all(has) and (any(has) or (trained and not by_trainer)):
            left = [variable.path for variable, there in zip(moving, has, strict=True) if not there]
            raise InputError(
                f"the state lacks {listed(left)}, and has other variables of the layer {layer.path!r}; expected "
                "the whole state of a training step, or its trainer"
            )


def _matched(paths: Sequence[str], variables: Sequence[Any]) -> dict[str, Any]:
    """Returns the variable of each path: the same path, or the only one with fewer or more parts at the start.

    A model that was saved and loaded has paths without its own name. Ambiguous paths are left out.
    """
    exact = {variable.path: variable for variable in variables}
    matches = {path: exact[path] for path in paths if path in exact}
    for path in paths:
        near = [v for v in variables if f"/{path}".endswith(f"/{v.path}") or f"/{v.path}".endswith(f"/{path}")]
        if path not in matches and len(near) == 1:
            matches[path] = near[0]
    owners = Counter(id(variable) for variable in matches.values())
    return {path: variable for path, variable in matches.items() if path in exact or owners[id(variable)] == 1}


def _arrays(trained: Trainer | Mapping[str, Any]) -> dict[str, Any]:
    """Returns the weights and running statistics of a state, without the optimizer state."""
    if isinstance(trained, Trainer):
        state = trained.state_dict()
        return {name: state[name] for name in trained.info.names("weight", "running_statistic")}
    return {name: np.asarray(array) for name, array in trained.items()}
