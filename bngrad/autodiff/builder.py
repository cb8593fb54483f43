"""The walk back through a forward graph: from the loss to what it is to be differentiated by."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.backward import Backward
from bngrad.autodiff.contradictions import contradiction
from bngrad.autodiff.edges import can_have_gradient, reads, rule_of
from bngrad.autodiff.rule import NoGradientError
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.ort_dialect import ACCUMULATION
from bngrad.passes.import_pass import Context
from bngrad.passes.infer_types import CONTRADICTS
from bngrad.passes.nodes import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bngrad.autodiff.rule import Gradients, Rule


def add_gradients(model: ir.Model, loss: ir.Value, wrt: Sequence[ir.Value]) -> dict[str, str]:
    """Appends to a graph what computes the gradients of a loss, and makes them its outputs.

    The gradient with respect to ``x`` has x's type and shape. It is called ``x_grad``, or ``x_grad_1`` where an
    inner value or an input of the model has that name. Where several nodes read a value, what comes back from them
    is summed by a node ``AccumulateGrad_<name>_grad``.

    Args:
        model: The forward model, sorted and with the types of all its values; it is changed.
        loss: A scalar of the main graph.
        wrt: Inputs or initializers of the main graph that the loss depends on.

    Returns:
        The name of the output that holds the gradient, by the name of each value in ``wrt``.

    Raises:
        UnsupportedNodeError: Nodes on the way have no gradient; the first is named, and what others there are.
        ModelError: The loss does not depend on one of ``wrt`` in a differentiable way, or an output has a
            gradient's name.
    """
    moving = _moving(model.graph, wrt)
    if loss not in moving:
        names = ", ".join(repr(value.name) for value in wrt)
        raise ModelError(f"the loss {loss.name!r} does not depend on {names} in a way that has a gradient")
    refuse_taken_names((str(output.name) for output in model.graph.outputs), (str(value.name) for value in wrt))
    return _Walk(model, moving).run(loss, wrt)


def refuse_taken_names(taken: Iterable[str], wrt: Iterable[str]) -> None:
    """Refuses a forward value that has the name of a gradient: a training loop would take it for the gradient.

    Args:
        taken: The names of forward values.
        wrt: The names of what the loss is differentiated with respect to.

    Raises:
        ModelError: A name is taken.
    """
    names = set(taken)
    for name in wrt:
        if f"{name}_grad" in names:
            raise ModelError(
                f"the model has a value '{name}_grad', the name of the gradient with respect to {name!r}; rename "
                f"that value, or leave {name!r} out with --wrt"
            )


def _moving(graph: ir.Graph, wrt: Iterable[ir.Value]) -> set[ir.Value]:
    """The values that change with ``wrt`` in a differentiable way, as far as rules tell."""
    moving = set(wrt)
    for node in graph:
        if any(value in moving for value in reads(node)):
            moving.update(filter(can_have_gradient, node.outputs))
    return moving


class _Walk:
    """One walk; what it holds is what has come back so far."""

    def __init__(self, model: ir.Model, moving: set[ir.Value]) -> None:
        self._graph = model.graph
        self._imports = model.opset_imports
        self._contradicts = model.meta.get(CONTRADICTS, False)
        self._context = Context(model)
        self._moving = moving
        self._contributions: dict[ir.Value, list[tuple[Backward, ir.Value]]] = {}
        self._blocked: list[tuple[ir.Node, str]] = []
        self._untyped: list[tuple[ir.Node, str]] = []

    def run(self, loss: ir.Value, wrt: Sequence[ir.Value]) -> dict[str, str]:
        forward = list(self._graph)
        gradients = {loss: self._seed(loss)}
        for node in reversed(forward):
            dY = [gradients.get(value) or self._accumulated(value) for value in node.outputs]
            if any(value is not None for value in dY):
                self._back_through(node, dY)
        self._raise_blocked()
        outputs: dict[str, str] = {}
        for value in wrt:
            gradient = gradients.get(value) or self._accumulated(value)
            if gradient is None:
                raise ModelError(
                    f"the loss {loss.name!r} does not depend on {value.name!r} in a way that has a gradient"
                )
            self._graph.outputs.append(gradient)
            outputs[str(value.name)] = gradient.name
        return outputs

    def _seed(self, loss: ir.Value) -> ir.Value:
        """The gradient of the loss by itself, an initializer as ORT has it."""
        assert loss.dtype is not None, "a loss is a float"  # noqa: S101
        name = self._context.names.fresh(f"{loss.name}_grad")
        shape = [1 for _ in loss.shape or ()]
        tensor = ir.tensor(np.ones(shape, loss.dtype.numpy()), dtype=loss.dtype, name=name)
        seed = ir.Value(name=name, type=ir.TensorType(loss.dtype), shape=ir.Shape(shape), const_value=tensor)
        self._graph.register_initializer(seed)
        return seed

    def _back_through(self, node: ir.Node, dY: Sequence[ir.Value | None]) -> None:
        rule = rule_of(node)
        needed = [
            index
            for index, value in enumerate(node.inputs)
            if value in self._moving and (rule is None or rule.differentiates(index))
        ]
        back = Backward(node, dY, frozenset(needed), self._context)
        gradients = self._gradients(back, rule, [node.inputs[index] for index in needed])
        if gradients is None:
            # What lies behind it is walked through all the same: one error names everything that is in the way.
            for read in self._moving.intersection(reads(node)):
                self._contributions.setdefault(read, []).append((back, ir.Value(type=read.type)))
            return
        for index, gradient in enumerate(gradients):
            value = node.inputs[index] if index < len(node.inputs) else None
            if gradient is not None and value is not None and index in needed:
                self._contributions.setdefault(value, []).append((back, gradient))

    def _gradients(self, back: Backward, rule: Rule | None, needed: Sequence[ir.Value | None]) -> Gradients | None:
        """What a rule gives; None where there is none, or it cannot be asked, which is noted."""
        node = back.node
        if rule is None:
            self._blocked.append((node, "it has no gradient rule"))
            return None
        # Rules make constants of the type of what they work on.
        outputs = [value for value, dY in zip(node.outputs, back.all_dY, strict=True) if dY is not None]
        for value in (*needed, *outputs):
            if value is not None and value.dtype is None:
                reason = f"the type of {value.name!r} is not known; expected it in the model's value_info"
                self._untyped.append((node, reason))
                return None
        if self._contradicts and (against := contradiction(node, self._imports)):
            self._blocked.append((node, f"what is known of its inputs contradicts its op: {against}"))
            return None
        try:
            return rule.gradients(back)
        except NoGradientError as error:
            self._blocked.append((node, str(error)))
            return None

    def _accumulated(self, value: ir.Value) -> ir.Value | None:
        """The gradient by a value, once every node that reads it was walked through."""
        contributions = self._contributions.pop(value, [])
        if not contributions:
            return None
        name = self._context.names.fresh(f"{value.name}_grad")
        if len(contributions) == 1:
            ((back, gradient),) = contributions
            result = back.name(gradient, name)
        else:
            parts = [
                back.name(gradient, self._context.names.fresh(f"{name}_{i}"))
                for i, (back, gradient) in enumerate(contributions)
            ]
            for part in parts:
                part.type, part.shape = value.type, value.shape
            node = ir.node("Sum", parts, name=self._context.names.fresh(f"{ACCUMULATION}{name}"))
            self._graph.append(node)
            (result,) = node.outputs
            result.name = name
        result.type, result.shape = value.type, value.shape
        return result

    def _raise_blocked(self) -> None:
        # Behind a node that nobody knows, no value has a type: those are its fault.
        blocked = self._blocked or self._untyped
        if not blocked:
            return
        # The first in the order of the graph: what comes after it may be in the way only because of it.
        *after, (node, reason) = blocked
        others = sorted({other.op_type for other, _ in after})
        more = f" (and {len(after)} more: {', '.join(others)})" if others else ""
        raise UnsupportedNodeError(f"{describe(node)} cannot be differentiated: {reason}{more}")
