"""Reverse-mode differentiation: the gradient rules applied to a forward graph, from the loss backward."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from bngrad.autodiff.backward import Backward, BlockedInBodyError, NoGradientError
from bngrad.autodiff.contradictions import contradiction
from bngrad.autodiff.dependence import moving_in_body, moving_values, reaching
from bngrad.autodiff.edges import reads, rule_of, smooth_inputs, why_no_gradient
from bngrad.autodiff.function_rules import inline_rules
from bngrad.autodiff.fused_ops import UNKNOWN_FORM
from bngrad.autodiff.hidden_paths import refuse_hidden_paths
from bngrad.autodiff.loss_and_wrt import IndependentError
from bngrad.autodiff.rules.without_rule import OURS_WITHOUT_RULE, WITHOUT_RULE
from bngrad.autodiff.schema_versions import version_refusal
from bngrad.autodiff.ties import Ties
from bngrad.autodiff.torch_gradients import LostGradients
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.graph.node_reader import attribute_refusal
from bngrad.graph.nodes import describe
from bngrad.graph.signs import is_singular
from bngrad.opset.functions import DOMAIN
from bngrad.opset.gradient_names import accumulation_node_name, gradient_name
from bngrad.passes.base import Context
from bngrad.passes.pipeline import is_foreign
from bngrad.passes.prepare.infer_types import CONTRADICTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from bngrad.autodiff.rule import Gradients, Rule


def add_gradients(
    model: ir.Model, loss: ir.Value, wrt: Sequence[ir.Value], seed: ir.Value | None = None
) -> dict[str, str]:
    """Appends the nodes that compute the gradients of a loss, and adds the gradients to the outputs of the graph.

    The gradient with respect to ``x`` has x's type and shape. Its name is ``x_grad``, or ``x_grad_1`` where an
    intermediate value or an input of the model has that name. Where several nodes read a value, a node sums their
    contributions: ``AccumulateGrad_<name>_grad``.

    Args:
        model: The forward model, topologically sorted, with the types of all values; modified in place.
        loss: A scalar of the main graph.
        wrt: Inputs or initializers of the main graph that the loss depends on.
        seed: The gradient with respect to the loss itself, of its type and shape; by default 1.

    Returns:
        The name of the output that holds the gradient, by the name of each value in ``wrt``.

    Raises:
        UnsupportedNodeError: Nodes between the loss and ``wrt`` have no gradient; the message names the first and
            lists the op types of the others.
        IndependentError: The loss does not depend on one of ``wrt`` in a differentiable way.
        ModelError: An output has a gradient's name.
    """
    moving = moving_values(model.graph, wrt)
    if loss not in moving:
        names = [str(value.name) for value in wrt]
        listed_names = ", ".join(map(repr, names))
        raise IndependentError(
            f"the loss {loss.name!r} does not depend on {listed_names} in a way that has a gradient", names
        )
    refuse_taken_names((str(output.name) for output in model.graph.outputs), (str(value.name) for value in wrt))
    refuse_hidden_paths(loss, moving)
    gradients = _Walk(_Model(model), model.graph, moving).run(loss, wrt, seed)
    inline_rules(model)
    return gradients


def refuse_taken_names(taken: Iterable[str], wrt: Iterable[str]) -> None:
    """Refuses a forward value that has the name of a gradient: a training loop would read it as the gradient.

    Args:
        taken: The names of forward values.
        wrt: The names of the values that the loss is differentiated with respect to.

    Raises:
        ModelError: A name is taken.
    """
    names = set(taken)
    for name in wrt:
        if (gradient := gradient_name(name)) in names:
            raise ModelError(
                f"the model has a value {gradient!r}, the name of the gradient with respect to {name!r}; rename "
                f"that value, or leave {name!r} out with --wrt"
            )


class _Model:
    """The parts that the walks over the graphs of a model share."""

    def __init__(self, model: ir.Model) -> None:
        self.imports = model.opset_imports
        self.contradicts = model.meta.get(CONTRADICTS, False)
        self.context = Context(model)
        self.ties = Ties(model)
        self.lost = LostGradients(model)
        self.blocked: list[tuple[ir.Node, str]] = []
        """The nodes that have no gradient, with the reasons, from the last to the first."""
        self.untyped: list[tuple[ir.Node, str]] = []

    def raise_blocked(self) -> None:
        """Raises an error for the nodes that have no gradient, if there are any."""
        # Values computed by a node of an unknown op have no type: report the node instead.
        blocked = self.blocked or self.untyped
        if not blocked:
            return
        # The first in the order of the graph: later ones may fail only because of it.
        *after, (node, reason) = blocked
        others = sorted({other.op_type for other, _ in after})
        more = f" (and {len(after)} more: {', '.join(others)})" if others else ""
        error = UnsupportedNodeError(f"{describe(node)} cannot be differentiated: {reason}{more}")
        error.lines = [
            f"{describe(blocked_node)} cannot be differentiated: {why}" for blocked_node, why in reversed(blocked)
        ]
        error.ops = [".".join(filter(None, (of.domain, of.op_type))) for of, _ in reversed(blocked)]
        raise error


class _Walk:
    """One backward pass over a graph, with the gradient contributions found so far.

    Args:
        model: The model, with what its walks share.
        graph: Its main graph, or a body.
        moving: The values that depend on those that the loss is differentiated with respect to.
        prefix: The beginning of the names of gradients.
    """

    def __init__(self, model: _Model, graph: ir.Graph, moving: set[ir.Value], prefix: str = "") -> None:
        self._graph = graph
        self._model = model
        self._context = model.context
        self._moving = moving
        self._prefix = prefix
        self._contributions: dict[ir.Value, list[tuple[Backward, ir.Value]]] = {}
        self._unbounded: set[ir.Value] = set()

    def run(self, loss: ir.Value, wrt: Sequence[ir.Value], seed: ir.Value | None) -> dict[str, str]:
        gradients = self._back({loss: self._seed(loss) if seed is None else seed}, wrt)
        self._model.raise_blocked()
        outputs: dict[str, str] = {}
        for value, gradient in zip(wrt, gradients, strict=True):
            if gradient is None:
                raise IndependentError(
                    f"the loss {loss.name!r} does not depend on {value.name!r} in a way that has a gradient"
                    f"{why_no_gradient(value)}",
                    [str(value.name)],
                )
            self._graph.outputs.append(gradient)
            outputs[str(value.name)] = str(gradient.name)
        return outputs

    def moving_in(self, node: ir.Node) -> set[ir.Value]:
        """Returns the moving values of a body; see `Bodies`."""
        return moving_in_body(node, self._moving)

    def reaching(self, outputs: Iterable[ir.Value], moving: set[ir.Value]) -> set[ir.Value]:
        """Returns the values that outputs of a body depend on; see `Bodies`."""
        return reaching(outputs, moving)

    def in_body(
        self, body: ir.Graph, seeds: Mapping[ir.Value, ir.Value], wrt: Sequence[ir.Value], *, unbounded: bool
    ) -> Sequence[ir.Value | None]:
        """Differentiates a copy of a body; see `Bodies`."""
        moving = moving_values(body, self._moving.union(wrt))
        for result in seeds:
            refuse_hidden_paths(result, moving)
        walk = _Walk(self._model, body, moving, f"{body.name}/")
        if unbounded:
            walk._unbounded.update(seeds.values())
        refused = len(self._model.blocked) + len(self._model.untyped)
        gradients = walk._back(dict(seeds), wrt)
        if len(self._model.blocked) + len(self._model.untyped) > refused:
            raise BlockedInBodyError
        return gradients

    def _back(self, seeds: dict[ir.Value, ir.Value], wrt: Sequence[ir.Value]) -> list[ir.Value | None]:
        """Returns the gradients of values, from those of others, which no node of the graph reads."""
        for node in reversed(list(self._graph)):
            dY = [seeds.get(value) or self._accumulated(value) for value in node.outputs]
            if any(value is not None for value in dY):
                self._back_through(node, dY)
        return [seeds.get(value) or self._accumulated(value) for value in wrt]

    def _seed(self, loss: ir.Value) -> ir.Value:
        """Returns the gradient of the loss with respect to itself: an initializer of ones, as in ORT's graphs."""
        assert loss.dtype is not None, "a loss is a float"  # noqa: S101
        name = self._context.names.fresh(gradient_name(str(loss.name)))
        shape = [1 for _ in loss.shape or ()]
        tensor = ir.tensor(np.ones(shape, loss.dtype.numpy()), dtype=loss.dtype, name=name)
        seed = ir.Value(name=name, type=ir.TensorType(loss.dtype), shape=ir.Shape(shape), const_value=tensor)
        self._graph.register_initializer(seed)
        return seed

    def _back_through(self, node: ir.Node, dY: Sequence[ir.Value | None]) -> None:
        rule = rule_of(node)
        inputs = list(smooth_inputs(node))
        moving = [(index, value) for index, value in inputs if value in self._moving]
        captured = [value for index, value in inputs if index >= len(node.inputs)]
        needed = frozenset(index for index, _ in moving if rule is None or rule.differentiates(index))
        back = Backward(node, dY, needed, self._context, self._model.ties, self, captured)
        back.unbounded = any(value in self._unbounded for value in dY)
        gradients = self._gradients(back, rule, moving)
        if gradients is None:
            # The pass continues, so that one error lists every node that has no gradient.
            for value in self._moving.intersection(reads(node)):
                self._contributions.setdefault(value, []).append((back, ir.Value(type=value.type)))
            return
        for index, value in moving:
            gradient = gradients[index]
            if gradient is not None:
                self._contributions.setdefault(value, []).append((back, gradient))
                if back.unbounded or is_singular(node):
                    self._unbounded.add(gradient)

    def _gradients(
        self, back: Backward, rule: Rule | None, moving: Sequence[tuple[int, ir.Value]]
    ) -> Gradients | None:
        """Returns the gradients of a rule; None if it cannot be applied, with the reason recorded.

        Args:
            back: The node.
            rule: Its rule.
            moving: The inputs, with their indices, that depend on values to differentiate with respect to.
        """
        node = back.node
        if reason := self._model.lost.reason(node) or _no_rule(node, rule, moving, self._model.imports):
            self._model.blocked.append((node, reason))
            return None
        assert rule is not None, "see above"  # noqa: S101
        # Rules create constants of their operands' types.
        outputs = [value for value, dY in zip(node.outputs, back.all_dY, strict=True) if dY is not None]
        for value in (*(value for _, value in moving), *outputs):
            if value.dtype is None:
                reason = f"the type of {value.name!r} is unknown; add it to the model's value_info"
                self._model.untyped.append((node, reason))
                return None
        if self._model.contradicts and (against := contradiction(node, self._model.imports)):
            self._model.blocked.append((node, f"the types or shapes of its inputs contradict its op: {against}"))
            return None
        try:
            return rule.gradients(back)
        except BlockedInBodyError:
            return None
        except NoGradientError as error:
            self._model.blocked.append((node, str(error)))
            return None

    def _accumulated(self, value: ir.Value) -> ir.Value | None:
        """Returns the gradient with respect to a value, once every node that reads it was visited."""
        contributions = self._contributions.pop(value, [])
        if not contributions:
            return None
        name = self._context.names.fresh(self._prefix + gradient_name(str(value.name)))
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
            node = ir.node("Sum", parts, name=self._context.names.fresh(accumulation_node_name(name)))
            self._graph.append(node)
            (result,) = node.outputs
            result.name = name
        result.type, result.shape = value.type, value.shape
        if any(gradient in self._unbounded for _, gradient in contributions):
            self._unbounded.add(result)
        return result


def _no_rule(
    node: ir.Node, rule: Rule | None, moving: Iterable[tuple[int, ir.Value]], opset_imports: Mapping[str, int]
) -> str | None:
    """Returns the reason why no rule covers a node: its op, version, attributes or non-constant inputs."""
    if rule is None:
        if is_foreign(node):
            return "it has no gradient rule; convert it to an op of bngrad first, with bngrad rewrite"
        if form := node.meta.get(UNKNOWN_FORM):
            return f"it has no gradient rule for this form: {form}"
        why = {"": WITHOUT_RULE, DOMAIN: OURS_WITHOUT_RULE}.get(node.domain, {}).get(node.op_type)
        return "it has no gradient rule" + (f" for {why}" if why else "")
    for index, value in moving:
        if not rule.differentiates(index):
            return (
                f"it has no gradient with respect to input {index}, {value.name!r}, which is a value of --wrt or "
                "depends on one (by default the weights); expected a constant"
            )
    by_version = version_refusal(node, rule.versions, opset_imports)
    if by_version or rule.attributes is None:
        return by_version
    return attribute_refusal(node, rule.attributes)
