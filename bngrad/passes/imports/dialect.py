"""The import pass of a dialect: a table of records, one for each op."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

from bngrad.opset.functions import DOMAIN
from bngrad.passes.base import Context, RewritePass
from bngrad.passes.imports.foreign_node import ForeignNode, ForeignOp

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx_ir as ir


class DialectPass(RewritePass):
    """Rewrites the ops of another system by its table.

    Matches: nodes with an op type of the table, in any domain but bngrad's, or with its domain and op type.
    Refuses: nodes for which a check of the op's record yields a reason.
    """

    NODE: ClassVar[type[ForeignNode]] = ForeignNode
    """The class of the dialect's nodes."""

    @property
    @abc.abstractmethod
    def ops(self) -> Mapping[str | tuple[str, str], ForeignOp]:
        """The records by op type, or by domain and op type."""

    def op_of(self, node: ir.Node) -> ForeignOp | None:
        """Returns the record of a node's op; None if the dialect does not have it."""
        op = self.ops.get((node.domain, node.op_type))
        return op or (None if node.domain == DOMAIN else self.ops.get(node.op_type))

    def matches(self, node: ir.Node) -> bool:  # noqa: D102
        return self.op_of(node) is not None

    def refusal(self, node: ir.Node) -> str | None:  # noqa: D102
        foreign = self.read(node)
        return next((reason for check in foreign.op.checks for reason in check(foreign)), None)

    def rewrite(self, node: ir.Node, context: Context) -> None:  # noqa: D102
        foreign = self.read(node)
        foreign.op.rewrite(foreign, context)

    def read(self, node: ir.Node) -> ForeignNode:
        """Returns a node that matches, for access by quantities."""
        op = self.op_of(node)
        assert op is not None, "a node that matches has a record"  # noqa: S101
        return self.NODE(node, op, unbiased_running_var=self.unbiased_running_var)
