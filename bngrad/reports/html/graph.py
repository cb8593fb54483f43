"""The picture of a graph: each node below those that it reads, in layers.

An edge past a layer is a point in it, so that it runs beside the nodes; one past many layers is a faint straight
line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from bngrad.inspection.graph_nodes import neighbourhood

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from bngrad.inspection.graph_nodes import GraphNode

MOST = 250
"""The most nodes of a picture."""

MOST_NEAR = 6
"""The most neighbourhoods that are drawn of a larger graph."""

_NEAR = 20
"""The most nodes of a neighbourhood."""

_BOX, _LAYER, _GAP, _EDGE = 26, 50, 14, 12
"""The height of a node, the distance of layers, that of nodes, and the width of an edge past a layer."""

_LONG = 12
"""The layers from which on an edge is a straight line."""

_LABEL = 26
"""The most characters of a node's op."""

_SWEEPS = 8


@dataclass(frozen=True)
class Box:
    """A node of a picture; lengths are pixels."""

    x: float
    y: float
    width: float
    label: str
    title: str
    """The name, the shape and the source line."""
    kind: str
    """The class of its color; empty for most nodes."""
    href: str
    """The row of the node; empty if it has none."""
    is_centre: bool


@dataclass(frozen=True)
class Drawing:
    """A picture of a graph, or of a part of it."""

    title: str
    boxes: list[Box]
    edges: list[str]
    """The paths of the edges."""
    long_edges: list[str]
    """The paths of those past many layers."""
    width: int
    height: int
    box_height: int = _BOX


@dataclass(eq=False)
class _Item:
    """A node, or the point of an edge past a layer."""

    layer: int
    width: float
    above: list[_Item] = field(default_factory=list)
    below: list[_Item] = field(default_factory=list)
    x: float = 0.0
    """The place of its middle."""
    place: float = 0.0
    """Its place in the order of its layer."""


def draw(
    nodes: Sequence[GraphNode],
    chosen: Sequence[int],
    *,
    title: str,
    kinds: Mapping[int, str],
    href: Callable[[int], str],
    centre: int | None = None,
) -> Drawing:
    """Returns the picture of some nodes of a model.

    Args:
        nodes: All nodes.
        chosen: The positions of the nodes to draw, in ascending order.
        title: What the picture shows.
        kinds: The classes of nodes that are not like most.
        href: The row of a node by its position; empty for none.
        centre: The node that the picture is about.
    """
    items: dict[int, _Item] = {}
    for position in chosen:
        layer = max((items[source].layer + 1 for source in nodes[position].reads if source in items), default=0)
        items[position] = _Item(layer, 7.0 * len(_label(nodes[position])) + 18)
    _lower_sources(nodes, items)
    chains, long = _chains(nodes, items)
    layers = _layers([*items.values(), *(item for chain in chains for item in chain[1:-1])])
    _order(layers)
    _place(layers)
    left = min((item.x - item.width / 2 for layer in layers for item in layer), default=0.0)
    right = max((item.x + item.width / 2 for layer in layers for item in layer), default=0.0)
    for item in (item for layer in layers for item in layer):
        item.x = round(item.x - left + _GAP, 1)
    boxes = [
        Box(
            x=round(item.x - item.width / 2, 1),
            y=_top(item),
            width=item.width,
            label=_label(nodes[position]),
            title="; ".join(filter(None, (nodes[position].name, nodes[position].shape, nodes[position].source))),
            kind=kinds.get(position, ""),
            href=href(position),
            is_centre=position == centre,
        )
        for position, item in items.items()
    ]
    edges = ["".join(_curve(upper, lower) for upper, lower in pairwise(chain)) for chain in chains]
    lines = [f"M{a.x:g} {_top(a) + _BOX:g}L{b.x:g} {_top(b):g}" for a, b in long]
    height = _LAYER * len(layers) + _GAP
    return Drawing(title, boxes, edges, lines, round(right - left + 2 * _GAP), height)


def pictures(
    nodes: Sequence[GraphNode],
    centres: Sequence[int],
    kinds: Mapping[int, str],
    href: Callable[[int], str],
    prefix: str = "",
) -> list[Drawing]:
    """Returns the picture of a whole graph, or of the neighbourhoods of some nodes if it has more than `MOST`.

    Args:
        nodes: All nodes.
        centres: The positions of the nodes whose neighbourhoods count, the most important first.
        kinds: The classes of nodes that are not like most.
        href: The row of a node by its position; empty for none.
        prefix: The beginning of the titles of the pictures.
    """
    if len(nodes) <= MOST:
        title = f"{prefix}All nodes, from top to bottom"
        return [draw(nodes, range(len(nodes)), title=title, kinds=kinds, href=href)] if nodes else []
    return [near(nodes, at, kinds, href, f"{prefix}Near {nodes[at].name}") for at in centres[:MOST_NEAR]]


def near(
    nodes: Sequence[GraphNode],
    centre: int,
    kinds: Mapping[int, str],
    href: Callable[[int], str],
    title: str,
) -> Drawing:
    """Returns the picture of a node and those near it; see `draw`."""
    chosen = neighbourhood(nodes, centre, _NEAR)
    return draw(nodes, chosen, title=title, kinds=kinds, href=href, centre=centre)


def _label(node: GraphNode) -> str:
    op = node.op.rpartition(".")[2]
    return op if len(op) <= _LABEL else op[: _LABEL - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _top(item: _Item) -> int:
    return item.layer * _LAYER + _GAP


def _lower_sources(nodes: Sequence[GraphNode], items: Mapping[int, _Item]) -> None:
    """Moves nodes that read no other down to those that read them."""
    readers: dict[int, list[int]] = {}
    for position in items:
        for source in nodes[position].reads:
            readers.setdefault(source, []).append(position)
    for position, item in items.items():
        if position in readers and not any(source in items for source in nodes[position].reads):
            item.layer = max(0, min(items[reader].layer for reader in readers[position]) - 1)


def _chains(
    nodes: Sequence[GraphNode], items: Mapping[int, _Item]
) -> tuple[list[list[_Item]], list[tuple[_Item, _Item]]]:
    """Returns each edge as its items from the upper to the lower node, and the long edges."""
    chains, long = [], []
    for position, item in items.items():
        for source in nodes[position].reads:
            upper = items.get(source)
            if upper is None or upper.layer >= item.layer:
                continue
            if item.layer - upper.layer > _LONG:
                long.append((upper, item))
                continue
            chain = [upper, *(_Item(layer, _EDGE) for layer in range(upper.layer + 1, item.layer)), item]
            for above, below in pairwise(chain):
                above.below.append(below)
                below.above.append(above)
            chains.append(chain)
    return chains, long


def _layers(items: Iterable[_Item]) -> list[list[_Item]]:
    layers: dict[int, list[_Item]] = {}
    for item in items:
        layers.setdefault(item.layer, []).append(item)
    for number, layer in enumerate(sorted(layers)):  # moved sources may leave the first ones empty
        for item in layers[layer]:
            item.layer = number
    return [layers[number] for number in sorted(layers)]


def _order(layers: Sequence[list[_Item]]) -> None:
    """Orders each layer by the mean place of the neighbours above and below, in turns."""
    for layer in layers:
        for place, item in enumerate(layer):
            item.place = place
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            for item in layer:
                mean = _mean([near.place for near in (item.above if down else item.below)])
                item.place = item.place if mean is None else mean
            layer.sort(key=lambda item: item.place)
            for place, item in enumerate(layer):
                item.place = place


def _place(layers: Sequence[list[_Item]]) -> None:
    """Places the items of each layer near the mean of their neighbours, without an overlap."""
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            means = [_mean([near.x for near in (*item.above, *item.below)]) for item in layer]
            aims = [item.x if mean is None else mean for item, mean in zip(layer, means, strict=True)]
            _spread(layer, aims)


def _spread(layer: Sequence[_Item], aims: Sequence[float]) -> None:
    """Places items in their order, as near to their aims as their widths allow: overlapping ones are pooled."""
    offset = 0.0
    offsets: list[float] = []
    for before, item in pairwise((layer[0], *layer)):
        offset += 0.0 if not offsets else (before.width + item.width) / 2 + _GAP
        offsets.append(offset)
    pools: list[tuple[float, int]] = []
    for aim, shift in zip(aims, offsets, strict=True):
        mean, count = aim - shift, 1
        while pools and pools[-1][0] > mean:
            other, size = pools.pop()
            mean, count = (mean * count + other * size) / (count + size), count + size
        pools.append((mean, count))
    places = [mean for mean, count in pools for _ in range(count)]
    for item, place, shift in zip(layer, places, offsets, strict=True):
        item.x = place + shift


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _curve(upper: _Item, lower: _Item) -> str:
    """Returns the path between the items of two layers; points of an edge have no height."""
    start = _top(upper) + (_BOX if upper.width != _EDGE else _BOX / 2)
    end = _top(lower) + (0 if lower.width != _EDGE else _BOX / 2)
    middle = (start + end) / 2
    return f"M{upper.x:g} {start:g}C{upper.x:g} {middle:g} {lower.x:g} {middle:g} {lower.x:g} {end:g}"
