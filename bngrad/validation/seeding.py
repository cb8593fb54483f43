"""Seeds for random ops, so that evaluations are reproducible."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import onnx_ir as ir

if TYPE_CHECKING:
    from collections.abc import Iterable

_SEEDED_SINCE = {
    "Bernoulli": 15,
    "Dropout": 12,
    "Multinomial": 7,
    "RandomNormal": 1,
    "RandomNormalLike": 1,
    "RandomUniform": 1,
    "RandomUniformLike": 1,
}
"""The random ops, and the opset since which they have the attribute ``seed``."""

_MODE = 2
"""The index of Dropout's input training_mode; without it, Dropout is the identity."""

_SEEDS = 1 << 24
"""The number of seeds: a seed is a float attribute of most ops, and integers below this are exact."""


def seed_random_ops(nodes: Iterable[ir.Node], opset: int) -> None:
    """Adds a seed to random ops that have none, derived from the name of their output.

    Two evaluations, and two graphs that have a node in common, then use the same random numbers.

    Args:
        nodes: The nodes of a model without functions, which are modified.
        opset: The version of the default domain.
    """
    for node in nodes:
        since = _SEEDED_SINCE.get(node.op_type) if node.domain == "" else None
        if since is None or opset < since or "seed" in node.attributes:
            continue
        seed = crc32(str(node.outputs[0].name).encode()) % _SEEDS
        integer = node.op_type == "Dropout"
        node.attributes["seed"] = ir.AttrInt64("seed", seed) if integer else ir.AttrFloat32("seed", float(seed))


def draws_random_numbers(node: ir.Node) -> bool:
    """Returns whether a node's outputs may be random; a Dropout's only if it has the input training_mode."""
    if node.domain != "" or node.op_type not in _SEEDED_SINCE:
        return False
    return node.op_type != "Dropout" or (len(node.inputs) > _MODE and node.inputs[_MODE] is not None)
