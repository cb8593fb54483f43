"""Ghost batches: batch norms in training mode that normalize groups of N samples, each by its own statistics.

::

    Y, new_mean, new_var = BatchNormalization(X, scale, bias, mean, var)                        X of B samples
    =>  grouped = Reshape(X, [B / N, N, C, S])
        Z, means, vars, ... = BatchNormalizationTraining(grouped, Expand(scale, [B / N, C]), ..., axes = [1, 3])
        Y = Reshape(Z, Shape(X));  new_mean = ReduceMean(means, 0);  new_var = ReduceMean(vars, 0)

So a new running statistic is momentum * old + (1 - momentum) * the mean of the groups' statistics. In inference
mode the batch norm is an ordinary one: the metadata of its node record N.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NoReturn

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.batch_norm_terms import collapsed_shape
from bngrad.graph.batch_norms import GHOST, is_training_batch_norm
from bngrad.graph.node_makers import NodesBefore
from bngrad.graph.node_reader import read_attribute, static_shape
from bngrad.graph.nodes import ORIGIN, describe, owner
from bngrad.graph.shapes import dimension_of, known_dimension
from bngrad.opset.functions import DOMAIN, VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bngrad.graph.fresh_names import Names


def ghost_size(node: ir.Node) -> int | None:
    """Returns the number of samples that get statistics of their own; None for the whole batch.

    Raises:
        ModelError: What the metadata record is no such number.
    """
    text = node.metadata_props.get(GHOST)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and int(text)):
        raise ModelError(f"{describe(node)} has ghost batches of {text!r} samples; expected a number of 1 or more")
    return int(text)


def with_ghost_batches(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Returns the batch norms that normalize ghost batches, if they are in training mode."""
    return [node for node in nodes if ghost_size(node) is not None]


def refuse_ghost_batches(nodes: Iterable[ir.Node], unsupported: str) -> None:
    """Refuses ghost batches where they would be ignored.

    Args:
        nodes: Nodes of a graph.
        unsupported: The subject that does not support them, for the message.

    Raises:
        ModelError: A batch norm in training mode has them.
    """
    for node in with_ghost_batches(nodes):
        if node.domain == DOMAIN or is_training_batch_norm(node):
            _refuse(node, f"{unsupported} does not support; remove them with bngrad batchnorm --ghost 0 (ghost=)")


def _refuse(node: ir.Node, text: str) -> NoReturn:
    raise ModelError(f"{describe(node)} has ghost batches of {ghost_size(node)} samples, which {text}")


def split_batch(node: ir.Node, names: Names, *, unbiased: bool) -> None:
    """Replaces a batch norm in training mode by one that normalizes its ghost batches.

    Args:
        node: A BatchNormalization of a model of opset 18 or newer.
        names: The source of new names.
        unbiased: Whether the running variance is updated with the unbiased variance.

    Raises:
        ModelError: The batch is known, and no multiple of the ghost batches.
    """
    size, make = ghost_size(node), NodesBefore(node, names, str(node.name))
    x, scale = node.inputs[:2]
    assert size is not None, "the caller selects them"  # noqa: S101
    assert x is not None, "onnx's checker refuses a node without it"  # noqa: S101
    assert scale is not None, "onnx's checker refuses a node without it"  # noqa: S101
    axes, first = make.int64([1, 3]), make.int64([0])  # before all that depends on the known dimensions
    batch = known_dimension(x, 0)
    if batch is not None and batch % size:
        _refuse(node, f"do not divide its batch of {batch} samples")
    shape = None if x.shape is None else x.shape[1:]
    if shape and all(isinstance(length, int) for length in shape):
        target = make.int64([-1, size, shape[0], prod(shape[1:])])
    else:
        channels_and_space = make.op("Gather", collapsed_shape(make, x), make.int64([1, 2]))
        target = make.op("Concat", make.int64([-1, size]), channels_and_space, axis=0)
    grouped = make.op("Reshape", x, target)
    grouped.type, grouped.shape = x.type, ir.Shape([None if batch is None else batch // size, size, None, None])
    channels = static_shape(scale)
    if batch is not None and channels is not None:
        of_groups = make.int64([batch // size, *channels])
    else:
        of_groups = make.op("Concat", dimension_of(make, grouped, 0), make.op("Shape", scale), axis=0)
    parameters = [make.op("Expand", value, of_groups) for value in node.inputs[1:5] if value is not None]
    results = make.bngrad(
        "BatchNormalizationTraining",
        grouped,
        *parameters,
        axes=axes,
        epsilon=read_attribute(node, "epsilon", 1e-5),
        momentum=read_attribute(node, "momentum", 0.9),
        unbiased_running_var=int(unbiased),
    )
    new = [make.op("Reshape", results[0], make.op("Shape", x), allowzero=1)]
    new += [make.op("ReduceMean", value, first, keepdims=0) for value in results[1:3]]
    split = results[0].producer()
    assert split is not None, "it was made here"  # noqa: S101
    split.name, split.meta[ORIGIN], split.metadata_props[GHOST] = node.name, describe(node), str(size)
    owner(node).opset_imports.setdefault(DOMAIN, VERSION)
    outputs = [value for value in node.outputs if value.name]
    replacing = [value for old, value in zip(node.outputs, new, strict=False) if old.name]
    ir.convenience.replace_nodes_and_values(owner(node), node, [node], [], outputs, replacing)
