"""Chooses the forward values that are computed again, so that a graph runs in a number of bytes.

A graph is built twice: with no value computed again, and with all that are cheap (`RecomputePass`). If the first
fits, it is the result. Else copies of the second are chosen one by one, each time the one that frees the most
bytes at the peak (`LiveBytes`) for each byte that it reads and writes, until the graph fits. The others are
replaced by the values that they are copies of. The order of choice is the same for all numbers of bytes, so with
more of them there are fewer copies.
"""

from __future__ import annotations

import warnings
from math import ceil
from typing import TYPE_CHECKING, Protocol, TypeVar

from bngrad.errors import BngradWarning, InputError
from bngrad.options import require_memory
from bngrad.passes.optimize.live_bytes import LiveBytes, readers
from bngrad.passes.optimize.order_by_depth import OrderByDepthPass
from bngrad.passes.optimize.recompute import COPY_OF
from bngrad.passes.workarounds.present_keys import remove_unused_nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import onnx_ir as ir

    from bngrad.options import KeptValues, Memory
    from bngrad.passes.optimize.live_bytes import Run

    class _Built(Protocol):
        @property
        def model(self) -> ir.Model: ...


B = TypeVar("B", bound="_Built")


def within(memory: Memory, build: Callable[[KeptValues], B], *, outputs_first: bool = False) -> B:
    """Builds a graph that keeps some forward values, or that runs in a number of bytes.

    Args:
        memory: See `Memory`.
        build: Builds the graph.
        outputs_first: See `LiveBytes`.

    Raises:
        InputError: ``memory`` is wrong, see `require_memory`; the graph does not run in so few bytes, or an input
            has a symbolic dimension.
        ModelError: See `LiveBytes`.
        UnsupportedNodeError: See `LiveBytes`.
    """
    memory = require_memory(memory)
    if not isinstance(memory, int):
        return build(memory)
    full = build("full")
    least = LiveBytes(full.model.graph, outputs_first=outputs_first).run().peak
    if least <= memory:
        return full
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "memory 'lean' keeps as much as 'full'", BngradWarning)
        lean = build("lean")
    choice = _Choice(lean.model.graph, outputs_first=outputs_first)
    for run in choice.runs():
        if run.peak <= memory:
            choice.apply(lean.model)
            return lean
        least = min(least, run.peak)
    raise InputError(
        f"memory is {memory} bytes, and the graph takes {least} with all that is cheap computed again; "
        f"expected {ceil(least / 1e6)}MB or more, or a smaller batch"
    )


class _Choice:
    """The copies of a graph that are made; at first only those that others need."""

    def __init__(self, graph: ir.Graph, *, outputs_first: bool) -> None:
        self._bytes = LiveBytes(graph, outputs_first=outputs_first)
        copies = {copy: copy.meta[COPY_OF] for node in graph for copy in node.outputs if COPY_OF in copy.meta}
        self._makers = {copy.producer() for copy in copies}
        self._inner = self._makers | {
            node.inputs[0].producer() for node in self._makers if node and node.inputs[0]
        }
        self._left_out: dict[ir.Value, ir.Value] = {
            copy: value
            for copy, value in copies.items()
            if _is_copy(copy, value) and any(reader not in self._inner for reader, _ in copy.uses())
        }
        self._readers = {copy: set(readers(copy)) for copy in self._left_out}

    def runs(self) -> Iterator[Run]:
        """Yields the runs with ever more copies."""
        while True:
            run = self._bytes.run(self._left_out)
            yield run
            if not self._left_out:
                return
            gains = {copy: self._gain(copy, run) for copy in self._left_out}
            best = max(gains, key=gains.__getitem__)
            if gains[best] > 0:
                del self._left_out[best]
            else:  # none is of use alone
                self._left_out.clear()

    def apply(self, model: ir.Model) -> None:
        """Replaces the copies that are left out by the values that they are copies of."""
        for copy, value in self._left_out.items():
            copy.replace_all_uses_with(value)
        remove_unused_nodes(model)
        OrderByDepthPass()(model)

    def _gain(self, copy: ir.Value, run: Run) -> float:
        """The bytes that a copy frees at the peak for each byte that its nodes read and write."""
        value, bytes_of = self._left_out[copy], self._bytes.bytes
        if not run.holds(value) or run.holds(value, without=self._readers[copy]):
            return 0
        nodes, sources = self._nodes(copy)
        kept = sum(bytes_of[source] for source in sources if not run.holds(source))
        moved = sum(
            bytes_of[x] for node in nodes for x in (*node.inputs, *node.outputs) if x is not None and x.name
        )
        return (bytes_of[value] - kept) / moved

    def _nodes(self, copy: ir.Value) -> tuple[list[ir.Node], list[ir.Value]]:
        """The nodes that a copy takes beside those of other copies, and the values of the graph that they read."""
        node = copy.producer()
        assert node is not None and node.inputs[0] is not None, "see `RecomputePass`"  # noqa: S101, PT018
        waiting = node.inputs[0].producer()
        first = node.inputs[0] if waiting is None else waiting.inputs[0]
        nodes, sources = [node], []
        for x in (first, *node.inputs[1:]):
            if x is None:
                continue
            if x in self._left_out or x.producer() not in self._makers:
                sources.append(self._left_out.get(x, x))
            elif all(reader in self._inner for reader, _ in x.uses()):
                more, values = self._nodes(x)
                nodes += more
                sources += values
        return nodes, sources


def _is_copy(copy: ir.Value, value: ir.Value) -> bool:
    """Tests whether a later pass has left both alike: `ChannelsLastPass` may transpose one of them."""
    again, node = copy.producer(), value.producer()
    if again is None or node is None or node.graph is not again.graph or copy.shape != value.shape:
        return False
    if again.op_identifier() != node.op_identifier() or dict(again.attributes) != dict(node.attributes):
        return False
    first = None if again.inputs[0] is None else again.inputs[0].producer()
    inputs = again.inputs if first is None or first.op_type != "Reshape" else (first.inputs[0], *again.inputs[1:])
    return len(inputs) == len(node.inputs) and all(
        x is y or (x is not None and y is not None and x.meta.get(COPY_OF) == y and _is_copy(x, y))
        for x, y in zip(inputs, node.inputs, strict=True)
    )
