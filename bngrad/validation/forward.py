"""The loss of the user's own forward model in float64: what no mistake of ours in preparing the model reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import onnx_ir as ir

from bngrad.autodiff.forward import OPSET, make_inputs, name_nodes, set_modes
from bngrad.errors import ModelError, UnsupportedNodeError
from bngrad.passes.inline_functions import inline
from bngrad.passes.raise_opset import RaiseOpsetPass
from bngrad.validation.float64 import Evaluator

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]


class Forward(NamedTuple):
    """A forward model in float64."""

    evaluator: Evaluator
    inputs: frozenset[str]
    """The names of its inputs, of which what the loss is differentiated with respect to is among."""
    outputs: frozenset[str]
    """The names of the user's outputs."""
    note: str
    """What was changed so that it can be evaluated; empty if it is as the user has it."""

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """Evaluates it, for the feeds of a training graph, which may have more inputs."""
        return self.evaluator({name: array for name, array in feeds.items() if name in self.inputs}, outputs)


def forward_of(model: ir.Model, wrt: Iterable[str], *, frozen: Sequence[str], training: Sequence[str]) -> Forward:
    """Makes a forward model one whose weights are inputs, with its batch norms in the modes asked for.

    The model is taken at its own opset if the evaluator has its ops there; else it is raised, as `differentiate`
    does.

    Args:
        model: The forward model, whose tensors are in memory; it is not changed.
        wrt: Names of inputs, initializers or constants of the main graph.
        frozen: Names of batch norms, or patterns, that use their running statistics.
        training: The same for those that use the batch's.

    Raises:
        UnsupportedNodeError: The evaluator lacks an op, at the model's opset and raised.
    """
    own = model.clone()
    if own.functions:
        inline(own)
    name_nodes(own)
    set_modes(own, frozen, training)
    outputs = frozenset(str(value.name) for value in model.graph.outputs)
    try:
        return _as_it_is(own, wrt, outputs, "")
    except UnsupportedNodeError as error:
        try:
            raised = RaiseOpsetPass(OPSET)(own).model
        except ModelError:
            raise error from None
        return _as_it_is(raised, wrt, outputs, f"the forward model was raised to opset {OPSET}: {error}")


def _as_it_is(model: ir.Model, wrt: Iterable[str], outputs: frozenset[str], note: str) -> Forward:
    wanted = set(wrt)
    made = {str(value.name): value for node in model.graph for value in node.outputs if value.name in wanted}
    values = {str(value.name): value for value in (*model.graph.inputs, *model.graph.initializers.values())} | made
    make_inputs(model.graph, [values[name] for name in wanted & values.keys()])
    inputs = frozenset(str(value.name) for value in model.graph.inputs)
    return Forward(Evaluator(ir.to_proto(model)), inputs, outputs, note)


def forward_part(training: ir.Model, loss: str) -> Forward:
    """Cuts the forward part out of a training graph whose forward model is not at hand.

    Args:
        training: The training graph, with the functions of the ops of ``bngrad``.
        loss: The name of the loss.

    Raises:
        UnsupportedNodeError: The evaluator lacks an op.
    """
    graph = ir.convenience.extract(training.graph, [str(v.name) for v in training.graph.inputs], [loss])
    functions = [function.clone() for function in training.functions.values()]
    model = ir.Model(graph, ir_version=training.ir_version, functions=functions)
    inputs = frozenset(str(value.name) for value in graph.inputs)
    return Forward(Evaluator(ir.to_proto(model)), inputs, frozenset(), "")
