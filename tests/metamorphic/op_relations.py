"""Relations that must hold between two runs of an op, whatever the right numbers are.

A relation is a function of a problem that returns comparisons. Arrays must be equal bit for bit if the same
operations run in the same order. Otherwise the tolerance is `op_rounding.ROUNDINGS` rounding errors of the sum of
absolute terms. All relations follow from the formulas in bngrad/opset/functions.py, without a second
implementation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from metamorphic import op_same_bits, op_same_sums, op_slopes
from metamorphic.op_problems import OPS, PATTERNS, SMALL, TYPES, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from metamorphic.comparisons import Comparison


class Relation(NamedTuple):
    """A relation, with the ops, patterns and types for which it holds."""

    compare: Callable[..., list[Comparison]]
    ops: tuple[str, ...] = tuple(OPS)
    patterns: tuple[str, ...] = SMALL
    types: tuple[str, ...] = tuple(TYPES)


_GRADS = ("grad-training", "grad-frozen", "relu-grad-training", "relu-grad-frozen")
_SECOND = ("grad-grad-training", "grad-grad-frozen")
_FORWARD = ("training-unbiased", "training-biased")
_ALL = tuple(pattern for pattern in PATTERNS if pattern != "non-temporal")

RELATIONS = {
    "non-temporal stores": Relation(
        op_same_sums.non_temporal_stores,
        ops=("grad-training", "training-biased"),
        patterns=("non-temporal",),
        types=("float",),
    ),
    "interfaces": Relation(op_same_sums.interfaces, patterns=("NCHW", "NHWC")),
    "far forward": Relation(op_same_sums.far_forward, ops=_FORWARD, types=("float", "double")),
    "constant channels": Relation(op_same_sums.constant_channels),
    "shifted gradient": Relation(
        op_same_sums.shifted_gradient, ops=("grad-training", "grad-grad-training"), types=("float", "double")
    ),
    "differences": Relation(op_slopes.differences, ops=("grad-training",), types=("double",)),
    "second slopes": Relation(op_slopes.second_slopes, ops=_SECOND, types=("double",)),
    "adjoint": Relation(op_slopes.adjoint, ops=_SECOND),
    "orthogonal": Relation(op_same_sums.orthogonal, ops=("grad-training", "relu-grad-training"), patterns=_ALL),
    "normalized": Relation(op_same_sums.normalized, ops=_FORWARD, patterns=_ALL),
    "running values": Relation(op_same_sums.running_values, ops=_FORWARD),
    "halves": Relation(
        op_same_sums.halves, ops=("grad-frozen", "relu-grad-frozen", "grad-grad-frozen"), patterns=_ALL
    ),
    "relu is a mask": Relation(op_same_bits.relu_is_a_mask, ops=_GRADS[2:]),
    "statistics alone": Relation(op_same_bits.statistics_alone, ops=("statistics",), patterns=_ALL),
    "scaled gradient": Relation(op_same_bits.scaled_gradient, ops=(*_GRADS, *_SECOND), types=("float", "double")),
    "scaled dY of the second": Relation(op_same_bits.scaled_dy_of_second, ops=_SECOND, types=("float", "double")),
    "other units": Relation(op_same_bits.other_units, types=("float", "double")),
    "scaled scale": Relation(op_same_bits.scaled_scale, ops=_GRADS, types=("float", "double")),
    "far from zero": Relation(op_same_bits.far_from_zero, ops=(*_GRADS, *_SECOND), types=("float", "double")),
    "far statistics": Relation(
        op_same_sums.far_statistics,
        ops=(*_FORWARD, "statistics"),
        patterns=("NCHW", "NHWC", "short-rows"),
        types=("double",),
    ),
    "old running values": Relation(op_same_bits.old_running_values, ops=_FORWARD),
    "half of the channels": Relation(
        op_same_sums.half_of_the_channels, patterns=("NCHW", "NHWC", "NC", "wide", "folded")
    ),
    "permuted channels": Relation(op_same_sums.permuted_channels, patterns=(*SMALL, "wide")),
    "permuted columns": Relation(
        op_same_bits.permuted_columns, patterns=("NHWC", "NC", "per-activation", "one-element-rows", "wide")
    ),
    "doubled batch": Relation(op_same_sums.doubled_batch),
    "permuted batch": Relation(op_same_sums.permuted_batch, patterns=(*SMALL, "many-rows", "folded")),
    "transposed layout": Relation(op_same_sums.transposed_layout, patterns=(*SMALL, "many-rows")),
    "twice": Relation(op_same_bits.twice, patterns=("NCHW", "folded")),
    "threads": Relation(
        op_same_bits.threads, patterns=("many-rows", "long-rows", "folded", "wide", "wide-and-long")
    ),
}


OF_FUNCTIONS = (
    "far forward",
    "constant channels",
    "shifted gradient",
    "differences",
    "second slopes",
    "adjoint",
    "orthogonal",
    "normalized",
    "running values",
    "scaled gradient",
    "other units",
    "far from zero",
    "far statistics",
    "doubled batch",
)
"""The relations that the functions of the ops have to have, too, on `FEW` patterns."""

FEW = ("NCHW", "NHWC", "one-element-rows")


def problems(relation):
    """Returns the problems of a relation: (op name, pattern, type)."""
    return [(op, pattern, t) for op in relation.ops for pattern in relation.patterns for t in relation.types]


def comparisons(name, op, pattern, type_name, implementation="native"):
    """Returns the comparisons of a relation on one problem."""
    rng = np.random.default_rng(11)
    return RELATIONS[name].compare(draw(pattern, type_name, implementation=implementation), OPS[op], rng)
