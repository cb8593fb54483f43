"""The sums of a graph's gradients and of its loss over the ranks, in buckets of a few megabytes.

::

    vector = Concat(Reshape(gradient, [-1]), ...);  total = AllReduce(vector);  gradients = Reshape(Split(total))

One message of megabytes takes less time than many of a few kilobytes, each of which has the latency of the
network. A bucket is reduced after the last of its gradients, and not after the last of all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING

import onnx_ir as ir

from bngrad.errors import ModelError
from bngrad.graph.fresh_names import Names
from bngrad.graph.node_makers import NodesAfter
from bngrad.graph.node_reader import dtype_of, static_shape
from bngrad.graph.same_values import origin
from bngrad.passes.distribute.collectives import Keys, is_collective

if TYPE_CHECKING:
    from collections.abc import Collection

BUCKET_BYTES = 4 << 20
"""The most bytes of a bucket of several gradients."""

_LOSS, _GRADIENTS = "loss", "gradients/"
"""The key of the loss, and the prefix of the keys of the buckets."""

_SUMMED_IN = {
    ir.DataType.FLOAT: ir.DataType.FLOAT,
    ir.DataType.DOUBLE: ir.DataType.DOUBLE,
    ir.DataType.FLOAT16: ir.DataType.FLOAT,
    ir.DataType.BFLOAT16: ir.DataType.FLOAT,
}
"""The type in which AllReduce takes gradients of each type."""


@dataclass
class _Bucket:
    """Gradients of one type that are reduced together."""

    dtype: ir.DataType
    values: list[ir.Value] = field(default_factory=list)
    size: int = 0
    """In bytes."""


class ReduceGradientsPass(ir.passes.InPlacePass):
    """Replaces outputs of the main graph by their sums over the ranks.

    Other readers of a value that is an output keep reading this rank's part.

    Guarantees: the outputs keep their names, types and order. Each AllReduce directly follows the last node that
    computes one of its gradients. Gradients are in buckets in the order in which the graph computes them: of up to
    `BUCKET_BYTES`, or of one gradient that is larger or whose size is not known. Those without elements stay.
    Refuses, with `ModelError`: an output that no node computes, and types other than floats.

    Args:
        gradients: The names of the outputs that are gradients.
        loss: The name of the output that is the loss, which is reduced by itself.
        bucket_bytes: The most bytes of a bucket of several gradients.
    """

    def __init__(
        self, gradients: Collection[str] = (), loss: str | None = None, *, bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        super().__init__()
        self._gradients, self._loss, self._bucket_bytes = frozenset(gradients), loss, bucket_bytes

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Runs the pass."""
        graph = model.graph
        left = [value for value in graph.outputs if not _is_reduced(value)]
        gradients = [value for value in left if value.name in self._gradients and _elements_of(value) != 0]
        losses = [value for value in left if value.name == self._loss]
        for value in (*gradients, *losses):
            _require_reducible(value)
        place = {value: index for index, node in enumerate(graph) for value in node.outputs}
        buckets = _buckets(sorted(gradients, key=place.__getitem__), self._bucket_bytes)
        buckets.sort(key=lambda bucket: place[bucket.values[-1]])
        names, keys = Names(model), Keys(model)
        for value in losses:
            _reduce(_Bucket(_SUMMED_IN[dtype_of(value)], [value]), keys.unique(_LOSS), graph, names)
        for number, bucket in enumerate(buckets):
            _reduce(bucket, keys.unique(f"{_GRADIENTS}{number}"), graph, names)
        return ir.passes.PassResult(model, modified=bool(buckets or losses))

    def ensures(self, model: ir.Model) -> None:
        """The outputs are reduced."""
        for value in model.graph.outputs:
            to_reduce = value.name == self._loss or (value.name in self._gradients and _elements_of(value) != 0)
            if to_reduce and not _is_reduced(value):
                raise ir.passes.PostconditionError(f"{value.name} is not reduced")


def _elements_of(value: ir.Value) -> int | None:
    """The number of elements of a value; None where it is not known."""
    shape = static_shape(value)
    return None if shape is None else prod(shape)


def _is_reduced(value: ir.Value) -> bool:
    """Tests whether a value is a sum over the ranks that this pass added."""
    node = origin(value, ("Cast", "Identity", "Reshape", "Split")).producer()
    if node is None or not is_collective(node) or node.op_type != "AllReduce":
        return False
    key = node.attributes["key"].as_string()
    return key == _LOSS or key.startswith(_GRADIENTS)


def _require_reducible(value: ir.Value) -> None:
    if value.producer() is None:
        raise ModelError(f"output {value.name!r} is not the result of a node; expected a gradient or a loss")
    if dtype_of(value) not in _SUMMED_IN:
        expected = ", ".join(dtype.name.lower() for dtype in _SUMMED_IN)
        raise ModelError(f"output {value.name!r} is {dtype_of(value).name.lower()}; expected one of {expected}")


def _buckets(gradients: list[ir.Value], most: int) -> list[_Bucket]:
    """The buckets of gradients, which are in the order in which the graph computes them."""
    buckets: list[_Bucket] = []
    filling: dict[ir.DataType, _Bucket] = {}
    for value in gradients:
        dtype, elements = _SUMMED_IN[dtype_of(value)], _elements_of(value)
        if elements is None or elements * dtype.itemsize >= most:
            buckets.append(_Bucket(dtype, [value]))
            continue
        size = int(elements * dtype.itemsize)
        if dtype not in filling or filling[dtype].size + size > most:
            filling[dtype] = _Bucket(dtype)
            buckets.append(filling[dtype])
        filling[dtype].values.append(value)
        filling[dtype].size += size
    return buckets


def _reduce(bucket: _Bucket, key: str, graph: ir.Graph, names: Names) -> None:
    """Inserts the nodes of a bucket after the node that computes its last gradient."""
    last = bucket.values[-1].producer()
    assert last is not None, "see `_require_reducible`"  # noqa: S101
    make = NodesAfter(last, names, f"bngrad_{key.replace('/', '_')}")
    parts = [make.cast(value, bucket.dtype) for value in bucket.values]
    if len(parts) == 1:
        totals = make.bngrad("AllReduce", parts[0], key=key)
    else:
        flat = make.int64([-1])
        vector = make.op("Concat", *(make.op("Reshape", part, flat) for part in parts), axis=0)
        (total,) = make.bngrad("AllReduce", vector, key=key)
        sizes = make.int64([_elements_of(value) for value in bucket.values])
        words = [f"part_{index}" for index in range(len(parts))]
        split = make.outputs_of("Split", total, sizes, outputs=words, axis=0)
        totals = [
            make.op("Reshape", part, make.int64(static_shape(value)))
            for part, value in zip(split, bucket.values, strict=True)
        ]
    for value, total in zip(bucket.values, totals, strict=True):
        total.dtype, total.shape = bucket.dtype, value.shape
        _replace_output(graph, value, make.cast(total, dtype_of(value)), make, names)


def _replace_output(graph: ir.Graph, old: ir.Value, new: ir.Value, make: NodesAfter, names: Names) -> None:
    """Replaces an output by another value, which takes its name."""
    name, old.name = str(old.name), names.fresh(f"{old.name}_of_rank")
    new = make.name(new, name)
    new.type, new.shape = old.type, old.shape
    for index, output in enumerate(graph.outputs):
        if output is old:
            graph.outputs[index] = new
