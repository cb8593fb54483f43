"""Writes what `rewrite` changed as HTML: the graph before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad import __version__
from bngrad.inspection.graph_nodes import graph_nodes
from bngrad.opset.functions import DOMAIN
from bngrad.reports.html.graph import MOST, Drawing, pictures
from bngrad.reports.html.inspection import node_table
from bngrad.reports.html.page import write_page
from bngrad.reports.html.table import Column, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx_ir as ir

    from bngrad.inspection.graph_nodes import GraphNode
    from bngrad.passes.imports.decomposed.candidates import Candidate

_COLUMNS = [Column("node", "name"), Column("kind", "choice"), Column("outcome")]


@dataclass(frozen=True)
class _Side:
    """The graph before or after."""

    title: str
    drawings: list[Drawing]
    nodes: Table
    changed: int
    """The number of nodes that the other graph does not have."""
    is_whole: bool


def write_html(
    path: Path,
    names: tuple[str, str],
    models: tuple[ir.Model, ir.Model],
    counts: Mapping[str, Mapping[str, int]],
    candidates: Sequence[Candidate],
) -> None:
    """Writes what `rewrite` changed as one HTML page.

    Args:
        path: The file to write.
        names: The names of the model before and after.
        models: The model before and after.
        counts: The numbers of nodes by op, by the title of their table.
        candidates: The batch norms in primitives, and near misses.

    Raises:
        InputError: The file cannot be written.
    """
    before, after = map(graph_nodes, models)
    rows = [[item.name, item.kind, "recognized" if item.taken else item.reason] for item in candidates]
    write_page(
        path,
        "rewriting",
        version=__version__,
        names=names,
        counts=counts,
        most_nodes=MOST,
        sides=[_side("Before", before, after, "foreign"), _side("After", after, before, "training")],
        candidates=Table("candidates", "Batch norms in primitives, and near misses", _COLUMNS, rows),
    )


def _side(title: str, nodes: Sequence[GraphNode], others: Sequence[GraphNode], kind: str) -> _Side:
    """Returns one of the graphs; nodes that the other does not have are of a kind.

    Args:
        title: The title.
        nodes: The nodes.
        others: The nodes of the other graph.
        kind: The class of what changed.
    """
    kept = {(node.name, node.op) for node in others}
    changed = [position for position, node in enumerate(nodes) if (node.name, node.op) not in kept]
    # The ops of bngrad, and what became them, say most about a rewrite.
    changed.sort(key=lambda position: not ("BatchNorm" in nodes[position].op or DOMAIN in nodes[position].op))
    name = title.lower()
    drawings = pictures(nodes, changed, dict.fromkeys(changed, kind), lambda at: f"#{name}-{at}", f"{title}: ")
    table = node_table(nodes, name, f"Nodes {name}, in graph order")
    return _Side(title, drawings, table, len(changed), len(nodes) <= MOST)
