"""Adam with decoupled weight decay."""

from __future__ import annotations

from dataclasses import dataclass, field

from bngrad.training.described import described
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

    weight_decay: float = field(default=0.01, metadata=described("Weight decay"))
