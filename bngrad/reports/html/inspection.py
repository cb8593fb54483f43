"""Writes what `inspect` found as HTML."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.reports.html.graph import MOST as MOST_NODES
from bngrad.reports.html.graph import pictures
from bngrad.reports.html.page import write_page
from bngrad.reports.html.scatter import percent
from bngrad.reports.html.table import STATIC_ROWS, Column, Table
from bngrad.reports.training_lines import MOST, loss_text
from bngrad.runtime.environment import environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bngrad.inspection.graph_nodes import GraphNode
    from bngrad.inspection.identity import Identity
    from bngrad.inspection.inspect import BatchNorm, Inspection
    from bngrad.inspection.trainability import GraphValue

LANE = 38
"""The height of a mode's lane in pixels."""

_MODES = {
    "training": "training",
    "synchronized": "synchronized",
    "frozen": "frozen",
    "gradient": "gradient only",
    "foreign": "other system",
    "unknown": "unknown",
}
_MOST_NAMES = 3

_COLUMNS = [
    Column("node", "number"),
    Column("batch norm", "name"),
    Column("mode", "choice"),
    Column("op", "choice"),
    Column("axes", "choice"),
    Column("type", "choice"),
    Column("X"),
    Column("gradient op", "choice"),
    Column("hazards"),
]


@dataclass(frozen=True)
class _Mark:
    x: float
    y: int
    mode: str
    hazard: bool
    label: str


@dataclass(frozen=True)
class _Lane:
    mode: str
    label: str
    count: int
    y: int


@dataclass(frozen=True)
class _Strip:
    """The batch norms along the graph, each in the lane of its mode."""

    lanes: list[_Lane]
    marks: list[_Mark]
    height: int
    nodes: int


def write_html(
    inspection: Inspection, model: str, identity: Identity, path: Path, nodes: Sequence[GraphNode] = ()
) -> None:
    """Writes what `inspect` found as one HTML page.

    Args:
        inspection: The result of `inspect`.
        model: The name of the model.
        identity: The identity of the model.
        path: The file to write.
        nodes: The nodes to draw and list, by `graph_nodes`.

    Raises:
        InputError: The file cannot be written.
    """
    ordered = sorted(inspection.batch_norms, key=lambda norm: norm.position)
    kinds = _kinds(inspection, nodes)
    rows = {norm.position: f"#batch-norms-{row}" for row, norm in enumerate(ordered)}
    centres = sorted(kinds, key=lambda position: (kinds[position] not in ("refused", "hazard"), position))
    write_page(
        path,
        "inspection",
        found=inspection,
        model=model,
        identity=identity,
        environment=environment(),
        strip_data=_strip(ordered, inspection.nodes) if ordered else None,
        values=_values("input", inspection.inputs) + _values("output", inspection.outputs),
        loss_text=None if inspection.training is None else loss_text(inspection.training),
        most=MOST,
        modes=[(_MODES[mode], count) for mode, count in Counter(norm.mode for norm in ordered).items()],
        hazards=_hazards(ordered),
        hazardous=sum(bool(norm.hazards) for norm in ordered),
        table=Table("batch-norms", "In graph order", _COLUMNS, [_cells(norm) for norm in ordered]),
        drawings=pictures(nodes, centres, kinds, lambda position: rows.get(position, f"#nodes-{position}")),
        near_only=len(nodes) > MOST_NODES,
        most_nodes=MOST_NODES,
        centres=len(centres),
        nodes=node_table(nodes),
    )


def _kinds(inspection: Inspection, nodes: Sequence[GraphNode]) -> dict[int, str]:
    """Returns the classes of batch norms, and of nodes that have no gradient."""
    kinds = {norm.position: "hazard" if norm.hazards else norm.mode for norm in inspection.batch_norms}
    refused = {} if inspection.training is None else inspection.training.without_gradient
    return kinds | {position: "refused" for position, node in enumerate(nodes) if node.op in refused}


def node_table(nodes: Sequence[GraphNode], name: str = "nodes", caption: str = "Nodes in graph order") -> Table:
    """Returns the table of all nodes, whose row of a node has its position as number."""
    columns = [Column("node", "number"), Column("name", "name"), Column("op", "choice"), Column("output")]
    rows = [[str(position + 1), node.name, node.op, node.shape] for position, node in enumerate(nodes)]
    if any(node.source for node in nodes):
        columns.append(Column("source"))
        rows = [[*row, node.source] for row, node in zip(rows, nodes, strict=True)]
    # A picture of the whole graph has a link to each row, also without JavaScript.
    static = MOST_NODES if len(nodes) <= MOST_NODES else STATIC_ROWS
    return Table(name, caption, columns, rows, static)


def _cells(norm: BatchNorm) -> list[str]:
    place, gradient, hazards = str(norm.position + 1), norm.gradient or "-", "; ".join(norm.hazards)
    return [place, norm.name, norm.mode, norm.op, norm.axes_text, norm.dtype, norm.shape, gradient, hazards]


def _values(kind: str, values: Sequence[GraphValue]) -> list[tuple[str, str]]:
    more = [(kind, f"and {len(values) - MOST} more")] if len(values) > MOST else []
    return [(kind, str(value)) for value in values[:MOST]] + more


def _strip(batch_norms: list[BatchNorm], nodes: int) -> _Strip:
    counts = Counter(norm.mode for norm in batch_norms)
    modes = [mode for mode in _MODES if mode in counts]
    lanes = [_Lane(mode, _MODES[mode], counts[mode], LANE * index + LANE // 2) for index, mode in enumerate(modes)]
    heights = {lane.mode: lane.y for lane in lanes}
    marks = [
        _Mark(
            x=percent(norm.position, nodes),
            y=heights[norm.mode],
            mode=norm.mode,
            hazard=bool(norm.hazards),
            label="; ".join([f"{norm.name}: {norm.op}, {norm.shape}", *norm.hazards]),
        )
        for norm in batch_norms
    ]
    return _Strip(lanes, marks, LANE * len(lanes), nodes)


def _hazards(batch_norms: list[BatchNorm]) -> list[str]:
    """Returns a line for each kind of hazard, with the first of the batch norms that have it."""
    names: dict[str, list[str]] = {}
    for norm in batch_norms:
        for hazard in norm.hazards:
            names.setdefault(hazard, []).append(norm.name)
    return [
        f"{hazard}: {', '.join(affected[:_MOST_NAMES])}"
        + (f" and {len(affected) - _MOST_NAMES} more" if len(affected) > _MOST_NAMES else "")
        for hazard, affected in names.items()
    ]
