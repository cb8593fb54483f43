"""The values that two graphs have in common by name, and how one of them computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from bngrad.opset.functions import DOMAIN
from bngrad.opset.gradient_names import is_accumulation_node_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import onnx_ir as ir


class Frontier(NamedTuple):
    """The values and nodes that other values are computed from."""

    reads: list[str]
    """The nearest preceding values that both graphs have."""
    own_nodes: list[ir.Node]
    """The nodes of ``bngrad`` ops in between, which depend on the implementation."""


class CommonValues:
    """The values of the main graphs that the original and the graph under test have under the same name.

    Args:
        original: The original training graph.
        tested: The graph under test.
        same_builder: Whether the graph under test was built from the original. Different builders may number the
            contributions to a gradient differently, so equal names of contributions are then not comparable.
    """

    def __init__(self, original: ir.Model, tested: ir.Model, *, same_builder: bool) -> None:
        self._tested = {str(value.name): value for value in _values(tested)}
        self.names = self._tested.keys() & {str(value.name) for value in _values(original)}
        self.same_builder = same_builder
        if not same_builder:
            sums = [node for node in original.graph if is_accumulation_node_name(node.name or "")]
            self.names -= {str(value.name) for node in sums for value in node.inputs if value is not None}

    def of(self, values: Sequence[ir.Value]) -> dict[int, str]:
        """Returns the names of those values that both graphs have, by position."""
        return {index: str(value.name) for index, value in enumerate(values) if value.name in self.names}

    def frontier(self, names: Iterable[str]) -> Frontier:
        """Returns the values and nodes from which the graph under test computes common values."""
        waiting = [self._tested[name] for name in names]
        seen, borders = set(waiting), dict[str, None]()
        own: dict[ir.Node, None] = {}
        while waiting:
            node = waiting.pop().producer()
            if node is None:
                continue
            if node.domain == DOMAIN:
                own[node] = None
            for value in node.inputs:
                if value is None or value in seen:
                    continue
                if value.name in self.names:
                    borders[str(value.name)] = None
                else:
                    seen.add(value)
                    waiting.append(value)
        return Frontier(list(borders), list(own))

    def is_own(self, name: str) -> bool:
        """Returns whether an op of ``bngrad`` produces a value in the graph under test."""
        maker = self._tested[name].producer()
        return maker is not None and maker.domain == DOMAIN


def _values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in model.graph:
        yield from (value for value in node.outputs if value.name)
