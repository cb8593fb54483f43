"""Converts an optimizer of PyTorch to that of a training step, and its state in both directions.

The formulas are the same (see `training.optim`), so training can move between PyTorch and a training
step after any update. The learning rate is an input of each update in both, and not part of the state.
"""

from __future__ import annotations

from dataclasses import replace
from glob import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bngrad.errors import InputError
from bngrad.graph.name_messages import listed
from bngrad.torch.optimizer_groups import (
    as_number,
    common_optimizer,
    groups_behind,
    learning_rates,
    parameter_groups,
    trained_groups,
)
from bngrad.torch.optimizer_state import count_tensor, to_array, to_tensor
from bngrad.training.optimizers import Optimizer, ParameterGroup, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import torch
    from numpy.typing import NDArray
    from torch import nn

    from bngrad.training.step_info import StepInfo
    from bngrad.training.training_step import TrainingStep

    Array = NDArray[Any]


class TorchOptimizer(NamedTuple):
    """An optimizer of PyTorch in the terms of a training step."""

    optimizer: Optimizer
    """Its hyperparameters; the weight decay is that of the first group."""
    groups: tuple[ParameterGroup, ...]
    """The weights whose learning rate or weight decay is not that of the first group, and those that the optimizer
    has updated less often than others."""
    learning_rate: float
    """The learning rate of the first group."""
    weights: list[str]
    """The parameters that it trains, in the order of the module's `named_parameters`."""
    state: dict[str, Array]
    """Its state as ``<weight>/<slot>``, and the largest number of updates of a parameter, ``step``, if it counts
    them and there are any. A parameter without updates has no entries. The arrays are copies; for 16-bit
    parameters float32. `into_step` copies it to a training step's state."""

    def groups_of(self, weights: Iterable[str]) -> list[ParameterGroup]:
        """Returns the groups for a training step of some of the weights, which may have no names of others."""
        patterns = {escape(weight) for weight in weights}
        named = [(group, [name for name in group.names if name in patterns]) for group in self.groups]
        return [replace(group, names=names) for group, names in named if names]


def from_torch(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> TorchOptimizer:
    """Reads an optimizer of PyTorch. It is not changed.

    Groups without parameters that require a gradient are ignored: the first group is the first of the others. The
    learning rates of the groups are read as multiples of that of the first, and keep these ratios; where a
    scheduler has set all to 0, those of their ``initial_lr``.

    Args:
        optimizer: An optimizer of one of the classes `training.optim.base.Optimizer.torch`. An `Adam` with
            ``decoupled_weight_decay`` is an AdamW.
        parameters: The module's parameters, as `named_parameters` has them.

    Raises:
        InputError: A training step does not have the formula of the optimizer or its hyperparameters, a parameter
            is not one of the module or of an unsupported type, or the state is incomplete.
    """
    groups = trained_groups(optimizer, parameters)
    ours = common_optimizer(groups)
    trained = {name for group in groups for name in group.names}
    weights = {name: parameter for name, parameter in parameters.items() if name in trained}
    counts = _read_counts(optimizer, ours, weights)
    return TorchOptimizer(
        ours,
        (*parameter_groups(groups, ours, parameters), *groups_behind(counts)),
        learning_rates(groups)[0],
        list(weights),
        _read_state(optimizer, ours, weights, counts),
    )


def into_step(torch_optimizer: TorchOptimizer, step: TrainingStep) -> TrainingStep:
    """Returns a training step that starts from the state of an optimizer of PyTorch.

    A momentum buffer that PyTorch has not created yet is zeros in the step, with the same next update.

    Args:
        torch_optimizer: The optimizer.
        step: A step with its hyperparameters and groups; it is not changed. Parameters of the optimizer that the
            step does not train are ignored.

    Raises:
        InputError: The step has another optimizer or other numbers of updates, trains weights that the optimizer
            does not have, or was built with ``defaults``.
    """
    info = step.info
    _require_same_optimizer(info, torch_optimizer.optimizer, [torch_optimizer.optimizer.weight_decay])
    _require_weights(info, torch_optimizer.weights)
    inputs = {*info.state, "" if info.flat is None else info.flat.input}
    if any(tensor.name in inputs for tensor in step.model.graph.initializer):
        raise InputError("the inputs of the training step have defaults; build it with defaults=False")
    count, state = torch_optimizer.state.get("step"), dict(step.state)
    for weight in info.names("weight"):
        _require_count(info, weight, torch_optimizer.groups_of([weight]))
        for slot, name in _slot_names(info, weight, torch_optimizer.optimizer):
            state[name] = torch_optimizer.state.get(f"{weight}/{slot}", state[name])
    if count is not None:
        state |= dict.fromkeys(info.names("step"), count)
    return replace(step, state=info.require_state(state))


def into_torch(
    state: Mapping[str, Array],
    info: StepInfo,
    optimizer: torch.optim.Optimizer,
    parameters: Mapping[str, nn.Parameter],
) -> None:
    """Writes the state of a training step's weights into an optimizer of PyTorch, by its `load_state_dict`.

    The values of the parameters stay, as do the options of the groups, such as the learning rate, and the state of
    parameters that the step does not train. For a 16-bit parameter the state is rounded to its type.

    Args:
        state: The state in the named layout, as `Trainer.state_dict` returns it.
        info: The metadata of the step.
        optimizer: An optimizer with the hyperparameters of the step. Parameter groups are not in the metadata; the
            weight decay of the step has to be that of one of the optimizer's groups.
        parameters: The module's parameters, as `named_parameters` has them.

    Raises:
        InputError: The state is not that of the step or of the parameters, or has the gradients of an incomplete
            update, the optimizer is another one or lacks a weight, or a 16-bit type cannot hold a value. The
            optimizer is unchanged.
    """
    groups = trained_groups(optimizer, parameters)
    ours = common_optimizer(groups)
    _require_same_optimizer(info, ours, [group.number("weight_decay") for group in groups])
    _require_weights(info, [name for group in groups for name in group.names])
    arrays = info.require_state(state)
    calls = sum(int(arrays[name]) for name in info.names("micro_step"))
    if calls:
        raise InputError(
            f"the state has the gradients of {calls} of the {info.accumulate} calls of an update, which PyTorch's "
            "optimizers do not keep; expected a state after an update "
            f"(calls until the next one: {info.accumulate - calls})"
        )
    saved = optimizer.state_dict()
    pairs = zip(optimizer.param_groups, saved["param_groups"], strict=True)
    keys = {
        id(p): key for group, packed in pairs for p, key in zip(group["params"], packed["params"], strict=True)
    }
    for weight in info.names("weight"):
        parameter = parameters[weight]
        new = {}
        for slot, name in _slot_names(info, weight, ours):
            # With a second moment of 0, an update has the size of the gradient divided by eps.
            nonzero = slot == ours.second_moment
            new[slot] = to_tensor(arrays[name], parameter, f"{slot} of {weight!r}", nonzero=nonzero)
        if ours.torch_counts:
            count = sum(int(arrays[name]) for name in info.names("step"))
            new["step"] = count_tensor(count - (info.state[weight].updates_behind or 0))
        if new:
            saved["state"][keys[id(parameter)]] = new
    optimizer.load_state_dict(saved)


def _read_counts(
    optimizer: torch.optim.Optimizer, ours: Optimizer, weights: Mapping[str, nn.Parameter]
) -> dict[str, int]:
    """The number of updates of each weight, if they matter."""
    counts = {}
    for weight, parameter in weights.items() if ours.torch_counts else ():
        held = optimizer.state.get(parameter, {})  # optimizer.state[parameter] would make an entry
        missing = [slot for slot in ("step", *ours.slots) if held.get(slot) is None] if held else []
        if missing:
            raise InputError(
                f"the optimizer's state of {weight!r} lacks {listed(missing)}; expected that of {ours.torch}"
            )
        counts[weight] = _count(weight, held["step"]) if held else 0
    return counts


def _read_state(
    optimizer: torch.optim.Optimizer,
    ours: Optimizer,
    weights: Mapping[str, nn.Parameter],
    counts: Mapping[str, int],
) -> dict[str, Array]:
    state: dict[str, Array] = {}
    for weight, parameter in weights.items():
        held = optimizer.state.get(parameter, {})
        for slot in ours.slots:
            if held.get(slot) is not None:
                state[f"{weight}/{slot}"] = to_array(held[slot], parameter, f"{slot} of {weight!r}")
    if state and counts:
        state["step"] = np.array(max(counts.values()), np.int64)
    return state


def _count(weight: str, step: object) -> int:
    count = as_number(f"step of {weight!r}", step)
    if not (count >= 0 and count.is_integer()):
        raise InputError(f"step of {weight!r} is {count}; expected a number of updates")
    return int(count)


def _require_count(info: StepInfo, weight: str, groups: Sequence[ParameterGroup]) -> None:
    """Checks that a step has the number of updates that a weight is behind in its groups."""
    behind = [group.updates_behind for group in groups if group.updates_behind is not None]
    expected, held = (*behind, 0)[0], info.state[weight].updates_behind or 0
    if held != expected:
        raise InputError(
            f"{weight!r} is {expected} updates behind in the optimizer, and {held} in the training step; expected "
            "a step of the optimizer's groups"
        )


def _slot_names(info: StepInfo, weight: str, optimizer: Optimizer) -> Iterator[tuple[str, str]]:
    """The slots of a weight, and the tensors of the state that hold them: the last ones that belong to it."""
    names = [name for name, entry in info.state.items() if entry.weight == weight]
    yield from zip(optimizer.slots, names[len(names) - len(optimizer.slots) :], strict=True)


def _require_same_optimizer(info: StepInfo, ours: Optimizer, decays: Sequence[float]) -> None:
    """Checks that a step has the hyperparameters of an optimizer, and one of some weight decays."""
    for name, value in hyperparameters(ours).items():
        values = decays if name == "weight_decay" else [value]
        if info.optimizer.get(name) not in values:
            what = "kind" if name == "name" else name
            raise InputError(
                f"the {what} of the optimizer is {' or '.join(map(str, dict.fromkeys(values)))}, and that of the "
                f"training step is {info.optimizer.get(name)}; expected the same"
            )


def _require_weights(info: StepInfo, names: Sequence[str]) -> None:
    missing = [name for name in info.names("weight") if name not in names]
    if missing:
        raise InputError(
            f"the training step trains {listed(missing)}, and the optimizer does not; expected an optimizer of "
            "all its weights"
        )
