"""The records of ``torch.onnx.export(dynamo=True)``, in the file, of the module that it exported.

PyTorch 2.9 to 2.15 write the same:

* in the metadata of a node, the call of PyTorch's op that it was made from, with its arguments::

      %bn : [num_users=3] = call_function[target=torch.ops.aten._native_batch_norm_legit_functional.default](args =
      (%conv2d, %p_bn_weight, %p_bn_bias, %b_bn_running_mean, %b_bn_running_var, True, 0.1, 1e-05), kwargs = {})

* in the name of a node, the name of PyTorch's op. Tools that drop the metadata keep it: onnxsim, onnxslim, ONNX
  Runtime and onnx's version converter.
* in the metadata of the graph, the kind of each initializer (parameter, buffer or constant), and the tensors that
  the forward pass changes::

      p_bn_weight: PARAMETER target='bn.weight'
      b_bn_running_mean: BUFFER target='bn.running_mean' persistent=True
      c_lifted_tensor_0: CONSTANT_TENSOR target='lifted_tensor_0'
      getitem_3: BUFFER_MUTATION target='bn.running_mean'

An optimizer keeps the metadata of the node that it replaces, and adds its own: a Conv that a batch norm was folded
into has the call of the batch norm.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from bngrad.graph.batch_norms import FROZEN
from bngrad.graph.torch_calls import CALL, recorded_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import onnx_ir as ir

_SCOPES = "pkg.torch.onnx.name_scopes"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
_RULE = "pkg.onnxscript.rewriter.rule_name"
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"

PARAMETER = "PARAMETER"
"""The kind of an initializer that is a parameter of the module."""

_PARAMETER_ARGUMENT = re.compile(r"%p_\w+")
_MUTATED = re.compile(r": (?:BUFFER|PARAMETER)_MUTATION target='([^']*)'")
_INPUT = re.compile(r"^(\w+): ([A-Z_]+) target='([^']*)'", re.MULTILINE)
_NAMED = re.compile(r"native_batch_norm_legit_(functional|no_training)")

_MODE_ARGUMENT: Mapping[str, int] = {
    **dict.fromkeys(
        ("_native_batch_norm_legit_functional", "_native_batch_norm_legit", "native_batch_norm", "batch_norm"), 5
    ),
    **dict.fromkeys(("cudnn_batch_norm", "miopen_batch_norm"), 5),
}
"""The index of the argument of a PyTorch op that is its training mode."""

_MODE_OF_OP: Mapping[str, bool] = {
    "_native_batch_norm_legit_no_training": False,
    "_batch_norm_no_update": False,
    "_batch_norm_with_update": True,
    "_batch_norm_with_update_functional": True,
}
"""The mode of the ops that have only one."""

_RUNNING_MEAN = 3
"""The index of the argument of these ops that is the running mean; the running variance is the next."""


class BatchNormCall(NamedTuple):
    """A call of a PyTorch batch norm."""

    op: str
    arguments: tuple[str, ...]

    @property
    def is_training(self) -> bool | None:
        """True if it was in training mode; None if the arguments do not show the mode."""
        if self.op in _MODE_OF_OP:
            return _MODE_OF_OP[self.op]
        index = _MODE_ARGUMENT.get(self.op)
        written = self.arguments[index] if index is not None and index < len(self.arguments) else ""
        return {"True": True, "False": False}.get(written)

    def buffer(self, slot: int) -> str | None:
        """Returns the buffer of a running statistic; None for one that an earlier call has updated.

        Args:
            slot: The input of ONNX's batch norm, 3 for the mean and 4 for the variance.
        """
        index = _RUNNING_MEAN + slot - 3
        name = self.arguments[index] if index < len(self.arguments) else ""
        return name if name.startswith("%b_") else None


def batch_norm_call(node: ir.Node) -> BatchNormCall | None:
    """Returns the PyTorch batch norm that a node was exported from; None if it is not recorded."""
    call = recorded_call(node)
    return BatchNormCall(call.op, call.arguments) if call is not None and "batch_norm" in call.op else None


def recorded_mode(node: ir.Node) -> bool | None:
    """Returns whether a batch norm was in training mode in PyTorch; None if that is not recorded.

    Args:
        node: A batch norm, or a node that a batch norm was folded into. One that was frozen since counts as one
            that was in inference mode.
    """
    if FROZEN in node.metadata_props:
        return False
    call = batch_norm_call(node)
    if call is not None:
        return call.is_training
    named = _NAMED.search(node.name or "")
    return None if named is None else named[1] == "functional"


def has_records(graph: ir.Graph) -> bool:
    """Returns whether the nodes of a graph have records, as PyTorch's exporter writes them."""
    return any(CALL in node.metadata_props for node in graph)


def are_recorded_as_tied(nodes: Iterable[ir.Node]) -> bool:
    """Returns whether the recorded calls of nodes share a parameter, which no optimizer can have tied."""
    calls = [set(_PARAMETER_ARGUMENT.findall(node.metadata_props.get(CALL, ""))) for node in nodes]
    return bool(calls) and bool(set.intersection(*calls))


def recorded_module(node: ir.Node) -> str:
    """Returns the name of the module that a node was exported from, such as ``layer1.0.bn1``; empty if unknown."""
    try:
        scopes = ast.literal_eval(node.metadata_props.get(_SCOPES, "[]"))
    except (SyntaxError, ValueError):
        return ""
    return str(scopes[-2]) if isinstance(scopes, list) and len(scopes) > 1 else ""


def is_folded_batch_norm(node: ir.Node) -> bool:
    """Returns whether the exporter's optimizer folded a batch norm into a node."""
    return "BatchNorm" in node.metadata_props.get(_RULE, "")


def hand_over_folded(node: ir.Node, batch_norm: ir.Node) -> None:
    """Moves the record of a batch norm from the node that it was folded into to the batch norm itself."""
    if is_folded_batch_norm(node):
        del node.metadata_props[_RULE]
        if batch_norm_call(node) is not None:
            batch_norm.metadata_props[CALL] = node.metadata_props.pop(CALL)


def recorded_kinds(graph: ir.Graph) -> dict[str, str]:
    """Returns the kinds of a module's parameters, buffers and constants, by name; empty without that record."""
    return {name: kind for _, kind, name in _signature(graph)}


def recorded_names(graph: ir.Graph) -> dict[str, str]:
    """Returns the names of a module's parameters and buffers, by their names in the arguments of calls."""
    return {f"%{placeholder}": name for placeholder, _, name in _signature(graph)}


def _signature(graph: ir.Graph) -> list[tuple[str, str, str]]:
    return _INPUT.findall(graph.metadata_props.get(_SIGNATURE, "").partition("# outputs")[0])


def updated_tensors(graph: ir.Graph) -> list[str]:
    """Returns the names of the buffers and parameters that the forward pass changes; empty without that record."""
    return _MUTATED.findall(graph.metadata_props.get(_SIGNATURE, "").partition("# outputs")[2])


def updated_means(graph: ir.Graph) -> set[str]:
    """Returns the names of the running means that the module updates; empty without that record."""
    return {name for name in updated_tensors(graph) if name.endswith("running_mean")}


def folded_from(value: ir.Value) -> frozenset[str]:
    """Returns the names of the values that the exporter's optimizer computed an initializer from."""
    try:
        names = ast.literal_eval(value.metadata_props.get(_FOLDED_FROM, "[]"))
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(map(str, names)) if isinstance(names, list) else frozenset()
