"""The worst node of each failed check: its row, its source line, the page of the check, and the nodes near it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bngrad.reports.html.graph import Drawing, near
from bngrad.reports.rules import CHECKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bngrad.inspection.graph_nodes import GraphNode
    from bngrad.validation.report import Check, Report, Row


@dataclass(frozen=True)
class Culprit:
    """The worst comparison of a check that failed."""

    check: str
    row: Row
    ratio: float
    href: str
    """The row of the table."""
    source: str
    """The line of Python that the node was exported from; empty if unknown."""
    description: str
    """The meaning of the failure; empty if it is unknown."""
    remedy: str
    """The action to take; empty if it is unknown."""
    page: str | None
    """The address of the page on the check."""
    drawing: Drawing | None
    """The node and those near it; None if the node is unknown."""


class Culprits:
    """The links from comparisons to nodes and rows.

    Args:
        report: The report.
        rows: The comparisons in the order of the table.
    """

    def __init__(self, report: Report, rows: Sequence[Row]) -> None:
        self._nodes: Sequence[GraphNode] = report.nodes
        self._positions = {name: at for at, node in enumerate(self._nodes) for name in node.outputs}
        self._rows: dict[int, str] = {}
        self._kinds: dict[int, str] = {}
        self._href: Mapping[int, str] = {id(row): f"#comparisons-{number}" for number, row in enumerate(rows)}
        for row in rows:  # failed ones and worst ones come first
            if (position := self._positions.get(row.tensor)) is not None:
                self._rows.setdefault(position, self._href[id(row)])
                if not row.passed:
                    self._kinds[position] = "refused"

    def source(self, row: Row) -> str:
        """Returns the line of Python that the node of a comparison was exported from; empty if unknown."""
        position = self._positions.get(row.tensor)
        return "" if position is None else self._nodes[position].source

    def of(self, check: Check, ratio: float) -> Culprit:
        """Returns the worst comparison of a check that failed."""
        row, rule = check.failures[0], CHECKS.get(check.name)
        position = self._positions.get(row.tensor)
        drawing = None
        if position is not None:
            title = f"Near {self._nodes[position].name}: {check.name}"
            drawing = near(self._nodes, position, self._kinds, lambda at: self._rows.get(at, ""), title)
        return Culprit(
            check=check.name,
            row=row,
            ratio=ratio,
            href=self._href[id(row)],
            source=self.source(row),
            description="" if rule is None else rule.description,
            remedy="" if rule is None else rule.remedy,
            page=None if rule is None else rule.url,
            drawing=drawing,
        )
