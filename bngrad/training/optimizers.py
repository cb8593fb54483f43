"""The optimizers of a training step: their hyperparameters, and what they keep for each weight.

The formulas, in their order of operations, are those of `torch.optim`; `optimizer_updates` has them as ONNX. The
learning rate is no hyperparameter: the training step takes it as an input.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

from bngrad.arguments import require_choice, require_names, require_number
from bngrad.errors import InputError
from bngrad.graph.name_messages import unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent, as `torch.optim.SGD` with a dampening of 0.

    Args:
        momentum: The factor of the old momentum buffer; 0 for none.
        nesterov: Whether to use Nesterov momentum, which needs a momentum above 0.
        weight_decay: The L2 penalty: it times the weight is added to the gradient.

    Raises:
        InputError: A hyperparameter is out of range.
    """

    name: ClassVar[str] = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_range(self, momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and not self.momentum:
            raise InputError("sgd: nesterov is true and momentum is 0; expected a momentum above 0, such as 0.9")

    @property
    def slots(self) -> tuple[str, ...]:
        """What the state has for each weight, under PyTorch's names; it starts as zeros."""
        return ("momentum_buffer",) if self.momentum else ()


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam with an L2 penalty, as `torch.optim.Adam`.

    Args:
        beta1: The decay rate of the running mean of gradients.
        beta2: The decay rate of the running mean of squared gradients.
        eps: The term that is added to the denominator.
        weight_decay: The L2 penalty: it times the weight is added to the gradient.

    Raises:
        InputError: A hyperparameter is out of range.
    """

    name: ClassVar[str] = "adam"
    slots: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    """What the state has for each weight, under PyTorch's names; it starts as zeros."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _require_range(self, eps=self.eps, weight_decay=self.weight_decay)
        _require_range(self, below=1, beta1=self.beta1, beta2=self.beta2)


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`.

    Args:
        beta1: See `Adam`; so are ``beta2`` and ``eps``.
        beta2: See `Adam`.
        eps: See `Adam`.
        weight_decay: The weight is multiplied by 1 - learning rate * ``weight_decay`` before the update.
    """

    name: ClassVar[str] = "adamw"
    weight_decay: float = 0.01


Optimizer: TypeAlias = SGD | Adam

OPTIMIZERS: Mapping[str, type[Optimizer]] = {kind.name: kind for kind in (SGD, Adam, AdamW)}
"""The optimizers by their names."""


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Hyperparameters for some of the weights.

    If several groups select a weight, the first that has a value for a hyperparameter decides on it.

    Args:
        names: Names or patterns, such as ``*.bias``, of weights.
        max_rank: Also selects the weights of at most this rank: 1 selects biases and the scales of normalizations.
        learning_rate_scale: The learning rate of these weights divided by that of the step; None for 1.
        weight_decay: Their weight decay; None for that of the optimizer.
        updates_behind: How many updates the optimizer made before it had these weights, as of weights that were
            unfrozen. Adam and AdamW correct their moments by the updates since then. None for 0.

    Raises:
        InputError: The group selects nothing, or a hyperparameter is out of range.
    """

    names: Sequence[str] = ()
    max_rank: int | None = None
    learning_rate_scale: float | None = None
    weight_decay: float | None = None
    updates_behind: int | None = None

    def __post_init__(self) -> None:
        require_names(names=self.names)
        if not self.names and self.max_rank is None:
            raise InputError("a parameter group selects no weights; expected names= or max_rank=")
        given = {"learning_rate_scale": self.learning_rate_scale, "weight_decay": self.weight_decay}
        _require_range(self, **{name: value for name, value in given.items() if value is not None})
        behind = self.updates_behind
        if behind is not None and (isinstance(behind, bool) or not isinstance(behind, int) or behind < 0):
            raise InputError(f"ParameterGroup: updates_behind is {behind!r}; expected an int, at least 0")

    def selects(self, name: str, rank: int) -> bool:
        """Whether a weight belongs to the group."""
        by_name = name in self.names or any(fnmatchcase(name, pattern) for pattern in self.names)
        return by_name or (self.max_rank is not None and rank <= self.max_rank)


def make_optimizer(optimizer: str | Optimizer) -> Optimizer:
    """Returns an optimizer; a name stands for one with its default hyperparameters.

    Raises:
        InputError: There is no such optimizer.
    """
    if isinstance(optimizer, SGD | Adam):
        return optimizer
    require_choice("optimizer", optimizer, OPTIMIZERS)
    return OPTIMIZERS[optimizer]()


def hyperparameters(optimizer: Optimizer) -> dict[str, Any]:
    """The name and the hyperparameters of an optimizer, for the metadata of a step."""
    return {"name": optimizer.name, **asdict(optimizer)}


class WeightOptions(NamedTuple):
    """The hyperparameters that may differ from weight to weight."""

    learning_rate_scale: float
    weight_decay: float
    updates_behind: int = 0


def options_of_weights(
    optimizer: Optimizer, groups: Sequence[ParameterGroup], ranks: Mapping[str, int]
) -> dict[str, WeightOptions]:
    """The hyperparameters of each weight.

    Args:
        optimizer: The optimizer.
        groups: The groups.
        ranks: The rank of every weight, by its name.

    Raises:
        InputError: A name or pattern matches no weight.
    """
    for group in groups:
        for pattern in group.names:
            if not any(name == pattern or fnmatchcase(name, pattern) for name in ranks):
                raise InputError(unknown_name(pattern, ranks, "a trainable weight"))
    result = {}
    for name, rank in ranks.items():
        selecting = [group for group in groups if group.selects(name, rank)]
        scales = [g.learning_rate_scale for g in selecting if g.learning_rate_scale is not None]
        decays = [g.weight_decay for g in selecting if g.weight_decay is not None]
        behind = [g.updates_behind for g in selecting if g.updates_behind is not None]
        result[name] = WeightOptions((*scales, 1.0)[0], (*decays, optimizer.weight_decay)[0], (*behind, 0)[0])
    return result


def _require_range(owner: object, *, below: float = math.inf, **values: float) -> None:
    """Checks hyperparameters of a frozen dataclass, and makes floats of them."""
    for name, given in values.items():
        what = type(owner).__name__
        value = require_number(f"{what}: {name}", given)
        object.__setattr__(owner, name, value)
        if not 0 <= value < below:
            limit = "a finite number" if below == math.inf else f"a number below {below}"
            raise InputError(f"{what}: {name} is {value}; expected {limit}, at least 0")
