"""Converts the options of an optimizer of PyTorch to those of a training step."""

from __future__ import annotations

import math
from dataclasses import fields
from glob import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bngrad.arguments import require_number
from bngrad.errors import InputError
from bngrad.graph.name_messages import phrase
from bngrad.opset.known_shapes import shape_text
from bngrad.torch.optimizer_state import STATE_TYPES
from bngrad.training.optim.adam import Adam
from bngrad.training.optim.adamw import AdamW
from bngrad.training.optimizers import OPTIMIZERS, Optimizer, ParameterGroup, hyperparameters

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from dataclasses import Field

    from torch import nn

_KINDS = {getattr(torch.optim, kind.torch): kind for kind in OPTIMIZERS.values() if kind.torch is not None}
"""The optimizers of training steps, by the classes of PyTorch with their formulas."""

_DEFAULTS = {"amsgrad": False, "maximize": False, "differentiable": False, "dampening": 0}
"""The only values of options of `torch.optim` that a training step supports: others change the formula."""

_INSTEAD = "clip_norm= clips gradients, and code that changes weights belongs between the calls of Trainer.step"
_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_GLOBAL_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def kinds_text() -> str:
    """The classes of PyTorch whose formulas training steps have, as a phrase: SGD, Adam or AdamW."""
    return phrase([kind.__name__ for kind in _KINDS], "or")


class Group(NamedTuple):
    """A group of an optimizer of PyTorch with parameters to train."""

    where: str
    """The group's name in messages."""
    kind: type[torch.optim.Optimizer]
    options: Mapping[str, Any]
    names: list[str]
    """Its parameters that require a gradient."""

    def number(self, option: str) -> float:
        """Returns an option that is a number or a tensor of one."""
        return as_number(f"{option} of {self.where}", self.options[option])


def trained_groups(optimizer: Any, parameters: Mapping[str, nn.Parameter]) -> list[Group]:  # noqa: ANN401
    """Returns the groups with parameters that require a gradient.

    Raises:
        InputError: There are none, a training step does not have the formula of the optimizer, or a parameter is
            not one of the module or is of an unsupported type.
    """
    kind = type(optimizer)
    # Not by isinstance: a subclass may change the formula.
    if kind not in _KINDS:
        raise InputError(
            f"the optimizer is a {kind.__module__}.{kind.__qualname__}; expected a torch.optim.{kinds_text()}, "
            "not a subclass"
        )
    if any(getattr(optimizer, hooks, None) for hooks in _HOOKS):
        raise InputError(
            "the optimizer has step hooks, which a training step does not run; remove them: " + _INSTEAD
        )
    if any(getattr(import_module("torch.optim.optimizer"), hooks, None) for hooks in _GLOBAL_HOOKS):
        raise InputError("all optimizers have step hooks, which a training step does not run; remove them")
    if _is_replaced(optimizer):
        raise InputError(
            "the optimizer has a step of its own (optimizer.step was assigned), which a training step does "
            "not run; delete it: " + _INSTEAD
        )
    names = {id(parameter): name for name, parameter in parameters.items()}
    groups = []
    for index, options in enumerate(optimizer.param_groups):
        trained = [parameter for parameter in options["params"] if parameter.requires_grad]
        group = Group(f"group {index} of the optimizer", kind, options, [])
        for parameter in trained:
            if id(parameter) not in names:
                raise InputError(
                    f"{group.where} has a parameter of shape {shape_text(parameter.shape)} that the module does "
                    "not have; expected parameters of the module"
                )
            group.names.append(names[id(parameter)])
            _require_type(group.names[-1], parameter)
        if trained:
            _require_defaults(group)
            groups.append(group)
    if not groups:
        raise InputError("the optimizer has no parameter that requires a gradient; expected one to train")
    return groups


def _require_type(name: str, parameter: torch.Tensor) -> None:
    if parameter.layout != torch.strided:
        raise InputError(f"parameter {name!r} has the layout {parameter.layout}; expected a dense parameter")
    if parameter.dtype not in STATE_TYPES:
        raise InputError(
            f"parameter {name!r} is {parameter.dtype}; expected one of {', '.join(map(str, STATE_TYPES))}"
        )


def _is_replaced(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether an optimizer's step is not that of its class, which schedulers of PyTorch may wrap."""
    step = vars(optimizer).get("step")
    wrapped = getattr(step, "__wrapped__", None) if hasattr(step, "_wrapped_by_lr_sched") else step
    return step is not None and wrapped is not type(optimizer).step


def _require_defaults(group: Group) -> None:
    for option, default in _DEFAULTS.items():
        value = group.options.get(option, default)
        if value != default:
            raise InputError(
                f"{group.where} has {option}={value}; expected {option}={default}, which a training step has"
            )
    if group.options.get("base_momentum") != group.options.get("max_momentum"):
        raise InputError(
            f"{group.where} has a schedule of momentum or betas, which are constants of a training step; create "
            "the scheduler (OneCycleLR, CyclicLR) with cycle_momentum=False, or, if it has ended, delete "
            "'base_momentum' and 'max_momentum' from optimizer.param_groups"
        )


def common_optimizer(groups: Sequence[Group]) -> Optimizer:
    """Returns the optimizer with the hyperparameters that all groups share, and the weight decay of the first.

    Raises:
        InputError: Groups differ in another hyperparameter, or one is out of range.
    """
    first = _optimizer_of(groups[0])
    expected = hyperparameters(first)
    for group in groups[1:]:
        for name, value in hyperparameters(_optimizer_of(group)).items():
            if value != expected[name] and name != "weight_decay":
                raise InputError(
                    f"{group.where} has {name} {value}, and {groups[0].where} has {expected[name]}; expected one "
                    "value: groups of a training step may differ only in learning rate and weight decay"
                )
    return first


def _optimizer_of(group: Group) -> Optimizer:
    kind = _KINDS[group.kind]
    if issubclass(kind, Adam):
        kind = AdamW if group.options.get("decoupled_weight_decay", kind is AdamW) else Adam
    return kind(**{field.name: _hyperparameter(group, field) for field in fields(kind)})


def _hyperparameter(group: Group, field: Field[Any]) -> Any:  # noqa: ANN401
    """A hyperparameter of a step from the options of a group."""
    if field.name in ("beta1", "beta2"):
        return as_number(f"betas of {group.where}", group.options["betas"][int(field.name[-1]) - 1])
    return bool(group.options[field.name]) if isinstance(field.default, bool) else group.number(field.name)


def learning_rates(groups: Sequence[Group]) -> list[float]:
    """Returns the learning rate of each group; if all are 0, as at the start of a warm-up, the initial ones.

    Raises:
        InputError: A rate is out of range, or the others are not multiples of the first.
    """
    rates = [group.number("lr") for group in groups]
    for group, rate in zip(groups, rates, strict=True):
        if not 0 <= rate < math.inf:
            raise InputError(f"lr of {group.where} is {rate}; expected a finite number, at least 0")
    # A scheduler that starts at 0 keeps the ratios in initial_lr.
    with_initial = [group for group in groups if "initial_lr" in group.options]
    if not any(rates) and with_initial:
        without = [group.where for group in groups if "initial_lr" not in group.options]
        if without:
            raise InputError(
                f"lr of all groups is 0, and {without[0]} has no initial_lr; expected one in each group, as a "
                "scheduler sets it that is created after the last add_param_group"
            )
        rates = [group.number("initial_lr") for group in groups]
    if rates[0] == 0 and any(rates):
        raise InputError(
            f"lr of {groups[0].where} is 0, and a training step has those of other groups as multiples of it; "
            "expected a number above 0"
        )
    return rates


def parameter_groups(
    groups: Sequence[Group], optimizer: Optimizer, parameters: Mapping[str, nn.Parameter]
) -> Iterator[ParameterGroup]:
    """Returns the groups whose learning rate or weight decay is not that of the first, relative to it.

    Raises:
        InputError: A learning rate is unsuitable, or no pattern matches only the name of a parameter.
    """
    rates = learning_rates(groups)
    for group, rate in zip(groups, rates, strict=True):
        decay = group.number("weight_decay")
        scale = None if rate == rates[0] else rate / rates[0]
        if scale is None and decay == optimizer.weight_decay:
            continue
        patterns = [escape(name) for name in group.names]
        for name, pattern in zip(group.names, patterns, strict=True):
            if pattern != name and pattern in parameters:
                raise InputError(f"no pattern matches parameter {name!r} and not {pattern!r}; rename one of them")
        yield ParameterGroup(
            names=patterns,
            learning_rate_scale=scale,
            weight_decay=None if decay == optimizer.weight_decay else decay,
        )


def groups_behind(counts: Mapping[str, int]) -> Iterator[ParameterGroup]:
    """Returns the groups of weights that have had fewer updates than others.

    Args:
        counts: The number of updates of each weight.
    """
    most = max(counts.values(), default=0)
    names: dict[int, list[str]] = {}
    for name, count in counts.items():
        names.setdefault(most - count, []).append(escape(name))
    for behind, patterns in names.items():
        if behind:
            yield ParameterGroup(names=patterns, updates_behind=behind)


def as_number(what: str, value: object) -> float:
    """Returns a number, or that of a tensor of one element, as a float.

    Raises:
        InputError: The value is not a number.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.detach().item()
    return require_number(what, value)
