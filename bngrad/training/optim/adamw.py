"""Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass

from bngrad.option_fields import option
from bngrad.training.optim.adam import Adam


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, as `torch.optim.AdamW`.

    Args:
        beta1: See `Adam`; so are ``beta2`` and ``eps``.
        beta2: See `Adam`.
        eps: See `Adam`.
        weight_decay: The weight is multiplied by 1 - learning rate * ``weight_decay`` before the update.
    """

    name = "adamw"
    torch = "AdamW"
    decoupled = True

    weight_decay: float = option(0.01, "Weight decay")
