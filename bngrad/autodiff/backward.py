"""A forward node as a gradient rule reads it, and the maker of its gradient nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from bngrad.graph.guards import cut, zero_where_zero
from bngrad.graph.node_reader import dtype_of
from bngrad.graph.node_site import NodeSite
from bngrad.graph.nodes import ORIGIN, describe
from bngrad.opset.gradient_names import gradient_node_prefix
from bngrad.passes.prepare.complete_types import infer_outputs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx_ir as ir

    from bngrad.autodiff.ties import Tie, Ties
    from bngrad.passes.base import Context


class NoGradientError(Exception):
    """A rule does not cover a node; the text states the reason and what was expected."""


class BlockedInBodyError(NoGradientError):
    """A node in the body of a node has no gradient; the walk has its reason."""


class Bodies(Protocol):
    """The walk around a node, as the rule of an op with bodies needs it."""

    def moving_in(self, node: ir.Node) -> set[ir.Value]:
        """Returns the values in the body of a Loop or Scan that a gradient may flow to."""

    def reaching(self, outputs: Iterable[ir.Value], moving: set[ir.Value]) -> set[ir.Value]:
        """Returns the values among some that outputs of the same body depend on in a differentiable way."""

    def in_body(
        self, body: ir.Graph, seeds: Mapping[ir.Value, ir.Value], wrt: Sequence[ir.Value], *, unbounded: bool
    ) -> Sequence[ir.Value | None]:
        """Appends the gradient nodes to a body, and returns the gradients; None for those that are zero.

        Args:
            body: A copy of a body of the node.
            seeds: The incoming gradients, by the values that nothing in the body reads.
            wrt: The values to differentiate with respect to: inputs of the body, and values around it.
            unbounded: Whether the incoming gradients may be infinite or NaN.

        Raises:
            BlockedInBodyError: A node of it has no gradient.
        """


class Backward(NodeSite):
    """One forward node in the backward pass.

    New nodes go to the end of the graph. They are named as ORT's gradient builder names them:
    ``<forward node>_Grad/<op type>_<number>``.

    Args:
        node: The forward node.
        dY: The gradient of the loss with respect to each of its outputs; None where it does not depend on one.
        needed: The indices of the inputs whose gradient is needed.
        context: The context of the model.
        ties: The conventions of the model.
        bodies: The walk that differentiates the bodies of the node.
        captured: The values around the bodies of the node that they read; they count as further inputs.
    """

    def __init__(
        self,
        node: ir.Node,
        dY: Sequence[ir.Value | None],
        needed: frozenset[int],
        context: Context,
        ties: Ties,
        bodies: Bodies,
        captured: Sequence[ir.Value] = (),
    ) -> None:
        super().__init__(context.names, gradient_node_prefix(str(node.name or node.outputs[0].name)))
        self.node = node
        self.all_dY = tuple(dY)
        self._needed = needed
        self._context = context
        self._ties = ties
        self.opset = context.opset
        self.bodies = bodies
        self.captured = captured
        self._made = 0
        self.unbounded = False
        """True if dY may be infinite or NaN: a node after this one is singular."""

    @property
    def dY(self) -> ir.Value:  # noqa: N802 - the field's own name
        """The gradient of the first output, which is the only one of most nodes."""
        (dY, *others) = self.all_dY
        if dY is None or any(other is not None for other in others):
            self.refuse("the loss depends on an output of it other than the first; expected only the first")
        return dY

    def y(self, index: int = 0) -> ir.Value:
        """Returns an output of the forward node; one that it leaves out is added to it."""
        if index >= len(self.node.outputs):
            self.node.resize_outputs(index + 1)
        value = self.node.outputs[index]
        if not value.name:
            value.name = self.names.fresh(f"{self.node.outputs[0].name}_{index}")
        return value

    def needs(self, index: int) -> bool:
        """Returns whether the gradient with respect to an input is needed."""
        return index in self._needed

    def attributes(self) -> dict[str, Any]:
        """Returns all attributes of the forward node, for a gradient op that takes the same."""
        return dict(self.node.attributes)

    @property
    def tie(self) -> Tie:
        """The convention of the model's framework at the limits and ties of the node; see `ties`."""
        return self._ties.of(self.node)

    def axes(self, axes: Sequence[int]) -> ir.Value:
        """Returns the constant for reduction axes."""
        return self._context.axes.value(self.node, tuple(axes))

    def rank(self, value: ir.Value) -> int:
        """Returns the rank of a value; refuses the node where it is unknown."""
        if value.shape is None:
            self.refuse(f"the rank of {value.name!r} is not known; expected a model that shape inference can read")
        return len(value.shape)

    def times(self, dY: ir.Value, factor: ir.Value, *, singular: bool = False) -> ir.Value:
        """Returns dY times a local derivative; 0 where one factor is 0 and the other may be infinite or NaN.

        Args:
            dY: The incoming gradient.
            factor: The local derivative, of the same type.
            singular: Whether the local derivative may be infinite or NaN.
        """
        result = self.op("Mul", dY, factor)
        if singular:
            result = zero_where_zero(self, dY, result, typed=self._typed(dY))
        if self.unbounded:
            result = zero_where_zero(self, factor, result, typed=self._typed(dY))
        return result

    def kept(self, condition: ir.Value, dY: ir.Value, *, singular: bool = False) -> ir.Value:
        """Returns dY where a condition is true, else 0.

        A product with the condition as a number takes a sixth of the time of a Where, but is right only for finite
        numbers.

        Args:
            condition: The condition, in the shape of dY.
            dY: The incoming gradient.
            singular: Whether it may be infinite or NaN even if the node's dY is not.
        """
        if self.unbounded or singular:
            return cut(self, condition, dY, typed=self._typed(dY))
        return self.op("Mul", dY, self.cast(condition, dtype_of(self._typed(dY))))

    def _typed(self, value: ir.Value) -> ir.Value:
        """Returns a value of the same type, whose type is known: new values have none."""
        return self.dY if value.dtype is None else value

    def add_function(self, function: ir.Function) -> None:
        """Adds a copy of a function to the model, if it has none of its name."""
        self._context.model.functions.setdefault(function.identifier(), function.clone())

    def infer_types(self, nodes: Iterable[ir.Node]) -> None:
        """Infers the types and shapes of new nodes, in order, as far as onnx can."""
        for node in nodes:
            infer_outputs(node, self._context.model)

    def refuse(self, reason: str) -> NoReturn:
        """Raises the error that this node has no gradient, with the reason.

        Raises:
            NoGradientError: Always.
        """
        raise NoGradientError(reason)

    def _node_name(self, domain: str, op_type: str) -> str:  # noqa: ARG002
        self._made += 1
        return self.names.fresh(f"{self._prefix}{op_type}_{self._made - 1}")

    def _place(self, node: ir.Node) -> None:
        graph = self.node.graph
        assert graph is not None, "the forward node is in a graph"  # noqa: S101
        node.meta[ORIGIN] = f"the gradient of {describe(self.node)}"
        graph.append(node)
