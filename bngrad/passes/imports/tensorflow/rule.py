"""A rule of an op of TensorFlow: a lowering with the names of the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.passes.lower.lowering import Lowering

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Rule(Lowering):
    """The rewrite of an op of TensorFlow."""

    inputs: Sequence[str] = ()
    """TensorFlow's names of the inputs, all of which a node has; empty for any number of them."""
