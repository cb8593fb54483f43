"""A forward model in PyTorch, in float64: its outputs, and the gradients that PyTorch's autograd computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
import torch

from bngrad.autodiff.body_statistics import return_statistics_of_bodies
from bngrad.autodiff.expansion import expand
from bngrad.autodiff.ghost_batches import refuse_ghost_batches
from bngrad.autodiff.prepare_forward import OPSET, is_trained, with_modes
from bngrad.autodiff.ties import COMMON, Ties
from bngrad.errors import BngradError, UnsupportedNodeError
from bngrad.graph.nodes import all_nodes, default_opset, describe
from bngrad.passes.prepare.infer_types import InferTypesPass
from bngrad.torch.autograd import in_numpy, ops
from bngrad.torch.autograd.table import ELSEWHERE, OPS, Body, UnsupportedFormError
from bngrad.torch.capture import first_line
from bngrad.validation.float64 import EvaluationError
from bngrad.validation.seeding import seed_random_ops
from bngrad.validation.widening import widened, widened_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from bngrad.options import ForwardOptions
    from bngrad.torch.autograd.table import Value

    Array = NDArray[Any]

assert ops, "the table is filled by the import"  # noqa: S101


class _NotInTableError(Exception):
    """An op has no function, or is older than it; in a newer opset it may have one."""


class Autograd:
    """A forward model that PyTorch runs and differentiates.

    Batch norms get their modes, and their new running statistics the names that they have in the training graph.
    The model keeps its opset if the table has its ops at it; else the opset is raised, as `differentiate` does.

    Args:
        model: The forward model, as `bngrad.differentiate` accepts it. It is not modified.
        loss: The name of the loss.
        gradients: The names of the gradients, by those of the inputs, initializers and constants that they belong
            to.
        options: The options by which the model is differentiated.

    Raises:
        UnsupportedNodeError: An op has no equivalent in PyTorch.
    """

    def __init__(self, model: ir.Model, loss: str, gradients: Mapping[str, str], options: ForwardOptions) -> None:
        self._loss, self._gradients, self.note = loss, dict(gradients), ""
        try:
            self._prepare(model, default_opset(model) or OPSET, options)
        except _NotInTableError as error:
            self.note = f"the forward model was raised to opset {OPSET} for PyTorch: {error}"
            try:
                self._prepare(model, OPSET, options)
            except _NotInTableError as old:
                raise UnsupportedNodeError(f"{old}; {ELSEWHERE}") from None

    def _prepare(self, model: ir.Model, opset: int, options: ForwardOptions) -> None:
        own, _ = with_modes(model, opset, options)
        return_statistics_of_bodies(own, [node for node in all_nodes(own) if is_trained(node)])
        refuse_ghost_batches(own.graph, "--against torch (against=)")
        if any((node.domain, node.op_type) not in OPS for node in all_nodes(own)):
            values = (*own.graph.inputs, *own.graph.initializers.values())
            InferTypesPass()(own)
            expand(own, [value for value in values if value.name in self._gradients])
        self._ties = Ties(own)
        own.functions.clear()  # those that are left define ops of the table
        wide = widened(ir.to_proto(own))
        self._opset = wide.opset_imports.get("", opset)
        seed_random_ops(wide.graph.all_nodes(), self._opset)
        for node in wide.graph:
            self._require_known(node)
        for node in wide.graph.all_nodes() if options.unbiased else ():
            if node.op_type == "BatchNormalization":
                node.attributes["unbiased_running_var"] = ir.AttrInt64("unbiased_running_var", 1)
        self._graph = wide.graph
        self._inputs = {str(value.name) for value in (*wide.graph.inputs, *wide.graph.initializers.values())}

    def _require_known(self, node: ir.Node) -> None:
        entry = OPS.get((node.domain, node.op_type))
        if entry is None:
            if in_numpy.can_run(node, self._opset):
                return  # refused when it runs, if a gradient passes it
            raise _NotInTableError(f"{describe(node)} has no equivalent in PyTorch")
        if unknown := sorted(node.attributes.keys() - entry.attributes):
            raise _NotInTableError(
                f"{describe(node)} has the attribute {unknown[0]}, which its function in PyTorch does not take"
            )
        if node.domain == "":
            version = onnx.defs.get_schema(node.op_type, self._opset).since_version
            if version < entry.since:
                raise _NotInTableError(f"{describe(node)} has version {version}; expected {entry.since} or newer")
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                for inner in attribute.as_graph():
                    self._require_known(inner)

    @property
    def outputs(self) -> list[str]:
        """The names of the values that a call returns: outputs of the model, the loss and the gradients."""
        named = [str(value.name) for value in self._graph.outputs]
        return list(dict.fromkeys([self._loss, *named, *self._gradients.values()]))

    def __call__(self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model, and differentiates its loss.

        Args:
            feeds: All inputs without a default, and any other inputs, initializers and constants; names that the
                model does not have are ignored. Floats are converted to float64.
            outputs: Names of the values to return; None for all.

        Raises:
            UnsupportedNodeError: PyTorch cannot compute a form of an op.
            EvaluationError: The evaluation failed.
        """
        values: dict[str, Value] = _initial(self._graph)
        for name, array in feeds.items():
            if name in self._inputs or name in self._gradients:
                values[name] = _tensor(name, array)
        leaves = []
        for name in self._gradients:
            leaf = values[name]
            assert isinstance(leaf, torch.Tensor), "float inputs are tensors"  # noqa: S101
            leaves.append(leaf.requires_grad_())
        # Constants are fed if they have a gradient.
        computed = [node for node in self._graph if not any(y.name in self._gradients for y in node.outputs)]
        self._run(computed, values)
        return self._with_gradients(values, leaves, self.outputs if outputs is None else outputs)

    def _run(self, nodes: Iterable[ir.Node], values: dict[str, Value]) -> None:
        """Runs nodes in order, and adds their results to the values."""
        for node in nodes:
            for value, result in zip(node.outputs, self._results(node, values), strict=False):
                if value.name:
                    values[str(value.name)] = result

    def _body(self, graph: ir.Graph, around: Mapping[str, Value]) -> Body:
        def run(inputs: Sequence[Value]) -> list[Value]:
            arguments = {str(value.name): x for value, x in zip(graph.inputs, inputs, strict=True)}
            values = {**around, **_initial(graph), **arguments}
            self._run(graph, values)
            return [values[str(value.name)] for value in graph.outputs]

        return Body(run, graph.outputs)

    def _with_gradients(
        self, values: Mapping[str, Value], leaves: Sequence[torch.Tensor], outputs: Sequence[str]
    ) -> dict[str, Array]:
        loss = values[self._loss]
        assert isinstance(loss, torch.Tensor), "a float scalar"  # noqa: S101
        if loss.requires_grad:
            try:
                gradients: Sequence[torch.Tensor] = torch.autograd.grad(
                    loss.sum(), leaves, allow_unused=True, materialize_grads=True
                )
            except RuntimeError as error:
                raise EvaluationError(f"PyTorch cannot differentiate the model: {first_line(error)}") from error
        else:
            gradients = [torch.zeros_like(leaf) for leaf in leaves]
        tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
        tensors |= zip(self._gradients.values(), gradients, strict=True)
        return {name: tensors[name].detach().numpy() for name in outputs}

    def _results(self, node: ir.Node, values: Mapping[str, Value]) -> Sequence[Value]:
        entry = OPS.get((node.domain, node.op_type))
        try:
            if entry is None:
                return in_numpy.run(node, values, self._opset)
            inputs = [values[str(value.name)] if value is not None else None for value in node.inputs]
            attributes = {
                name: self._body(attribute.as_graph(), values)
                if attribute.type == ir.AttributeType.GRAPH
                else attribute.value
                for name, attribute in node.attributes.items()
            }
            if "outputs" in entry.attributes:
                attributes["outputs"] = len(node.outputs)
            if "version" in entry.attributes:
                attributes["version"] = onnx.defs.get_schema(node.op_type, self._opset).since_version
            if node.op_type in COMMON and "tie" in entry.attributes:
                attributes["tie"] = self._ties.of(node)
            results = entry.function(*inputs, **attributes)
        except UnsupportedFormError as error:
            raise UnsupportedNodeError(
                f"{describe(node)} has no equivalent in PyTorch: {error}; {ELSEWHERE}"
            ) from None
        except BngradError:
            raise
        except Exception as error:
            raise EvaluationError(f"PyTorch cannot run {describe(node)}: {first_line(error)}") from error
        outputs = results if isinstance(results, tuple) else (results,)
        if any(value.uses() or value.is_graph_output() for value in node.outputs[len(outputs) :]):
            return [*outputs, *in_numpy.run(node, values, self._opset, first=len(outputs))]
        return outputs


def _initial(graph: ir.Graph) -> dict[str, Value]:
    """The initializers of a graph."""
    return {
        str(value.name): _tensor(str(value.name), value.const_value.numpy())
        for value in graph.initializers.values()
        if value.const_value is not None
    }


def _tensor(name: str, array: Array) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(widened_array(array)))
    except TypeError:
        raise UnsupportedNodeError(f"{name!r} is {array.dtype}, which PyTorch lacks; {ELSEWHERE}") from None
