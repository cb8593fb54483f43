"""The nodes of another system in terms of ``bngrad``'s quantities.

A `ForeignOp` is the record of an op in the table of a dialect: its inputs and outputs, its attributes, its checks
and its rewrite. A `ForeignNode` gives access to a node by its record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from bngrad.graph.nodes import is_read, known_rank
from bngrad.opset.axes import MAX_RANK
from bngrad.opset.quantities import QUANTITIES
from bngrad.passes.imports.unknown_rank import COLLAPSED_AXES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bngrad.passes.base import Context


class Attribute(NamedTuple):
    """An attribute of an op."""

    kinds: tuple[ir.AttributeType, ...]
    """The types that it may have."""
    default: Any = None


NUMBER = Attribute((ir.AttributeType.FLOAT, ir.AttributeType.INT), 0.0)
ENUMERATOR = Attribute((ir.AttributeType.STRING, ir.AttributeType.INT))
"""A word, or the number that stands for it."""


@dataclass(frozen=True)
class ForeignOp:
    """The record of an op of another system."""

    signature: str
    """The inputs and outputs in order, as ``x: X, dy: dY, savedMean?: mean -> dx: dX``.

    Each is the system's name, ``?`` for an input that a node may omit, and the quantity, unless that has the same
    name. Quantities are those of `QUANTITIES`, ``variance`` for a biased variance, and any other name for a tensor
    that no op of ``bngrad`` has. A node may omit trailing outputs.
    """
    rewrite: Callable[[Any, Context], None]
    """Rewrites a node that was not refused."""
    checks: Sequence[Callable[[Any], Iterable[str]]] = ()
    """Functions that yield reasons for a refusal; each relies on those before it."""
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    layout: str = ""
    """The attribute with the order of the dimensions, such as NHWC; without one the channels are dimension 1."""

    @cached_property
    def inputs(self) -> Mapping[str, str]:
        """The quantity of each input by the system's name, in order."""
        return {name.rstrip("?"): quantity for name, quantity in self._named(0)}

    @cached_property
    def required(self) -> Mapping[str, str]:
        """Those inputs that a node must have."""
        return {name: quantity for name, quantity in self._named(0) if not name.endswith("?")}

    @cached_property
    def outputs(self) -> Mapping[str, str]:
        """The quantity of each output by the system's name, in order."""
        return dict(self._named(1))

    def _named(self, side: int) -> Iterator[tuple[str, str]]:
        for entry in filter(None, self.signature.split("->")[side].split(",")):
            name, _, quantity = entry.strip().partition(": ")
            yield name, quantity or name.rstrip("?")


class ForeignNode:
    """Gives access to a node by the quantities of its record.

    Args:
        node: The node.
        op: The record of its op.
        unbiased_running_var: As of `RewritePass`.
    """

    def __init__(self, node: ir.Node, op: ForeignOp, *, unbiased_running_var: bool = False) -> None:
        self.node = node
        self.op = op
        self.unbiased_running_var = unbiased_running_var
        self.inputs = dict(zip(op.inputs.values(), node.inputs, strict=False))
        """The inputs by quantity."""
        self.outputs = {
            q: value for q, value in zip(op.outputs.values(), node.outputs, strict=False) if value.name
        }
        """The outputs by quantity, without omitted ones."""

    def present(self, quantity: str) -> ir.Value:
        """Returns an input that every node has that was not refused."""
        value = self.inputs.get(quantity)
        assert value is not None, f"a node without {quantity} is refused"  # noqa: S101
        return value

    def has(self, *quantities: str) -> bool:
        """Returns whether all these inputs are present."""
        return all(self.inputs.get(quantity) is not None for quantity in quantities)

    def used(self, quantity: str) -> bool:
        """Returns whether an output is an input of a node or a graph output."""
        return quantity in self.outputs and is_read(self.outputs[quantity])

    def label(self, quantity: str) -> str:
        """The system's name of an input or output."""
        names = (*self.op.inputs.items(), *self.op.outputs.items())
        return next(name for name, its_quantity in names if its_quantity == quantity)

    def attribute(self, name: str) -> Any:  # noqa: ANN401
        """Returns the value of an attribute, or its default."""
        attribute = self.node.attributes.get(name)
        return self.op.attributes[name].default if attribute is None else attribute.value

    def data(self) -> list[ir.Value]:
        """Returns the inputs and outputs that have X's shape."""
        return [value for quantity, value in self._values() if is_data(quantity)]

    def data_inputs(self) -> list[ir.Value]:
        """Returns the inputs that have X's shape."""
        return [value for quantity, value in self.inputs.items() if is_data(quantity) and value is not None]

    def parameters(self) -> list[ir.Value]:
        """Returns the inputs and outputs that have scale's shape."""
        return [value for quantity, value in self._values() if is_parameter(quantity)]

    @property
    def rank(self) -> int | None:
        """The rank of X; None if it is unknown."""
        return known_rank(self.data())

    @property
    def channels_last(self) -> bool:
        """True if the channels are the last dimension, and not dimension 1."""
        return bool(self.op.layout) and str(self.attribute(self.op.layout)).endswith("C")

    @property
    def collapsed(self) -> bool:
        """True if the data is reshaped to [N, C, S], or [S, C]: its rank is unknown, 1 or too high."""
        return self.rank is None or self.rank == 1 or self.rank > MAX_RANK

    @property
    def axes(self) -> Sequence[int]:
        """The reduction axes of the data, or of the collapsed data."""
        if self.collapsed:
            return (0,) if self.channels_last else COLLAPSED_AXES
        rank = self.rank or 0
        channels = rank - 1 if self.channels_last else 1
        return tuple(dimension for dimension in range(rank) if dimension != channels)

    def _values(self) -> Iterator[tuple[str, ir.Value]]:
        yield from ((quantity, value) for quantity, value in self.inputs.items() if value is not None)
        yield from self.outputs.items()


def is_data(quantity: str) -> bool:
    """Returns whether a quantity has X's shape."""
    return quantity in QUANTITIES and QUANTITIES[quantity].shape == "data"


def is_parameter(quantity: str) -> bool:
    """Returns whether a quantity has scale's shape."""
    return quantity == "variance" or (quantity in QUANTITIES and QUANTITIES[quantity].shape == "parameter")
