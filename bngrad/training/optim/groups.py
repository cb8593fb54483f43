"""Parameter groups: hyperparameters that differ from weight to weight."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from bngrad.arguments import is_count, require_names
from bngrad.errors import InputError
from bngrad.graph.name_messages import unknown_name
from bngrad.training.optim.ranges import require_range

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


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
        values = {"learning_rate_scale": self.learning_rate_scale, "weight_decay": self.weight_decay}
        require_range(self, **{name: value for name, value in values.items() if value is not None})
        behind = self.updates_behind
        if behind is not None and not is_count(behind, 0):
            raise InputError(f"ParameterGroup: updates_behind is {behind!r}; expected an int, at least 0")

    def selects(self, name: str, rank: int) -> bool:
        """Tests whether a weight belongs to the group."""
        by_name = name in self.names or any(fnmatchcase(name, pattern) for pattern in self.names)
        return by_name or (self.max_rank is not None and rank <= self.max_rank)


class WeightOptions(NamedTuple):
    """The hyperparameters that may differ from weight to weight."""

    learning_rate_scale: float
    weight_decay: float
    updates_behind: int = 0


def options_of_weights(
    weight_decay: float,
    groups: Sequence[ParameterGroup],
    ranks: Mapping[str, int],
    *,
    without_decay: Collection[str] = (),
) -> dict[str, WeightOptions]:
    """The hyperparameters of each weight.

    Args:
        weight_decay: The weight decay of weights without one in a group.
        groups: The groups.
        ranks: The rank of every weight, by its name.
        without_decay: Weights without a decay, unless a group has one for them.

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
        default = 0.0 if name in without_decay else weight_decay
        result[name] = WeightOptions((*scales, 1.0)[0], (*decays, default)[0], (*behind, 0)[0])
    return result
